"""sABC's frames on a byte stream: commands, and where frames begin and end."""

import pytest

from polywire.protocols.sabc import (
    Connect,
    Connected,
    Decoder,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    encode,
)
from polywire.wire.frame import Discarded, Frame
from tests.protocols.sabc.wire import SESSION, code_of, message, octetwise, server, wire

OPENING = len(wire("CONNECT\nclient-id::me\n\n"))
BOUNDARY = f"MESSAGE\r\nsession-id::{SESSION}\r\n".encode()


@pytest.mark.rule("SABC-15")
def test_the_six_commands_are_read() -> None:
    frames: list[Frame] = [
        Connect("me"),
        Connected(SESSION),
        Disconnect(SESSION),
        Disconnecting(SESSION),
        Message(SESSION, "1"),
        Error("400"),
    ]
    assert Decoder(session_id=SESSION).feed(b"".join(map(encode, frames))) == frames


@pytest.mark.rule("SABC-88", "SABC-07", "SABC-94")
@pytest.mark.parametrize("command", ["HELLO", "message", "Message", "MESSAGES", " MESSAGE", ""])
def test_an_unknown_command_is_malformed_and_reading_resumes(command: str) -> None:
    data = wire(f"{command}\nmsg-id::7\n\nbody\n\n^@")
    frames = octetwise(server(), data + message("msg-id::2"))
    [bad, following] = frames
    assert isinstance(bad, Discarded)
    assert bad.rule == "SABC-88"
    assert bad.position == OPENING
    assert bad.raw == data
    assert bad.reply == Error("400", bad.reason.encode(), SESSION, "7")
    assert following == Message(SESSION, "2")
    assert server().feed(data + message("msg-id::2")) == frames


@pytest.mark.rule("SABC-10", "SABC-74")
def test_the_null_portion_ends_frame_and_message() -> None:
    frames = server().feed(message("msg-id::1", body="a\n\n") + message("msg-id::2", body="b"))
    assert frames == [Message(SESSION, "1", b"a\r\n\r\n"), Message(SESSION, "2", b"b")]
    assert all(isinstance(frame, Message) and frame.ended for frame in frames)


@pytest.mark.rule("SABC-56", "SABC-84")
@pytest.mark.parametrize(
    "body", [b"a\0b", b"a\r\n\0", b"a\n\n\0b", b"\r\0", b"\n\0", b"a\r\n\r\0\r\n\r\n", b"\xff\xfe"]
)
def test_other_octets_are_body(body: bytes) -> None:
    data = message("msg-id::1", end="") + body + b"\r\n\r\n\0"
    assert server().feed(data) == [Message(SESSION, "1", body)]
    assert octetwise(server(), data) == [Message(SESSION, "1", body)]


@pytest.mark.rule("SABC-75")
@pytest.mark.parametrize("body", [b"\0", b"\r\n\0"])
def test_a_nul_at_the_start_of_a_body_ends_it(body: bytes) -> None:
    data = message("msg-id::1", end="") + body + message("msg-id::2")
    assert octetwise(server(), data) == [Message(SESSION, "1"), Message(SESSION, "2")]


@pytest.mark.rule("SABC-76")
@pytest.mark.parametrize("null", [b"", b"\0", b"\r\n\r\n\0"])
def test_commands_without_body_end_at_their_empty_line(null: bytes) -> None:
    frames: list[Frame] = [Connect("me"), Connected(SESSION), Disconnect(SESSION), Disconnecting(SESSION)]
    for frame in frames:
        decoder = Decoder(session_id=SESSION)
        assert decoder.feed(encode(frame)[:-1]) == [frame]
        assert octetwise(decoder, null) == []
        assert decoder.feed(message("msg-id::1")) == [Message(SESSION, "1")]
        assert decoder.finish() == []
    data = b"".join(encode(frame)[:-1] + null for frame in frames)
    assert Decoder(session_id=SESSION).feed(data) == frames


@pytest.mark.rule("SABC-76")
def test_only_one_nul_is_skipped_behind_a_command_without_body() -> None:
    decoder = server()
    assert decoder.feed(b"\0") == []
    [frame, _] = decoder.feed(b"\0" + message("msg-id::1"))
    assert isinstance(frame, Discarded)
    assert frame.raw == b"\0"
    assert frame.rule == "SABC-88"


