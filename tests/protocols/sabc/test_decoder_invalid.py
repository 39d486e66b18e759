"""Invalid sABC frames: what is answered, and where reading resumes."""

import pytest

from polywire.protocols.sabc import (
    Connected,
    Decoder,
    Error,
    Message,
    RemoteProtocolError,
    encode,
)
from polywire.wire.frame import Discarded
from tests.protocols.sabc.wire import SESSION, code_of, message, octetwise, server, wire

BOUNDARY = f"MESSAGE\r\nsession-id::{SESSION}\r\n".encode()


@pytest.mark.rule("SABC-90", "SABC-127")
@pytest.mark.parametrize("command", ["MESSAGE", "DISCONNECT", "DISCONNECTING"])
def test_a_wrong_session_id_is_unauthorized(command: str) -> None:
    [frame, following] = server().feed(
        wire(f"{command}\nsession-id::other{' ' if command != 'MESSAGE' else chr(10) + 'msg-id::1'}\n\n^@")
        + message("msg-id::2")
    )
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-90"
    assert frame.reply == Error("401", frame.reason.encode(), SESSION, "1" if command == "MESSAGE" else None)
    assert following == Message(SESSION, "2")


@pytest.mark.rule("SABC-127")
def test_before_there_is_a_session_an_error_names_none() -> None:
    [frame] = Decoder(session_id=SESSION).feed(wire("HELLO\n\n\n\n^@"))
    assert isinstance(frame, Discarded)
    assert isinstance(frame.reply, Error)
    assert frame.reply.session_id is None
    [frame] = Decoder(session_id=SESSION).feed(encode(Connected("x")) + b"?\r\n\r\n\0")[1:]
    assert isinstance(frame, Discarded)
    assert isinstance(frame.reply, Error)
    assert frame.reply.session_id is None


@pytest.mark.rule("SABC-94", "SABC-95")
@pytest.mark.parametrize(
    "bad",
    [
        b"HELLO\r\n\r\nno end",
        b"garbage",
        b"\r\n",
        b"\n",
        b"MESSAGE\r\nmsg-id::1\r\nwithout",
        BOUNDARY + b"msg-id::1\r\n",
        BOUNDARY + b"msg-id::1\r\nbroken\r\n\r\nbody without end",
        b"DISCONNECT\r\nbroken",
        b"DISCONNECT\r\nsession-id::" + SESSION.encode() + b"\r\nbroken",
    ],
)
def test_reading_resumes_at_the_next_frame_of_the_session(bad: bytes) -> None:
    frames = server().feed(bad + message("msg-id::2"))
    [frame, following] = frames
    assert isinstance(frame, Discarded)
    assert frame.raw == bad
    assert code_of(frame) == "400"
    assert following == Message(SESSION, "2")
    assert octetwise(server(), bad + message("msg-id::2")) == frames


@pytest.mark.rule("SABC-94", "SABC-76")
@pytest.mark.parametrize("null", [b"", b"\0"])
def test_an_invalid_command_without_body_ends_at_its_empty_line(null: bytes) -> None:
    data = wire("DISCONNECT\nbroken\n\n") + null + message("msg-id::2")
    [frame, following] = octetwise(server(), data)
    assert isinstance(frame, Discarded)
    assert frame.raw == wire("DISCONNECT\nbroken\n\n")
    assert following == Message(SESSION, "2")


@pytest.mark.rule("SABC-96")
@pytest.mark.parametrize(
    ("data", "rule", "position"),
    [
        ("CONNECT\n\n", "SABC-86", 0),
        ("CONNECT\nclient-id::me\nbroken\n\n", "SABC-87", 24),
        (f"CONNECT\nclient-id::me\nsession-id::{SESSION}\n\n", "SABC-24", 24),
        ("CONNECT\nk::" + "x" * 600, "SABC-120", 0),
    ],
)
def test_a_connect_that_can_not_be_accepted_ends_the_connection(data: str, rule: str, position: int) -> None:
    decoder = Decoder(session_id=SESSION, max_head=512)
    before = wire("HELLO\nx::y\n\n\n\n^@")
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(before + wire(data))
    error = caught.value
    assert error.rule == rule
    assert error.position == len(before) + position
    assert isinstance(error.reply, Error)
    assert error.reply.error_code == ("429" if rule == "SABC-120" else "400")
    assert [type(frame) for frame in error.frames] == [Discarded]
    with pytest.raises(RemoteProtocolError) as again:
        decoder.feed(message("msg-id::1"))
    assert again.value.frames == []
    assert (again.value.reason, again.value.reply) == (error.reason, error.reply)
    with pytest.raises(RemoteProtocolError):
        decoder.finish()


