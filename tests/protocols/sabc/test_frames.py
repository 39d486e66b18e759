import tracemalloc

import pytest

from polywire.protocols.frame import Discarded, Frame
from polywire.protocols.sabc import (
    Connect,
    Connected,
    Decoder,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    MessageDecoder,
    RemoteProtocolError,
    encode,
)
from tests.protocols.sabc.wire import SESSION, code_of, message, octetwise, server, whole, wire

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


@pytest.mark.rule("SABC-05", "SABC-62", "SABC-103")
def test_a_message_of_exactly_the_limit_is_whole_and_one_octet_more_is_not() -> None:
    data = message("msg-id::1", body="abcdef")
    assert server(max_message=len(data)).feed(data) == [Message(SESSION, "1", b"abcdef")]
    for over in range(1, 6):  # the null portion lies across the limit
        [frame] = octetwise(server(max_message=len(data) - over), data)
        assert frame == Message(SESSION, "1", b"abcdef", (("truncated", "yes"),))
    [frame] = server(max_message=len(data) - 7).feed(data)
    assert frame == Message(SESSION, "1", b"abcd", (("truncated", "yes"),))
    [frame] = server(max_message=10).feed(data)
    assert frame == Message(SESSION, "1", b"", (("truncated", "yes"),))


@pytest.mark.rule("SABC-05", "SABC-103", "SABC-104")
def test_a_giant_body_is_cut_as_it_arrives_and_its_rest_never_held() -> None:
    decoder = server(max_message=1000)
    head = message("msg-id::1", end="")
    frames = decoder.feed(head)
    for _ in range(1000):
        frames += decoder.feed(b"x" * 500)
        assert decoder.pending() <= 1000
        assert len(frames) <= 1
    assert frames == [Message(SESSION, "1", b"x" * (1000 - len(head)), (("truncated", "yes"),))]
    assert decoder.pending() == 0
    assert decoder.feed(b"\r\n\r\n\0" + message("msg-id::1")) == [Message(SESSION, "1")]


@pytest.mark.rule("SABC-104")
def test_the_rest_of_a_truncated_message_is_dropped_up_to_its_real_end() -> None:
    piece = message("msg-id::1", "msg-more::yes", body="x" * 200, end="")
    data = piece + piece + message("msg-id::2", body="other") + piece + message("msg-id::1", body="end")
    data += message("msg-id::1", body="a new one")
    frames = server(max_message=400).feed(data)
    assert octetwise(server(max_message=400), data) == frames
    [first, cut, other, rest, end, new] = frames
    assert isinstance(first, Message)
    assert first.more
    assert isinstance(cut, Message)
    assert cut.truncated
    assert not cut.more
    assert len(first.body) + len(cut.body) == 400 - 2 * (len(piece) - 200)
    assert other == Message(SESSION, "2", b"other")
    for dropped in (rest, end):
        assert isinstance(dropped, Discarded)
        assert dropped.rule == "SABC-104"
        assert dropped.reply is None
    assert new == Message(SESSION, "1", b"a new one")


@pytest.mark.rule("SABC-05", "SABC-104")
def test_the_limit_may_fall_into_the_head_of_a_later_frame() -> None:
    piece = message("msg-id::1", "msg-more::yes", body="x" * 50, end="")
    data = piece + message("msg-id::1", body="y") + message("msg-id::1", body="z")
    for limit in range(len(piece), len(piece) + 20):
        frames = octetwise(server(max_message=limit), data)
        if len(piece) <= limit < len(message("msg-id::1", body="z")):
            assert len(frames) == 3
        assert frames[:2] == [
            Message(SESSION, "1", b"x" * 50, more=True),
            Message(SESSION, "1", b"", (("truncated", "yes"),)),
        ]


@pytest.mark.rule("SABC-05", "SABC-103")
def test_a_frame_with_neither_over_the_limit_is_truncated_because_the_limit_comes_first() -> None:
    data = message("msg-id::1", body="x" * 100, end="") + message("msg-id::1", body="new")
    for frames in (server(max_message=120).feed(data), octetwise(server(max_message=120), data)):
        [cut, following] = frames
        assert isinstance(cut, Message)
        assert cut.truncated
        assert following == Message(SESSION, "1", b"new")


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


def test_many_frames_before_the_next_null_portion_are_told_apart() -> None:
    broken = message("msg-id::1", body="no end", end="")
    frames = server().feed(broken * 2000 + message("msg-id::2", body="x" * 2000) + message("msg-id::3", body="a\nb"))
    assert [code_of(frame) for frame in frames[:2000]] == ["400"] * 2000
    assert frames[2000:] == [Message(SESSION, "2", b"x" * 2000), Message(SESSION, "3", b"a\r\nb")]