@pytest.mark.rule("SABC-77", "SABC-13")
@pytest.mark.parametrize(
    "following",
    [
        Message(SESSION, "2"),
        Error("400", b"", SESSION),
        Disconnect(SESSION),
        Disconnecting(SESSION),
        Connected(SESSION),
    ],
)
def test_a_frame_without_null_portion_ends_where_the_next_begins(following: Frame) -> None:
    piece = Message(SESSION, "1", b"half a mess", more=True)
    data = encode(piece) + encode(following)
    assert server().feed(data) == [piece, following]
    assert octetwise(server(), data) == [piece, following]
    decoder = server()
    assert decoder.feed(encode(piece)) == []


@pytest.mark.rule("SABC-77")
def test_a_client_learns_the_boundary_from_connected() -> None:
    piece = Message(SESSION, "1", b"half", more=True)
    decoder = Decoder()
    frames = decoder.feed(encode(Connected(SESSION)) + encode(piece) + encode(Message(SESSION, "1", b"!")))
    assert frames == [Connected(SESSION), piece, Message(SESSION, "1", b"!")]


@pytest.mark.rule("SABC-77")
def test_a_session_may_be_named_later() -> None:
    decoder = Decoder()
    decoder.feed(encode(Connect("me")))
    assert decoder.session_id is None
    decoder.session_id = SESSION
    piece = Message(SESSION, "1", b"half", more=True)
    assert decoder.feed(encode(piece) + encode(piece)) == [piece]
    [wrong] = decoder.feed(b"\r\n\r\n\0" + message("msg-id::1", session="other"))[1:]
    assert code_of(wrong) == "401"


@pytest.mark.rule("SABC-77")
@pytest.mark.parametrize("start", [b"", b"DIS", b"CONNECT", b"\r\n\r\n"])
def test_a_boundary_is_found_behind_whatever_stands_before_it(start: bytes) -> None:
    data = message("msg-id::1", "msg-more::yes", end="") + start + message("msg-id::2", body="x")
    expected = [Message(SESSION, "1", start, more=True), Message(SESSION, "2", b"x")]
    assert server().feed(data) == expected
    assert octetwise(server(), data) == expected


@pytest.mark.rule("SABC-77")
def test_disconnect_is_not_taken_for_connect_behind_dis() -> None:
    data = message("msg-id::1", "msg-more::yes", body="x", end="") + encode(Disconnect(SESSION))
    assert octetwise(server(), data) == [Message(SESSION, "1", b"x", more=True), Disconnect(SESSION)]


@pytest.mark.rule("SABC-77")
def test_a_boundary_may_end_in_the_null_portion() -> None:
    data = message("msg-id::1", "msg-more::yes", body="x", end="") + BOUNDARY + b"\r\n\0"
    [piece, bare] = server().feed(data)
    assert piece == Message(SESSION, "1", b"x", more=True)
    assert isinstance(bare, Discarded)
    assert bare.rule == "SABC-49"
    assert octetwise(server(), data) == [piece, bare]


@pytest.mark.rule("SABC-78")
@pytest.mark.parametrize(
    "body",
    [
        b"MESSAGE\r\nsession-id::someone else\r\nmsg-id::1\r\n\r\n",
        BOUNDARY.replace(b"MESSAGE", b"message"),
        BOUNDARY.replace(b"MESSAGE", b"HELLO"),
        BOUNDARY.replace(b"\r\n", b"\n"),
        BOUNDARY[:-2] + b"x\r\n",
        BOUNDARY[:-3],
        b"\r\nsession-id::" + SESSION.encode() + b"\r\n",
    ],
)
def test_what_only_looks_like_a_boundary_is_body(body: bytes) -> None:
    data = message("msg-id::1", end="") + b"x" + body + b"\r\n\r\n\0"
    assert server().feed(data) == [Message(SESSION, "1", b"x" + body)]
    assert octetwise(server(), data) == [Message(SESSION, "1", b"x" + body)]


@pytest.mark.rule("SABC-60")
def test_msg_more_means_nothing_beside_the_null_portion() -> None:
    assert server().feed(message("msg-id::1", "msg-more::yes", body="x")) == [Message(SESSION, "1", b"x")]


@pytest.mark.rule("SABC-61", "SABC-106", "SABC-127")
def test_a_frame_with_neither_null_portion_nor_msg_more_is_discarded_when_the_next_begins() -> None:
    bad = message("msg-id::1", body="text", end="")
    decoder = server()
    assert decoder.feed(bad) == []
    [frame, following] = decoder.feed(message("msg-id::2"))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-106"
    assert frame.position == OPENING
    assert frame.raw == bad
    assert frame.size == len(bad)
    assert frame.reply == Error("400", frame.reason.encode(), SESSION, "1")
    assert following == Message(SESSION, "2")
    assert octetwise(server(), bad + message("msg-id::2")) == [frame, following]
