"""The worked examples of the specification, byte for byte."""

from pathlib import Path

import pytest

from polywire.protocols.sabc import (
    Connect,
    Connected,
    Decoder,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    Whole,
    encode,
)
from polywire.wire.frame import Discarded
from tests.protocols.sabc.wire import SESSION, code_of, octetwise, server, whole, wire

FRAMES = [
    wire(
        f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\nmsg-more::yes\n\n"
        "This is first part of the message. Second\npart "
    ),
    wire(
        f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\nmsg-more::yes\n\n"
        "is on the way. See I can have ^@ within the\n"
        "message but shouldn't precede with two CR-LFs.\nFinally the third"
    ),
    wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\n\npart marks the end of the\nmessage\n\n^@"),
]
JOINED = wire(
    "This is first part of the message. Second\n"
    "part is on the way. See I can have ^@ within the\n"
    "message but shouldn't precede with two CR-LFs.\n"
    "Finally the thirdpart marks the end of the\n"
    "message"
)


@pytest.mark.rule("SABC-06", "SABC-07", "SABC-08", "SABC-09", "SABC-10", "SABC-11")
def test_a_command_two_headers_a_body_and_the_null_portion_are_a_frame() -> None:
    data = wire(
        "ERROR\nheader-key1::headerValue1\nheader-key2:: header Value2\n\nbodybodybodybody\nbodybodybodybody\n\n^@"
    )
    [frame] = Decoder().feed(data)
    body = wire("bodybodybodybody\nbodybodybodybody")
    assert frame == Error(None, body, headers=(("header-key1", "headerValue1"), ("header-key2", " header Value2")))
    assert encode(frame) == data


@pytest.mark.rule("SABC-12", "SABC-75")
@pytest.mark.parametrize("end", ["^@", "\n^@", "\n\n^@"])
def test_a_frame_without_a_body_is_valid(end: str) -> None:
    head = f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\n\n"
    decoder = server()
    assert octetwise(decoder, wire(head + end)) == [Message(SESSION, "1")]
    assert decoder.pending() == 0
    assert encode(Message(SESSION, "1")) == wire(head + "^@")


@pytest.mark.rule("SABC-13")
def test_a_frame_without_the_null_portion_leaves_its_message_incomplete() -> None:
    decoder = server()
    assert decoder.feed(FRAMES[0]) == []
    [frame] = decoder.finish()
    assert isinstance(frame, Message)
    assert frame.more
    assert not frame.ended
    assert whole([frame]) == []


@pytest.mark.rule("SABC-14", "SABC-86")
@pytest.mark.parametrize("command", ["COMMAND", "MESSAGE"])
def test_a_frame_without_headers_is_invalid(command: str) -> None:
    data = wire(f"{command}\n\nbodybodybodybody\nbodybodybodybody\n\n^@")
    [frame] = server().feed(data)
    assert isinstance(frame, Discarded)
    assert frame.rule == ("SABC-88" if command == "COMMAND" else "SABC-86")
    assert frame.raw == data
    assert frame.size == len(data)
    assert code_of(frame) == "400"


@pytest.mark.rule("SABC-31", "SABC-01")
def test_the_connect_example_is_read_and_written() -> None:
    data = wire("CONNECT\nclient-id::23450-678-aedc\nclient-passcode::Password@123\n\n^@")
    frame = Connect("23450-678-aedc", "Password@123")
    assert Decoder().feed(data) == [frame]
    assert encode(frame) == data