@pytest.mark.rule("SABC-128")
def test_the_end_of_the_connection_may_pass_the_limit_of_dropped_messages() -> None:
    decoder = server(max_unfinished=0, max_dropped=0)
    assert decoder.feed(message("msg-id::1", "msg-more::yes", end="")) == []
    with pytest.raises(RemoteProtocolError, match="SABC-128"):
        decoder.finish()


@pytest.mark.rule("SABC-130")
def test_an_error_over_the_size_limit_is_discarded() -> None:
    data = encode(Error("400", b"x" * 5000))
    [frame] = server(max_message=1000).feed(data)
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-130"
    assert frame.reply is None
    assert frame.size == len(data)
    assert octetwise(server(max_message=1000), data) == [frame]


@pytest.mark.rule("SABC-107")
def test_frames_of_different_messages_interleave() -> None:
    pieces = [
        ("1", "a", True),
        ("2", "A", True),
        ("1", "b", True),
        ("3", "!", False),
        ("2", "B", False),
        ("1", "c", False),
    ]
    data = b"".join(encode(Message(SESSION, name, body.encode(), more=more)) for name, body, more in pieces)
    made = whole(server().feed(data))
    assert [(item.msg_id, item.body) for item in made if not isinstance(item, Discarded)] == [
        ("3", b"!"),
        ("2", b"AB"),
        ("1", b"abc"),
    ]


@pytest.mark.rule("SABC-108", "SABC-127")
def test_the_65th_unfinished_message_is_refused_and_dropped_up_to_its_end() -> None:
    decoder = server()
    opened = b"".join(encode(Message(SESSION, str(number), b"x", more=True)) for number in range(65))
    frames = decoder.feed(opened + message("msg-id::64", "msg-more::yes", body="y", end="") + BOUNDARY)
    assert [frame.msg_id for frame in frames if isinstance(frame, Message)] == [str(number) for number in range(64)]
    [refused, dropped] = frames[64:]
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-108"
    assert refused.reply == Error("429", refused.reason.encode(), SESSION, "64")
    assert isinstance(dropped, Discarded)
    assert dropped.reply is None
    # a message in one frame is not unfinished, the end of the refused one is dropped, and an ended one makes room
    rest = b"msg-id::99\r\n\r\n\0" + message("msg-id::64", body="z") + message("msg-id::0", body="!")
    rest += encode(Message(SESSION, "64", b"again", more=True)) + BOUNDARY
    [single, end, zero, again] = decoder.feed(rest)
    assert single == Message(SESSION, "99")
    assert isinstance(end, Discarded)
    assert end.reply is None
    assert zero == Message(SESSION, "0", b"!")
    assert again == Message(SESSION, "64", b"again", more=True)


@pytest.mark.rule("SABC-128")
def test_too_many_dropped_messages_end_the_connection() -> None:
    decoder = server(max_unfinished=1, max_dropped=3)
    data = b"".join(encode(Message(SESSION, str(number), b"x", more=True)) for number in range(6))
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(data)
    assert caught.value.rule == "SABC-128"
    assert isinstance(caught.value.reply, Error)
    assert caught.value.reply.error_code == "429"
    assert caught.value.reply.session_id == SESSION
    assert len(caught.value.frames) == 4
    assert decoder.pending() == 0


@pytest.mark.rule("SABC-02")
def test_without_a_session_any_session_id_is_left_to_the_state_machine() -> None:
    assert Decoder().feed(message("msg-id::1", session="any")) == [Message("any", "1")]


@pytest.mark.rule("SABC-103", "SABC-104")
def test_memory_grows_with_what_arrives_and_never_past_the_limit() -> None:
    decoder = server(max_message=64 * 1024 * 1024)
    tracemalloc.start()
    try:
        decoder.feed(message("msg-id::1", "content-length::999999999999", end="") + b"x" * 100)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert decoder.pending() < 300


def test_a_large_body_full_of_near_ends_is_read_whole() -> None:
    unit = b"\r\n\r\n\r\n\r\nMESSAGE\r\nsession-id::" + SESSION[:-1].encode() + b"\r\nDISCONNECT\r\n\r\n"
    body = unit * 20000
    data = encode(Message(SESSION, "1", body))
    decoder = server()
    frames = [frame for at in range(0, len(data), 4099) for frame in decoder.feed(data[at : at + 4099])]
    assert frames == [Message(SESSION, "1", body)]


