"""Any bytes, cut anywhere, give the same frames or the documented error, and nothing else."""

import pytest
from fuzz.contract import check_stream
from fuzz.targets import sabc as target
from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.protocols.sabc import Connect, Connected, Decoder, Disconnect, Disconnecting, Error, Message, encode
from polywire.protocols.sabc.frames import unfit
from polywire.protocols.sabc.headers import RESERVED
from polywire.wire.frame import Frame

S = target.SESSION
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0:"), max_size=8)
WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0:"), min_size=1, max_size=8)
KEY = WORD.filter(lambda key: key not in RESERVED and key not in {"truncated", "content-encoding"})
HEADERS = st.lists(st.tuples(KEY, TEXT), max_size=3).map(tuple)
PLAIN = st.one_of(
    st.text(max_size=60).map(str.encode),
    st.lists(st.sampled_from([b"\r\n", b"\0", b"MESSAGE", b"\r\nsession-id::", b"x"]), max_size=12).map(b"".join),
).filter(lambda body: unfit(body, S) is None)
IDS = st.sampled_from(["1", "2", "ß"])

PIECES: st.SearchStrategy[Frame] = st.builds(
    Message, st.just(S), IDS, PLAIN, HEADERS, st.none(), st.booleans(), st.booleans()
)
ANSWERS: st.SearchStrategy[Frame] = st.builds(
    Message, st.just(S), st.none(), PLAIN, HEADERS, IDS, st.just(value=False), st.booleans()
)
OTHERS: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Connect, WORD, st.one_of(st.none(), TEXT), HEADERS),
    st.builds(Connected, st.just(S), st.one_of(st.none(), st.integers(0, 2**32)), HEADERS),
    st.builds(Disconnect, st.just(S), HEADERS),
    st.builds(Disconnecting, st.just(S), HEADERS),
    st.builds(Error, TEXT, st.binary(max_size=40), st.just(S), st.one_of(st.none(), TEXT), HEADERS),
)
ENDING = Message(S, "end")


def fits(frames: list[Frame]) -> list[Frame]:
    """Frames as a peer may send them: behind a frame with msg-more none but those that begin with the session id."""
    kept: list[Frame] = []
    for frame in frames:
        if isinstance(frame, Connect) and kept and isinstance(kept[-1], Message) and kept[-1].more:
            continue
        kept.append(frame)
    return [*kept, ENDING]


@pytest.mark.rule("SABC-06", "SABC-10", "SABC-77", "SABC-79", "SABC-80")
@settings(max_examples=150)
@given(st.lists(st.one_of(PIECES, ANSWERS, OTHERS), max_size=6).map(fits))
def test_what_is_written_is_read_however_it_is_cut(frames: list[Frame]) -> None:
    stream = b"".join(map(encode, frames))
    whole = check_stream(lambda: Decoder(session_id=S), stream, [len(stream) // 3], held=1 << 16)
    assert whole.frames == frames
    decoder = Decoder(session_id=S)
    assert [frame for at in range(len(stream)) for frame in decoder.feed(stream[at : at + 1])] == frames
    assert decoder.pending() == 0


@settings(max_examples=150)
@given(st.binary(max_size=300))
def test_arbitrary_octets_hold_the_contract(data: bytes) -> None:
    target.run(data)


COMMANDS = [b"MESSAGE", b"DISCONNECT", b"CONNECT", b"CONNECTED", b"DISCONNECTING", b"ERROR", b"DIS"]
ENDS = [b"\r\n", b"\r\n\r\n", b"\r\n\r\n\0", b"\0", b"\r", b"\n", b"::"]
LINES = [b"session-id::S1", b"session-id::S1\r\n", b"session-id::S2", b"msg-id::1", b"msg-id::2", b"msg-more::yes"]
LINES += [b"send-only::yes", b"ref-msg-id::1", b"client-id::a", b"error-code::1", b"a::b", b"content-encoding::base64"]
BODIES = [b"\xff", b"YQ==", b"x" * 40, b"x" * 300]
STARTS = [b"MESSAGE\r\nsession-id::S1\r\nmsg-id::%d\r\n" % number for number in range(9)]
UNFINISHED = [start + b"msg-more::yes\r\n\r\n" for start in STARTS]
PARTS = st.sampled_from([*COMMANDS, *ENDS, *LINES, *BODIES, *STARTS, *UNFINISHED])


@settings(max_examples=300)
@given(st.integers(0, 255), st.lists(PARTS, max_size=25).map(b"".join))
def test_what_is_nearly_sabc_holds_the_contract(cut: int, data: bytes) -> None:
    target.run(bytes([cut]) + data)


@settings(max_examples=150)
@given(st.sampled_from(target.seeds()), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4))
def test_damaged_streams_hold_the_contract(seed: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(seed)
    for place, octet in changes:
        damaged[place % len(damaged)] = octet
    target.run(bytes(damaged))


def test_the_seeds_hold_the_contract() -> None:
    for seed in target.seeds():
        target.run(seed)
