"""sABC's frames where each is a message of its own."""

import pytest

from polywire.protocols.sabc import (
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    MessageDecoder,
    RemoteProtocolError,
    encode,
)
from polywire.wire.frame import Discarded, Frame
from tests.protocols.sabc.wire import SESSION, code_of, message

BOUNDARY = f"MESSAGE\r\nsession-id::{SESSION}\r\n".encode()


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

    @pytest.mark.rule("SABC-132")
    @pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\n\r\n", b"\r\n\r\n\0"])
    def test_without_a_body_the_empty_line_and_the_nul_may_be_missing(self, end: bytes) -> None:
        own = f"session-id::{SESSION}".encode()
        decoder = MessageDecoder(session_id=SESSION)
        assert decoder.feed(b"CONNECT\r\nclient-id::me" + end) == [Connect("me")]
        assert decoder.feed(b"CONNECTED\r\n" + own + end) == [Connected(SESSION)]
        assert decoder.feed(b"MESSAGE\r\n" + own + b"\r\nmsg-id::1" + end) == [Message(SESSION, "1")]
        assert decoder.feed(b"ERROR\r\nerror-code::403" + end) == [Error("403")]
        assert decoder.feed(b"DISCONNECT\r\n" + own + end) == [Disconnect(SESSION)]
        assert decoder.feed(b"DISCONNECTING\r\n" + own + end) == [Disconnecting(SESSION)]
        [refused] = decoder.feed(b"MESSAGE\r\n" + own + b"\r\nbroken\r\nmsg-id::1" + end)
        assert isinstance(refused, Discarded)
        assert isinstance(refused.reply, Error)
        assert refused.reply.ref_msg_id == "1"

    @pytest.mark.rule("SABC-132", "SABC-59")
    @pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\n\r\n"])
    def test_a_piece_without_a_body_does_not_end_its_message(self, end: bytes) -> None:
        head = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::1\r\nmsg-more::yes".encode()
        assert MessageDecoder(session_id=SESSION).feed(head + end) == [Message(SESSION, "1", more=True)]

    @pytest.mark.rule("SABC-132", "SABC-120")
    def test_a_message_without_an_empty_line_is_all_head(self) -> None:
        decoder = MessageDecoder(session_id=SESSION, max_head=512)
        for data, code in ((b"", "400"), (b"MESSAGE\r\na::b\r\n", "401"), (b"x" * 512, "429")):
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
