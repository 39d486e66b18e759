"""What the hub writes to one sABC connection: answers, errors and pushed messages, on a byte stream or a WebSocket.

Frames that are written most are put together from prepared parts; all others go through the codec's ``encode``.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.hub.client import Client
from polywire.hub.message import Message
from polywire.hub.outbox import JOIN_BELOW
from polywire.hub.services import CallError
from polywire.protocols.sabc.frames import (
    EMPTY_LINE,
    TERMINATOR,
    Error,
    cut_before,
    encode,
    error_reply,
    may_begin,
    unfit,
)
from polywire.protocols.sabc.headers import SENT_MSG_ID, TRUNCATED, Header, error_headers
from polywire.protocols.sabc.translation import apart, content, shared
from polywire.wire import websocket
from polywire.wire.frame import Frame

MORE: Final = b"\r\nmsg-more::yes\r\n\r\n"
LONGEST: Final = 1 << 62
LEAST_PIECE: Final = 256
"""Bytes of a body that a frame has at least, however long its headers are."""

OK: Final = b"\r\n\r\nOK\r\n\r\n\0"
OK_TRUNCATED: Final = b"\r\ntruncated::yes\r\n\r\nOK\r\n\r\n\0"  # SABC-105
SLOW_READER: Final = "slow-reader"
FORMS: Final = 16
"""How many forms each protocol may keep with a message; sABC has one."""

_writer: Final = BytesWriter()


@final
class Line:
    """The way to one client. ``messages``: each frame is a WebSocket message. ``last`` is the last msg-id given.

    ``frame_size``: messages that make a longer frame are written in several (SABC-135), 0 for never.
    """

    def __init__(self, client: Client, session_id: str, *, messages: bool, frame_size: int = 0) -> None:
        self.client: Final = client
        self.session_id: Final = session_id
        self.messages: Final = messages
        self.last: i64 = 0
        self._frame_size: i64 = frame_size or LONGEST
        self._key: Final = client.protocol * FORMS
        self._message: Final = b"MESSAGE\r\nsession-id::" + session_id.encode()

    def next_id(self) -> str:
        """SABC-45: an id no other message of this session from the hub has."""
        self.last += 1
        return str(self.last)

    def write(self, octets: bytes) -> None:
        """Write a frame that must not be dropped."""
        self.client.outbox.put(self._framed(octets))

    def frame(self, frame: Frame) -> None:
        """Write one of the codec's frames."""
        self.write(encode(frame))

    def ok(self, msg_id: str, *, truncated: bool) -> bytes:
        """The acknowledgement of a client's message, to be written when it is due."""
        return self._message + b"\r\nref-msg-id::" + msg_id.encode() + (OK_TRUNCATED if truncated else OK)

    def error(self, code: str, reason: str, msg_id: str | None = None) -> None:
        """Write why the client's message was not accepted."""
        self.frame(error_reply(code, reason, self.session_id, msg_id))

    def call_failed(self, error: CallError, msg_id: str) -> None:
        """Write why the client's call failed (SABC-138, SABC-139)."""
        headers = error_headers(error.tag, error.retry_after, by_service=not error.from_hub)
        self.frame(Error(str(error.code), error.text.encode(errors="replace"), self.session_id, msg_id, headers))

    def too_late(self, code: str, reason: str, msg_id: str) -> None:
        """Write an ERROR about a message that the hub sent. Its id is the hub's, not one of the client's (SABC-134)."""
        headers: tuple[Header, ...] = ((SENT_MSG_ID, msg_id),)
        self.frame(Error(code, reason.encode(errors="replace"), self.session_id, None, headers))

    def answer(self, msg_id: str, message: Message, *, truncated: bool = False) -> None:
        """Write the reply to the client's message, unless the reader is too slow for replies.

        ``truncated``: the client's message was cut, and the reply says so.
        """
        ids = b"\r\nref-msg-id::" + msg_id.encode()
        mark = b"\r\ntruncated::yes" if truncated and not _has_header(message, TRUNCATED) else b""
        octets = self._single(ids + mark, message)
        client = self.client
        if i64(len(octets)) > self._frame_size:
            taken = client.outbox.reply_all(self._frames(b"", octets, ids))
        else:
            taken = client.outbox.reply(self._framed(octets))
        if taken:
            client.counters.messages_out += 1
        else:
            client.counters.drop(SLOW_READER)
            client.outbox.count_dropped(message.channel, 1)

    def ask(self, msg_id: str, service: str, method: str, message: Message) -> None:
        """Write a call the client is to answer; service and method can stand in a header."""
        ids = b"\r\nmsg-id::" + msg_id.encode()
        named = "\r\nservice::" + service + "\r\nmethod::" + method
        octets = self._single(ids + named.encode(), message)
        if i64(len(octets)) > self._frame_size:
            for chunk in self._frames(b"", octets, ids):
                self.client.outbox.put(chunk)
        else:
            self.write(octets)
        self.client.counters.messages_out += 1

    def prefix(self, subscription: str, *, send_only: bool) -> bytes:
        """How the messages pushed for a subscription begin, up to their msg-id (SABC-114, SABC-115)."""
        begin = self._message + (b"\r\nsend-only::yes" if send_only else b"")
        return begin + b"\r\nsubscription::" + subscription.encode() + b"\r\nmsg-id::"

    def offer(self, prefix: bytes, message: Message) -> None:
        """Push a topic's message, unless the reader is too slow."""
        client = self.client
        octets = self._octets(message)
        self.last += 1
        number = str(self.last).encode()
        length: i64 = i64(len(prefix)) + i64(len(number)) + i64(len(octets))
        if length > self._frame_size:
            taken = client.outbox.offer_all(self._frames(prefix + number, octets, b"\r\nmsg-id::" + number))
        elif length < JOIN_BELOW:
            out = _writer
            out.truncate(0)
            if self.messages:
                out.write(websocket.header(websocket.TEXT, length))
            out.write(prefix)
            out.write(number)
            out.write(octets)
            taken = client.outbox.offer(out.getvalue())
        else:
            head = prefix + number
            if self.messages:
                head = websocket.header(websocket.TEXT, length) + head
            taken = client.outbox.offer_pair(head, octets)
        if taken:
            client.counters.messages_out += 1
        else:
            client.counters.drop(SLOW_READER)
            client.outbox.count_dropped(message.channel, 1)

    def push(self, prefix: bytes, msg_id: str, message: Message) -> None:
        """Push a queue's message, which there is room for."""
        number = msg_id.encode()
        octets = self._octets(message)
        first = prefix + number
        if i64(len(first)) + i64(len(octets)) > self._frame_size:
            for chunk in self._frames(first, octets, b"\r\nmsg-id::" + number):
                self.client.outbox.push(chunk)
        else:
            self.client.outbox.push(self._framed(first + octets))
        self.client.counters.messages_out += 1

    def _octets(self, message: Message) -> bytes:
        """What stands behind the msg-id of a pushed message: shared, but where its body might be taken for frames."""
        known = message.encoded.get(self._key)
        if known is None:
            known = shared(message, self._key)
        return known if isinstance(known, bytes) else apart(message, self.session_id)

    def _frames(self, first: bytes, octets: bytes, ids: bytes) -> list[bytes | memoryview]:
        """SABC-135: one message, all of whose octets are ``first`` and ``octets``, as the chunks of several frames.

        The body is not copied. ``ids`` is the line that all frames have in common.
        """
        blank: i64 = octets.find(EMPTY_LINE)
        at = blank + i64(len(EMPTY_LINE))
        end = i64(len(octets)) - i64(len(TERMINATOR))
        body = memoryview(octets)
        head = first + octets[:blank] + MORE
        later = self._message + ids
        out: list[bytes | memoryview] = []
        while True:
            room: i64 = max(self._frame_size - i64(len(head)), i64(LEAST_PIECE))
            if end - at <= room:
                break
            cut = cut_before(octets, at, at + room)
            if cut == at:  # a long run of NULs, say
                cut = at + room
                while cut < end and not may_begin(octets, cut):
                    cut += 1
                if cut == end:
                    break
            self._begin(out, head, cut - at)
            out.append(body[at:cut])
            at = cut
            head = later + MORE
        if not out:  # there is nothing to cut, only long headers
            self._begin(out, first, len(octets))
            out.append(octets)
        else:
            self._begin(out, later + EMPTY_LINE, end - at + i64(len(TERMINATOR)))
            out.append(body[at:])
        return out

    def _begin(self, out: list[bytes | memoryview], head: bytes, rest: i64) -> None:
        """Begin a frame of which ``rest`` octets are still to come."""
        if self.messages:
            out.append(websocket.header(websocket.TEXT, i64(len(head)) + rest))
        out.append(head)

    def _framed(self, octets: bytes) -> bytes:
        """All our frames are UTF-8, so on a WebSocket they are text."""
        return websocket.text(octets) if self.messages else octets

    def _single(self, ids: bytes, message: Message) -> bytes:
        """A message for this client only."""
        plain = unfit(message.body, self.session_id) is None
        return self._message + ids + content(message, plain=plain)


def _has_header(message: Message, wanted: str) -> bool:
    for key, _ in message.headers:
        if key == wanted:
            return True
    return False