class TestMessageTransport:
    """One message is one frame."""

    @pytest.mark.rule("SABC-73")
    @pytest.mark.parametrize("text", [False, True])
    def test_text_and_binary_are_alike(self, text: bool) -> None:
        frames: list[Frame] = [
            Connect("me", "ß"),
            Connected(SESSION, 0),
            Message(SESSION, "1", "grüße".encode()),
            Message(SESSION, "2", b"half", more=True),
            Message(SESSION, "2"),
            Error("400", b"no", SESSION),
            Disconnect(SESSION),
            Disconnecting(SESSION),
        ]
        decoder = MessageDecoder()
        for frame in frames:
            octets = encode(frame)
            assert decoder.feed(octets.decode() if text else octets) == [frame]
        assert decoder.pending() == 0
        assert decoder.finish() == []
        assert decoder.session_id == SESSION

    @pytest.mark.rule("SABC-73", "SABC-13")
    def test_a_frame_ends_with_its_message(self) -> None:
        decoder = MessageDecoder(session_id=SESSION)
        body = b"x" + BOUNDARY + b"y\r\n\r\n"
        data = message("msg-id::1", "msg-more::yes", end="") + body
        assert decoder.feed(data) == [Message(SESSION, "1", body, more=True)]

    @pytest.mark.rule("SABC-73")
    def test_nothing_follows_the_null_portion(self) -> None:
        [frame] = MessageDecoder(session_id=SESSION).feed(message("msg-id::1", body="x") + b"!")
        assert isinstance(frame, Discarded)
        assert frame.rule == "SABC-73"
        assert code_of(frame) == "400"

    @pytest.mark.rule("SABC-76")
    @pytest.mark.parametrize("end", [b"", b"\0", b"\r\n\r\n\0"])
    def test_a_nul_behind_a_command_without_body_is_optional(self, end: bytes) -> None:
        decoder = MessageDecoder(session_id=SESSION)
        assert decoder.feed(encode(Disconnect(SESSION))[:-1] + end) == [Disconnect(SESSION)]
        [frame] = decoder.feed(encode(Disconnect(SESSION))[:-1] + b"x" + end)
        assert isinstance(frame, Discarded)
        assert frame.rule == "SABC-76"

    @pytest.mark.rule("SABC-106", "SABC-61")
    def test_neither_null_portion_nor_msg_more_shows_at_once(self) -> None:
        [frame] = MessageDecoder(session_id=SESSION).feed(message("msg-id::1", body="x", end=""))
        assert isinstance(frame, Discarded)
        assert frame.rule == "SABC-106"
        assert code_of(frame) == "400"

    @pytest.mark.rule("SABC-09", "SABC-120")
    def test_a_message_without_an_empty_line_is_malformed(self) -> None:
        decoder = MessageDecoder(session_id=SESSION, max_head=512)
        for data, code in ((b"", "400"), (b"MESSAGE\r\na::b\r\n", "400"), (b"x" * 512, "429")):
            [frame] = decoder.feed(data)
            assert code_of(frame) == code

    @pytest.mark.rule("SABC-96")
    def test_a_connect_that_can_not_be_accepted_ends_the_connection(self) -> None:
        decoder = MessageDecoder(session_id=SESSION)
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="SABC-85") as caught:
                decoder.feed("CONNECT\r\na::b\r\n\r\n")
            assert caught.value.position == 0
            assert isinstance(caught.value.reply, Error)

    @pytest.mark.rule("SABC-103", "SABC-104", "SABC-130")
    def test_the_size_limit_holds_too(self) -> None:
        decoder = MessageDecoder(max_message=150)
        decoder.session_id = SESSION
        piece = message("msg-id::1", "msg-more::yes", body="x" * 40, end="")
        [first] = decoder.feed(piece)
        [cut] = decoder.feed(piece)
        assert isinstance(first, Message)
        assert isinstance(cut, Message)
        assert cut.truncated
        [dropped] = decoder.feed(piece)
        assert isinstance(dropped, Discarded)
        assert dropped.rule == "SABC-104"
        [dropped] = decoder.feed(message("msg-id::1"))
        assert isinstance(dropped, Discarded)
        assert decoder.feed(message("msg-id::1")) == [Message(SESSION, "1")]
        [large] = decoder.feed(encode(Error("400", b"x" * 200)))
        assert isinstance(large, Discarded)
        assert large.rule == "SABC-130"

    @pytest.mark.rule("SABC-108", "SABC-128")
    def test_the_number_of_unfinished_messages_is_limited_too(self) -> None:
        decoder = MessageDecoder(session_id=SESSION, max_unfinished=1, max_dropped=1)
        assert len(decoder.feed(encode(Message(SESSION, "1", b"x", more=True)))) == 1
        [refused] = decoder.feed(encode(Message(SESSION, "2", b"x", more=True)))
        assert code_of(refused) == "429"
        with pytest.raises(RemoteProtocolError, match="SABC-128"):
            decoder.feed(encode(Message(SESSION, "3", b"x", more=True)))

    @pytest.mark.rule("SABC-70")
    def test_half_a_surrogate_in_a_header_is_malformed(self) -> None:
        [frame] = MessageDecoder(session_id=SESSION).feed(f"MESSAGE\r\nsession-id::{SESSION}\r\nk::\ud800\r\n\r\n\0")
        assert isinstance(frame, Discarded)
        assert frame.rule == "SABC-70"
