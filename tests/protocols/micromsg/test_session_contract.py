"""Whatever a client sends, and however it is cut: answered by the rules, never an exception, nothing left behind."""

from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.protocols.micromsg.frames import Command, Error, Extension, Message, encode
from tests.protocols.micromsg.talk import Talker, handshake
from tests.sessions import Site

USE = "pub-sub;batch-ack:max-count=3;dotnet"
DESTINATIONS = st.sampled_from(
    ["topic/a", "topic/a/b", "topic/*", "topic/**", "jobs", "queue/jobs", "$/x", "", "topic/"]
)
FRAMES = st.one_of(
    st.builds(Message, st.integers(1, 6), DESTINATIONS, st.binary(max_size=3), st.sampled_from(["", "n:N1;", "n:N2;"])),
    st.builds(
        lambda name, to: Command(name, (("destination", to),)),
        st.sampled_from(["subscribe", "unsubscribe"]),
        DESTINATIONS,
    ),
    st.builds(lambda to: Command("subscribe", (("destination", to), ("filter", "n=N1"))), DESTINATIONS),
    st.builds(lambda number: Extension(2, number.to_bytes(2, "big")), st.integers(0, 6)),
    st.builds(Extension, st.integers(1, 4), st.binary(max_size=3)),
    st.sampled_from([Command("ping"), Command("dance"), Error("forbidden"), Error("bad-ack")]),
)


def conversation(chunks: list[bytes]) -> tuple[bytes, bool]:
    """What a session answers, and whether it hung up; afterwards the hub must be empty."""
    site = Site()
    talker = Talker(site, None)
    talker.wire.feed(*chunks)
    for _ in range(3):
        site.loop.turn()
    answer, closed = talker.wire.taken(), talker.closed
    talker.wire.lose()
    assert not site.hub.clients
    assert len(site.hub.table) == 0
    assert all(queue.consumers() == 0 for queue in site.hub.queues.values())
    return answer, closed


@given(st.lists(st.binary(max_size=40), max_size=5), st.booleans())
def test_any_octets_are_answered_by_the_rules(chunks: list[bytes], shaken: bool) -> None:
    conversation([handshake(USE), handshake(USE), *chunks] if shaken else chunks)


@given(st.lists(FRAMES, max_size=12))
@settings(max_examples=300)
def test_any_frames_are_answered_by_the_rules(frames: list[Message | Command | Extension | Error]) -> None:
    conversation([handshake(USE), handshake(USE), *[encode(frame) for frame in frames]])


@given(st.lists(FRAMES, max_size=12), st.data())
@settings(max_examples=200)
def test_how_the_octets_are_cut_changes_no_message_and_no_error(
    frames: list[Message | Command | Extension | Error], data: st.DataObject
) -> None:
    use = "pub-sub;dotnet"  # without acks: those are collected by chunk
    octets = handshake(use) + handshake(use) + b"".join(encode(frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=6)))
    pieces = [octets[start:end] for start, end in zip([0, *cuts], [*cuts, len(octets)], strict=True)]
    assert conversation(pieces) == conversation([octets])