@pytest.mark.rule("SABC-94")
def test_a_malformed_connect_inside_a_session_leaves_it_alive() -> None:
    [frame, following] = server().feed(wire("CONNECT\nbroken\n\n") + message("msg-id::2"))
    assert code_of(frame) == "400"
    assert following == Message(SESSION, "2")


@pytest.mark.rule("SABC-64", "SABC-123")
@pytest.mark.parametrize(
    "bad",
    [
        b"ERROR\r\nerror-code::400\r\n\r\nno end",
        b"ERROR\r\nerror-code::400\r\nmsg-more::yes\r\n\r\nno end",
        b"ERROR\r\n\r\nno header\r\n\r\n\0",
        b"ERROR\r\nbroken\r\n\r\n\r\n\r\n\0",
        b"ERROR\r\nsession-id::wrong\r\n\r\n\0",
        b"ERROR\r\nsession-id::\r\n\r\n\0",
    ],
)
def test_a_broken_error_is_discarded_and_never_answered(bad: bytes) -> None:
    [frame, following] = server().feed(bad + message("msg-id::2"))
    assert isinstance(frame, Discarded)
    assert frame.reply is None
    assert following == Message(SESSION, "2")


@pytest.mark.rule("SABC-66", "SABC-21")
def test_an_error_may_have_any_header() -> None:
    lines = "client-id::a\nclient-passcode::b\nsession-expiry::c\nmsg-id::d\nsend-only::e\nmsg-more::yes\nx::y"
    data = wire(f"ERROR\nsession-id::{SESSION}\nerror-code::what\nref-msg-id::r\n{lines}\n\nbody\n\n^@")
    [frame] = server().feed(data)
    pairs = tuple((line.split("::")[0], line.split("::")[1]) for line in lines.split("\n"))
    assert frame == Error("what", b"body", SESSION, "r", pairs)
    assert encode(frame) == data


@pytest.mark.rule("SABC-43")
def test_a_connection_may_end_between_frames() -> None:
    decoder = server()
    decoder.feed(message("msg-id::1"))
    assert decoder.finish() == []


@pytest.mark.rule("SABC-43")
@pytest.mark.parametrize("bad", [b"MESS", BOUNDARY + b"msg-id::1", b"HELLO\r\nx::y\r\n\r\nbody"])
def test_what_is_cut_by_the_end_of_the_connection_is_discarded(bad: bytes) -> None:
    decoder = server()
    assert decoder.feed(bad) == []
    [frame] = decoder.finish()
    assert isinstance(frame, Discarded)
    assert frame.raw == bad
    assert frame.size == len(bad)
    assert decoder.pending() == 0


@pytest.mark.rule("SABC-106")
def test_at_the_end_of_the_connection_a_frame_with_neither_is_discarded() -> None:
    decoder = server()
    assert decoder.feed(message("msg-id::1", body="x\n\n", end="")) == []
    [frame] = decoder.finish()
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-106"
    assert frame.raw.endswith(b"x\r\n\r\n")


@pytest.mark.rule("SABC-127")
@pytest.mark.parametrize(
    "bad",
    [
        b"HELLO\r\nmsg-id::\xff\r\n\r\n\r\n\r\n\0",
        b"HELLO\r\nmsg-id::\r\n\r\n\0",
        b"HELLO\r\nmsg-id::a::b\r\n\r\n\0",
        b"HELLO\r\nmsg-id::" + b"x" * 600 + b"\r\n\r\n\0",
    ],
)
def test_a_msg_id_that_can_not_be_read_is_not_named(bad: bytes) -> None:
    [frame] = server(max_head=512).feed(bad)
    assert isinstance(frame, Discarded)
    assert isinstance(frame.reply, Error)
    assert frame.reply.ref_msg_id is None