@pytest.mark.rule("SABC-34", "SABC-36", "SABC-01")
def test_the_connected_example_is_read_though_its_weekday_is_wrong() -> None:
    decoder = Decoder()
    [frame] = decoder.feed(wire(f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Tue, 01 Jun 2017 21:47:38 GMT\n\n"))
    assert frame == Connected(SESSION, 1_496_353_658)
    assert decoder.session_id == SESSION
    assert encode(frame) == wire(
        f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Thu, 01 Jun 2017 21:47:38 GMT\n\n^@"
    )


@pytest.mark.rule("SABC-38")
def test_the_disconnect_example_is_read_and_written() -> None:
    session = "35a4cf3a-0a75-414b-81e8-69b9b4075c4b"
    data = wire(f"DISCONNECT\nsession-id::{session}\n\n")
    assert Decoder(session_id=session).feed(data) == [Disconnect(session)]
    assert encode(Disconnect(session)) == data + b"\0"


@pytest.mark.rule("SABC-41")
def test_the_disconnecting_example_is_read_and_written() -> None:
    data = wire("DISCONNECTING\nsession-id::abcdef123456@#\n\n")
    assert Decoder(session_id="abcdef123456@#").feed(data) == [Disconnecting("abcdef123456@#")]
    assert encode(Disconnecting("abcdef123456@#")) == data + b"\0"


@pytest.mark.rule("SABC-46", "SABC-50")
def test_the_example_of_a_response() -> None:
    asked = wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::000001\n\nHola\n\n^@")
    answered = wire(f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::000001\n\nMundo!!!\n\n^@")
    frames = [Message(SESSION, "000001", b"Hola"), Message(SESSION, None, b"Mundo!!!", ref_msg_id="000001")]
    assert server().feed(asked + answered) == frames
    assert [encode(frame) for frame in frames] == [asked, answered]
    question, answer = whole(server().feed(asked + answered))
    assert isinstance(question, Whole)
    assert question.wants_answer
    assert isinstance(answer, Whole)
    assert not answer.wants_answer


@pytest.mark.rule("SABC-47")
def test_the_example_of_an_acknowledgement() -> None:
    asked = wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123123\n\nHello\n\n^@")
    answered = wire(f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::123123\n\nOK\n\n^@")
    frames = [Message(SESSION, "123123", b"Hello"), Message(SESSION, None, b"OK", ref_msg_id="123123")]
    assert server().feed(asked + answered) == frames
    assert [encode(frame) for frame in frames] == [asked, answered]


@pytest.mark.rule("SABC-48", "SABC-51")
def test_the_example_of_a_send_only_message() -> None:
    data = wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::888999\nsend-only::yes\n\nOK\n\n^@")
    frame = Message(SESSION, "888999", b"OK", send_only=True)
    assert server().feed(data) == [frame]
    assert encode(frame) == data
    [made] = whole([frame])
    assert isinstance(made, Whole)
    assert not made.wants_answer


@pytest.mark.rule("SABC-04", "SABC-55", "SABC-56", "SABC-57", "SABC-58", "SABC-77")
def test_the_three_frames_of_the_example_make_one_body() -> None:
    frames = server().feed(b"".join(FRAMES))
    assert octetwise(server(), b"".join(FRAMES)) == frames
    assert [encode(frame) for frame in frames] == FRAMES
    assert whole(frames) == [Whole(SESSION, "123456", JOINED)]


@pytest.mark.rule("SABC-62", "SABC-63", "SABC-103")
def test_at_300_octets_the_example_ends_inside_its_second_frame() -> None:
    raw = b"".join(FRAMES)[:300]
    head = len(FRAMES[1]) - len(FRAMES[1].partition(b"\r\n\r\n")[2])
    expected = FRAMES[0][head:] + raw[len(FRAMES[0]) + head :]
    assert len(FRAMES[0]) == 126
    assert expected == wire(
        "This is first part of the message. Second\n"
        "part is on the way. See I can have ^@ within the\n"
        "message but shouldn't precede with two CR-LFs.\nFina"
    )
    for frames in (
        server(max_message=300).feed(b"".join(FRAMES)),
        octetwise(server(max_message=300), b"".join(FRAMES)),
    ):
        made, rest = [*whole(frames)], [frame for frame in frames if isinstance(frame, Discarded)]
        assert made == [Whole(SESSION, "123456", expected, (("truncated", "yes"),), truncated=True)]
        assert [frame.rule for frame in rest] == ["SABC-104"]
        assert [frame.reply for frame in rest] == [None]


@pytest.mark.rule("SABC-65", "SABC-66")
def test_the_example_of_an_error() -> None:
    data = wire("ERROR\nerror-code::403\n\nAccess Forbidden\n\n^@")
    assert server().feed(data) == [Error("403", b"Access Forbidden")]
    assert encode(Error("403", b"Access Forbidden")) == data


def test_the_transcript_of_the_page_is_what_both_sides_write() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocols" / "sabc.md").read_text(encoding="utf-8")
    transcript, error = page.split("```\n")[1], page.split("```\n")[3]
    sides = {side: "\n".join(line[3:] for line in transcript.splitlines() if line[0] == side) for side in "CS"}
    client, server_side = (wire(sides[side].replace("^@\n", "^@")) for side in "CS")
    sent = Decoder(session_id=SESSION).feed(client)
    answered = Decoder().feed(server_side)
    assert sent == [
        Connect("thermometer-7"),
        Message(SESSION, "1", b"21.5", (("destination", "home/kitchen/temperature"),)),
    ]
    assert answered == [Connected(SESSION), Message(SESSION, None, b"OK", ref_msg_id="1")]
    assert b"".join(map(encode, sent)) == client
    assert b"".join(map(encode, answered)) == server_side
    [refused] = server().feed(wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\ndestination=home\n\n21.5\n\n^@"))
    assert isinstance(refused, Discarded)
    assert refused.reply is not None
    assert encode(refused.reply) == wire("\n".join(line[3:] for line in error.splitlines()))
