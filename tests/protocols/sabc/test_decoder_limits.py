"""sABC messages at their limits: size, unfinished and dropped ones, memory."""

import tracemalloc

import pytest

from polywire.protocols.sabc import (
    Decoder,
    Error,
    Message,
    MessageDecoder,
    RemoteProtocolError,
    Whole,
    encode,
)
from polywire.wire.frame import Discarded
from tests.protocols.sabc.wire import SESSION, code_of, message, octetwise, server, whole

BOUNDARY = f"MESSAGE\r\nsession-id::{SESSION}\r\n".encode()


@pytest.mark.rule("SABC-05", "SABC-62", "SABC-103")
def test_a_message_of_exactly_the_limit_is_whole_and_one_octet_more_is_not() -> None:
    data = message("msg-id::1", body="abcdef")
    assert server(max_message=len(data)).feed(data) == [Message(SESSION, "1", b"abcdef")]
    for over in range(1, 6):  # the null portion lies across the limit
        [frame] = octetwise(server(max_message=len(data) - over), data)
        assert frame == Message(SESSION, "1", b"abcdef", (("truncated", "yes"),))
    [frame] = server(max_message=len(data) - 7).feed(data)
    assert frame == Message(SESSION, "1", b"abcd", (("truncated", "yes"),))
    head = len(message("msg-id::1", end="")) - 4
    [frame] = server(max_message=head).feed(data)
    assert frame == Message(SESSION, "1", b"", (("truncated", "yes"),))


@pytest.mark.rule("SABC-133")
@pytest.mark.parametrize("messages", [False, True], ids=["stream", "messages"])
def test_headers_that_are_over_the_size_limit_by_themselves_are_refused(messages: bool) -> None:
    first = message("msg-id::1", "destination::far/too/long", "msg-more::yes", end="")
    size = len(first) - 4
    frames: list[bytes] = [
        first,
        message("msg-id::2", body="between"),
        message("msg-id::1", body="the rest of it"),
        message("msg-id::1", body="a new one"),
    ]
    assert max(map(len, frames[1:])) < size
    if messages:
        by_message = MessageDecoder(session_id=SESSION, max_message=size - 1)
        got = [each for frame in frames for each in by_message.feed(frame)]
    else:
        got = server(max_message=size - 1).feed(b"".join(frames))
        assert octetwise(server(max_message=size - 1), b"".join(frames)) == got
    [refused, between, rest, new] = got
    assert isinstance(refused, Discarded)
    assert (refused.rule, code_of(refused)) == ("SABC-133", "400")
    assert isinstance(refused.reply, Error)
    assert refused.reply.ref_msg_id == "1"
    assert between == Message(SESSION, "2", b"between")
    assert isinstance(rest, Discarded)
    assert rest.reply is None
    assert new == Message(SESSION, "1", b"a new one")


@pytest.mark.rule("SABC-103", "SABC-133")
def test_a_message_whose_later_headers_pass_the_limit_is_truncated() -> None:
    first = message("msg-id::1", "msg-more::yes", body="x" * 100, end="")
    frames = server(max_message=len(first) + 20).feed(first + message("msg-id::1", body="y"))
    assert whole(frames) == [Whole(SESSION, "1", b"x" * 100, (("truncated", "yes"),), truncated=True)]


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
