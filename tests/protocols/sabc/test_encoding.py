import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.fmqp import Subscription
from polywire.protocols.sabc import (
    Connected,
    Decoder,
    Disconnect,
    Disconnecting,
    Error,
    LocalProtocolError,
    Message,
    Whole,
    encode,
    split,
)
from polywire.wire.frame import Discarded, Frame
from tests.protocols.sabc.wire import SESSION, server, whole, wire

BOUNDARY = f"MESSAGE\r\nsession-id::{SESSION}\r\n".encode()


@pytest.mark.rule("SABC-79", "SABC-02")
def test_the_session_id_is_the_first_header() -> None:
    frames: list[Frame] = [
        Connected(SESSION, 0, (("a", "b"),)),
        Disconnect(SESSION, (("a", "b"),)),
        Disconnecting(SESSION, (("a", "b"),)),
        Message(SESSION, "1", b"x", (("a", "b"),), send_only=True),
        Message(SESSION, None, b"x", (("a", "b"),), "1", more=True),
        Error("400", b"", SESSION, "1", (("a", "b"),)),
    ]
    for frame in frames:
        assert encode(frame).split(b"\r\n")[1] == b"session-id::" + SESSION.encode()


@pytest.mark.rule("SABC-80", "SABC-81")
def test_everything_but_a_msg_more_frame_has_a_null_portion_and_lines_end_with_cr_lf() -> None:
    assert encode(Message(SESSION, "1", b"x")) == wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\n\nx\n\n^@")
    piece = encode(Message(SESSION, "1", b"x", more=True))
    assert piece == wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\nmsg-more::yes\n\nx")
    for frame in (Connected(SESSION), Disconnect(SESSION), Disconnecting(SESSION), Error("400")):
        assert encode(frame).endswith(b"\r\n\r\n\0")


@pytest.mark.rule("SABC-15")
def test_only_sabc_frames_are_written() -> None:
    with pytest.raises(LocalProtocolError, match="SABC-15"):
        encode(Subscription("topic"))


@pytest.mark.rule("SABC-14")
def test_an_error_without_headers_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="SABC-14"):
        encode(Error(None, b"text"))


@pytest.mark.rule("SABC-82", "SABC-83")
@pytest.mark.parametrize("body", [b"\xff", b"ok\xc3", b"\0", b"\0x", b"\r\n\0", b"a\r\n\r\n\0b", b"\r\n\r\n\0"])
def test_a_body_the_wire_can_not_carry_goes_as_base64(body: bytes) -> None:
    octets = encode(Message(SESSION, "1", body))
    assert b"content-encoding::base64\r\n" in octets
    assert octets.decode()
    assert whole(server().feed(octets)) == [Whole(SESSION, "1", body)]
    octets = encode(Error("400", body, SESSION))
    assert b"content-encoding::base64\r\n" in octets
    assert server().feed(octets) == [Error("400", body, SESSION)]


@pytest.mark.rule("SABC-82", "SABC-84")
@pytest.mark.parametrize("body", [b"a\0", "grüße".encode(), b"\n\0", b"\r\n\r\n", b"a\r\n\0", b"\r\n\r\n\r\n"])
def test_every_other_body_goes_as_it_is(body: bytes) -> None:
    octets = encode(Message(SESSION, "1", body))
    assert body in octets
    assert b"base64" not in octets
    assert server().feed(octets) == [Message(SESSION, "1", body)]


@pytest.mark.rule("SABC-126")
@pytest.mark.parametrize("body", [BOUNDARY, b"x" + BOUNDARY + b"y", BOUNDARY[:-2]])
def test_a_body_with_a_boundary_of_its_own_session_goes_as_base64(body: bytes) -> None:
    octets = encode(Message(SESSION, "1", body))
    assert b"content-encoding::base64\r\n" in octets
    assert whole(server().feed(octets)) == [Whole(SESSION, "1", body)]
    assert body in encode(Message("another", "1", body))


@pytest.mark.rule("SABC-82", "SABC-126")
@pytest.mark.parametrize("body", [b"\xff", b"\0", b"\r\n\0", b"\r\n\r\n\0", BOUNDARY])
def test_a_piece_the_wire_can_not_carry_is_not_written(body: bytes) -> None:
    for frame in (
        Message(SESSION, "1", body, more=True),
        Message(SESSION, "1", body, (("content-encoding", "base64"),)),
        Error("400", body, SESSION, None, (("content-encoding", "gzip"),)),
    ):
        with pytest.raises(LocalProtocolError, match=r"SABC-82|SABC-126"):
            encode(frame)


@pytest.mark.rule("SABC-64")
def test_an_error_is_one_frame_however_large() -> None:
    frame = Error("400", b"x" * 100_000, SESSION)
    assert Decoder(session_id=SESSION).feed(encode(frame)) == [frame]


AWKWARD = [b"\0", b"\r\n", b"x", "ß→😀".encode(), b"\r\n\r\n", b"MESSAGE"]
BODIES = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(str.encode),
    st.lists(st.sampled_from(AWKWARD), max_size=60).map(b"".join),
)


@pytest.mark.rule("SABC-129", "SABC-116", "SABC-124")
@given(BODIES, st.integers(120, 400), st.booleans())
def test_a_split_message_is_the_same_message(body: bytes, size: int, send_only: bool) -> None:
    sent = Message(SESSION, "1", body, (("a", "b"),), send_only=send_only)
    frames = split(sent, size + 30)
    octets = [encode(frame) for frame in frames]
    assert all(len(part) <= size + 30 for part in octets)
    assert all(part.decode() for part in octets)
    assert [frame.more for frame in frames] == [True] * (len(frames) - 1) + [False]
    assert server().feed(b"".join(octets)) == frames
    assert whole(server().feed(b"".join(octets))) == [Whole(SESSION, "1", body, (("a", "b"),), None, send_only)]
    for frame in frames[1:]:
        assert (frame.headers, frame.send_only) == ((), False)


@pytest.mark.rule("SABC-129")
def test_a_small_message_stays_one_frame() -> None:
    sent = Message(SESSION, None, b"x", ref_msg_id="1")
    assert split(sent, 1000) == [sent]


@pytest.mark.rule("SABC-129")
def test_a_body_of_nuls_is_split_as_base64() -> None:
    body = b"x" + b"\0" * 1000
    frames = split(Message(SESSION, "1", body), 200)
    assert frames[0].headers == (("content-encoding", "base64"),)
    assert len(frames) > 5
    assert whole(list(frames)) == [Whole(SESSION, "1", body)]


@pytest.mark.rule("SABC-129")
def test_what_can_not_be_split_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="no room"):
        split(Message(SESSION, "1", b"x" * 100), 70)
    with pytest.raises(LocalProtocolError, match="whole message"):
        split(Message(SESSION, "1", b"x", more=True), 1000)
    with pytest.raises(LocalProtocolError, match="SABC-82"):
        split(Message(SESSION, "1", b"\xff", (("content-encoding", "gzip"),)), 1000)
    with pytest.raises(LocalProtocolError, match="no place"):
        split(Message(SESSION, "1", b"x" + b"\0" * 1000, (("content-encoding", "gzip"),)), 200)


def test_a_refused_frame_is_a_value_like_any_other() -> None:
    [one] = server().feed(wire("HELLO\n\n\n\n^@"))
    [other] = server().feed(wire("HELLO\n\n\n\n^@"))
    assert isinstance(one, Discarded)
    assert one == other
    assert hash(one) == hash(other)
