"""What the hub sends to an sABC client: answers, errors, calls, and messages of topics and queues.

``Line`` writes to one connection, a byte stream or a WebSocket. Frames that are written most are put together from
prepared parts; all others go through the codec's ``encode``. All subscribers of a message get the same bytes from the
line after their msg-id on, so those are made once and kept with the message (``shared``). What sABC can't write (a
value with ``::`` or a line end in it, an attachment) is left out.
"""

from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from polywire.hub.channels import to_stars
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Date, Headers, HeaderValue, Message
from polywire.hub.outbox import JOIN_BELOW
from polywire.hub.peer import Refused
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.hub.services import FAILED_CODE, Call, Caller, CallError, Provider, Services, service_error
from polywire.protocols.sabc.errors import TOO_SLOW
from polywire.protocols.sabc.frames import (
    CR,
    EMPTY_LINE,
    NUL,
    TERMINATOR,
    Error,
    cut_before,
    encode,
    error_reply,
    may_begin,
    to_base64,
    unfit,
)
from polywire.protocols.sabc.headers import (
    BASE64,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    DESTINATION,
    ERROR_TAG,
    METHOD,
    OP,
    RESERVED,
    SENT_MSG_ID,
    SERVICE,
    SUBSCRIPTION,
    TRUNCATED,
    Header,
    error_headers,
    header,
    http_date,
    line_problem,
    read_retry_after,
)
from polywire.wire import websocket
from polywire.wire.frame import Frame

OWN: Final = frozenset({OP, DESTINATION, SERVICE, METHOD, SUBSCRIPTION, CONTENT_TYPE, *RESERVED})
"""Headers with a meaning in sABC itself: one of that name in a message is not written."""

SESSION_MARK: Final = b"\r\nsession-id::"
MAX_DESTINATIONS: Final = 4096
LONGEST_KEPT: Final = 256
"""How many destinations, and of what length, are kept as header lines."""

MORE: Final = b"\r\nmsg-more::yes\r\n\r\n"
LONGEST: Final = 1 << 62
LEAST_PIECE: Final = 256
"""Bytes of the body that each frame has at least, however long its headers are."""

OK: Final = b"\r\n\r\nOK\r\n\r\n\0"
OK_TRUNCATED: Final = b"\r\ntruncated::yes\r\n\r\nOK\r\n\r\n\0"  # SABC-105
FORMS: Final = 16
"""How many forms each protocol may keep with a message; sABC has one."""

_destinations: Final[dict[str, bytes]] = {}
_writer: Final = BytesWriter()


@final
@mypyc_attr(acyclic=True)
class Marked:
    """In place of shared bytes: the body has a line ``session-id::…`` in it, so each session must look for its own."""


MARKED: Final = Marked()


def shared(message: Message, key: int) -> object:
    """What follows the msg-id of a pushed message: bytes, or ``MARKED``. It is kept with the message."""
    body = message.body
    made: object
    if not body.isascii() or NUL in body or CR in body:
        plain = unfit(body, None) is None
        if plain and SESSION_MARK in body:
            made = MARKED
        else:
            made = destination_line(message.channel) + content(message, plain=plain)
    elif message.headers or message.content_type or not body or len(body) >= JOIN_BELOW:
        made = destination_line(message.channel) + content(message, plain=True)
    else:
        out = _writer
        out.truncate(0)
        out.write(destination_line(message.channel))
        out.write(EMPTY_LINE)
        out.write(body)
        out.write(TERMINATOR)
        made = out.getvalue()
    message.encoded[key] = made
    return made


def apart(message: Message, session_id: str) -> bytes:
    """The same for one session, whose own id may be in the body (SABC-126)."""
    return destination_line(message.channel) + content(message, plain=unfit(message.body, session_id) is None)


def destination_line(channel: str) -> bytes:
    """The line with the channel's name, or nothing if no header can hold it."""
    line = _destinations.get(channel)
    if line is None:
        name = to_stars(channel)
        line = b"\r\ndestination::" + name.encode() if line_problem(DESTINATION, name) is None else b""
        if len(channel) <= LONGEST_KEPT:
            if len(_destinations) >= MAX_DESTINATIONS:
                _destinations.clear()
            _destinations[channel] = line
    return line


def content(message: Message, *, plain: bool) -> bytes:
    """The message's headers, the empty line, its body and the null portion; as base64 if it is not ``plain``."""
    body = message.body
    if not message.headers and not message.content_type:
        if not body:
            return TERMINATOR
        if plain:
            return EMPTY_LINE + body + TERMINATOR
    lines: list[str] = [""]
    if message.content_type and line_problem(CONTENT_TYPE, message.content_type) is None:
        lines.append("content-type::" + message.content_type)
    for key, value in message.headers:
        text = header_text(value)
        if key in OWN or text is None or line_problem(key, text) is not None:
            continue
        if key != CONTENT_ENCODING or (plain and text != BASE64):
            lines.append(key + "::" + text)
    if not plain:
        lines.append("content-encoding::base64")
        body = to_base64(body)
    head = "\r\n".join(lines).encode() + EMPTY_LINE
    return head + body + TERMINATOR if body else head + b"\0"


def header_text(value: HeaderValue) -> str | None:
    """A header's value as text, dates as in HTTP."""
    if isinstance(value, str):
        return value
    if isinstance(value, Date):
        try:
            return http_date(int(value.seconds))
        except (ValueError, OverflowError):
            return None
    return str(value)


def incoming(channel: str, body: bytes, headers: tuple[Header, ...], *, time: int, origin: int) -> Message:
    """The hub's message for what a client sent: its content type, and all other headers (SABC-118)."""
    content_type = ""
    carried: Headers = ()
    if headers:
        kept: list[tuple[str, HeaderValue]] = []
        for key, value in headers:
            if key == CONTENT_TYPE:
                content_type = value
            elif key not in OWN:
                kept.append((key, value))
        carried = tuple(kept)
    return Message(channel, body, content_type, carried, time=time, origin=origin)


@final
class Line:
    """Writes to one client. ``messages``: each frame is a WebSocket message. ``last`` is the last msg-id used.

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
        """SABC-45: an id that no other message of the hub has in this session."""
        self.last += 1
        return str(self.last)

    def write(self, data: bytes) -> None:
        """Write a frame that must not be dropped."""
        self.client.outbox.put(self._framed(data))

    def write_all(self, frames: list[bytes]) -> None:
        """Write frames that must not be dropped."""
        for data in frames:
            self.write(data)

    def frame(self, frame: Frame) -> None:
        """Write one of the codec's frames."""
        self.write(encode(frame))

    def ok(self, msg_id: str, *, truncated: bool) -> bytes:
        """The acknowledgement of a client's message, to be written once the message is accepted."""
        return self._message + b"\r\nref-msg-id::" + msg_id.encode() + (OK_TRUNCATED if truncated else OK)

    def error(self, code: str, reason: str, msg_id: str | None = None) -> None:
        """Write why the client's message was not accepted."""
        self.frame(error_reply(code, reason, self.session_id, msg_id))

    def call_failed(self, error: CallError, msg_id: str) -> None:
        """Write why the client's call failed (SABC-138, SABC-139)."""
        headers = error_headers(error.tag, error.retry_after, by_service=not error.from_hub)
        self.frame(Error(str(error.code), error.text.encode(errors="replace"), self.session_id, msg_id, headers))

    def too_late(self, code: str, reason: str, msg_id: str) -> None:
        """Write an ERROR about a message of the hub, whose id is not one of the client's (SABC-134)."""
        headers = ((SENT_MSG_ID, msg_id),)
        self.frame(Error(code, reason.encode(errors="replace"), self.session_id, None, headers))

    def answer(self, msg_id: str, message: Message, *, truncated: bool = False) -> None:
        """Write the reply to the client's message, unless the reader is too slow for replies.

        ``truncated``: the client's message was cut, and the reply says so.
        """
        ids = b"\r\nref-msg-id::" + msg_id.encode()
        mark = b"\r\ntruncated::yes" if truncated and not _has_header(message, TRUNCATED) else b""
        data = self._single(ids + mark, message)
        client = self.client
        cut = i64(len(data)) > self._frame_size
        client.reply(self._frames(b"", data, ids) if cut else [self._framed(data)], message.channel)

    def ask(self, msg_id: str, service: str, method: str, message: Message) -> None:
        """Write a call for the client to answer. Service and method must fit into headers."""
        ids = b"\r\nmsg-id::" + msg_id.encode()
        named = "\r\nservice::" + service + "\r\nmethod::" + method
        data = self._single(ids + named.encode(), message)
        if i64(len(data)) > self._frame_size:
            for chunk in self._frames(b"", data, ids):
                self.client.outbox.put(chunk)
        else:
            self.write(data)
        self.client.counters.messages_out += 1

    def prefix(self, subscription: str, *, send_only: bool) -> bytes:
        """How the messages pushed for a subscription begin, up to their msg-id (SABC-114, SABC-115)."""
        begin = self._message + (b"\r\nsend-only::yes" if send_only else b"")
        return begin + b"\r\nsubscription::" + subscription.encode() + b"\r\nmsg-id::"

    def offer(self, prefix: bytes, message: Message) -> None:
        """Push a topic's message, unless the reader is too slow."""
        client = self.client
        data = self._shared(message)
        self.last += 1
        number = str(self.last).encode()
        length: i64 = i64(len(prefix)) + i64(len(number)) + i64(len(data))
        if length > self._frame_size:
            client.deliver_all(self._frames(prefix + number, data, b"\r\nmsg-id::" + number), message.channel)
        elif length < JOIN_BELOW:
            out = _writer
            out.truncate(0)
            if self.messages:
                out.write(websocket.header(websocket.TEXT, length))
            out.write(prefix)
            out.write(number)
            out.write(data)
            client.deliver(out.getvalue(), message.channel)
        else:
            head = prefix + number
            if self.messages:
                head = websocket.header(websocket.TEXT, length) + head
            client.deliver_pair(head, data, message.channel)

    def push(self, prefix: bytes, msg_id: str, message: Message) -> None:
        """Push a queue's message, for which there is room."""
        number = msg_id.encode()
        data = self._shared(message)
        first = prefix + number
        if i64(len(first)) + i64(len(data)) > self._frame_size:
            for chunk in self._frames(first, data, b"\r\nmsg-id::" + number):
                self.client.outbox.push(chunk)
        else:
            self.client.outbox.push(self._framed(first + data))
        self.client.counters.messages_out += 1

    def _shared(self, message: Message) -> bytes:
        """What follows the msg-id of a pushed message: shared, unless its body could be taken for frames."""
        known = message.encoded.get(self._key)
        if known is None:
            known = shared(message, self._key)
        return known if isinstance(known, bytes) else apart(message, self.session_id)

    def _frames(self, first: bytes, rest: bytes, ids: bytes) -> list[bytes | memoryview]:
        """SABC-135: one message, ``first`` and ``rest`` together, as the chunks of several frames.

        The body is not copied. ``ids`` is the line that all its frames have.
        """
        blank: i64 = rest.find(EMPTY_LINE)
        at = blank + i64(len(EMPTY_LINE))
        end = i64(len(rest)) - i64(len(TERMINATOR))
        body = memoryview(rest)
        head = first + rest[:blank] + MORE
        later = self._message + ids
        out: list[bytes | memoryview] = []
        while True:
            room: i64 = max(self._frame_size - i64(len(head)), i64(LEAST_PIECE))
            if end - at <= room:
                break
            cut = cut_before(rest, at, at + room)
            if cut == at:  # a long run of NULs, say
                cut = at + room
                while cut < end and not may_begin(rest, cut):
                    cut += 1
                if cut == end:
                    break
            self._begin(out, head, cut - at)
            out.append(body[at:cut])
            at = cut
            head = later + MORE
        if not out:  # there is nothing to cut, only long headers
            self._begin(out, first, len(rest))
            out.append(rest)
        else:
            self._begin(out, later + EMPTY_LINE, end - at + i64(len(TERMINATOR)))
            out.append(body[at:])
        return out

    def _begin(self, out: list[bytes | memoryview], head: bytes, rest: i64) -> None:
        """Begin a frame of which ``rest`` bytes follow."""
        if self.messages:
            out.append(websocket.header(websocket.TEXT, i64(len(head)) + rest))
        out.append(head)

    def _framed(self, data: bytes) -> bytes:
        """The frame as it is written: all are UTF-8, so on a WebSocket they are text."""
        return websocket.text(data) if self.messages else data

    def _single(self, ids: bytes, message: Message) -> bytes:
        """A message for this client only."""
        plain = unfit(message.body, self.session_id) is None
        return self._message + ids + content(message, plain=plain)


def _has_header(message: Message, wanted: str) -> bool:
    for key, _ in message.headers:
        if key == wanted:
            return True
    return False


@final
class SabcSubscription(Subscription):
    """A topic, or a pattern of topics. Each gets its own copy of a message, with its id in ``subscription``."""

    def __init__(self, pattern: str, group: int, line: Line, msg_id: str) -> None:
        super().__init__(pattern, line.client.outbox, group)
        self._line: Final = line
        self._prefix: Final = line.prefix(msg_id, send_only=True)

    def deliver(self, message: Message) -> None:
        """Push the message."""
        self._line.offer(self._prefix, message)


@final
class Queues:
    """The queues one client consumes, and what it has not acknowledged: at most ``most`` messages in all."""

    def __init__(self, hub: Hub, line: Line, most: int) -> None:
        self._hub: Final = hub
        self._line: Final = line
        self._most: Final = most
        self._consumers: Final[dict[str, SabcConsumer]] = {}
        self.pending: Final[dict[str, Delivery]] = {}  # what is not acknowledged, by msg-id
        self._ended = False

    def room(self) -> bool:
        """Whether the client may get another message."""
        return not self._ended and self._line.client.outbox.takes_queued() and len(self.pending) < self._most

    def start(self, name: str, msg_id: str) -> Refused | None:
        """Consume a queue under the id of the message that asks for it. What was taken under another id returns to it.

        The first message comes after ``begin``.
        """
        consumer = SabcConsumer(self, self._line, msg_id)
        old = self._consumers.get(name)
        refused = self._hub.consume(self._line.client, name, consumer, begin=False, replacing=old)
        if refused is None:
            self._consumers[name] = consumer
            if old is not None:
                self._stop(old)
        return refused

    def begin(self, name: str) -> None:
        """Let the queue deliver."""
        self._hub.begin_consuming(self._line.client, self._consumers[name])

    def stop(self, name: str) -> bool:
        """Stop consuming a queue. False if the client did not consume it."""
        consumer = self._consumers.pop(name, None)
        if consumer is None:
            return False
        self._stop(consumer)
        return True

    def _stop(self, consumer: "SabcConsumer") -> None:
        for msg_id in [each for each, delivery in self.pending.items() if delivery.consumer is consumer]:
            del self.pending[msg_id]
        consumer.leaving = True
        self._hub.stop_consuming(self._line.client, consumer)
        self.dispatch()

    def end(self, *, leaving: bool) -> None:
        """Stop consuming all queues; what is not acknowledged returns to them. ``leaving``: the client asked for it.

        Its services end as well.
        """
        self._ended = True
        for consumer in self._consumers.values():
            consumer.leaving = leaving
        self._consumers.clear()
        self.pending.clear()
        self._hub.silence(self._line.client, topics=False, calls=False)

    def acknowledge(self, msg_id: str) -> bool:
        """SABC-115: an answer with this ref-msg-id has come. False if no message of a queue waits for it."""
        delivery = self.pending.pop(msg_id, None)
        if delivery is None:
            return False
        was_full = len(self.pending) + 1 >= self._most
        delivery.ack()
        if was_full:
            self.dispatch()
        return True

    def reject(self, msg_id: str, delay: float, reason: str) -> bool:
        """SABC-141: a rejection with this ref-msg-id has come. False if no message of a queue waits for it."""
        delivery = self.pending.pop(msg_id, None)
        if delivery is None:
            return False
        was_full = len(self.pending) + 1 >= self._most
        delivery.nack(delay, reason)
        if was_full:
            self.dispatch()
        return True

    def dispatch(self) -> None:
        """There may be room again: let the queues deliver."""
        for consumer in list(self._consumers.values()):
            if len(self.pending) >= self._most:
                return
            consumer.queue.dispatch()


@final
class SabcConsumer(Consumer):
    """One client at one queue."""

    def __init__(self, queues: Queues, line: Line, msg_id: str) -> None:
        super().__init__()
        self._queues: Final = queues
        self._line: Final = line
        self._prefix: Final = line.prefix(msg_id, send_only=False)

    def room(self) -> bool:
        """Whether the client keeps up with reading and acknowledging."""
        return self._queues.room()

    def take(self, delivery: Delivery) -> None:
        """Push the message; its answer acknowledges it."""
        msg_id = self._line.next_id()
        self._queues.pending[msg_id] = delivery
        self._line.push(self._prefix, msg_id, delivery.outgoing())


@final
class SabcCaller(Caller):
    """The calls one client has made. ``ended`` is called when one has ended."""

    def __init__(self, hub: Hub, line: Line, ended: Callable[[], None]) -> None:
        self.connection = line.client
        self._hub: Final = hub
        self._line: Final = line
        self._ended: Callable[[], None] | None = ended
        self._waiting: Final[dict[Call, tuple[str, bool, bool]]] = {}  # msg-id, silent, truncated

    def __len__(self) -> int:
        return len(self._waiting)

    def call(
        self,
        service: str,
        method: str,
        message: Message,
        msg_id: str,
        *,
        silent: bool,
        truncated: bool,
        seconds: float,
    ) -> Refused | None:
        """Begin a call. ``silent``: it was send-only, so only its failure is reported.

        ``truncated``: it was cut at the size limit, which its reply says too (SABC-105).
        """
        call = Call(self, service, method)
        self._waiting[call] = (msg_id, silent, truncated)
        refused = self._hub.call(self._line.client, call, message, seconds=seconds)
        if refused is not None:
            del self._waiting[call]
        return refused

    def reply(self, call: Call, message: Message, *, last: bool) -> None:  # noqa: ARG002 - it always is the last
        """Write the reply with the msg-id of the call."""
        waiting = self._waiting.pop(call, None)
        if waiting is not None:
            msg_id, silent, truncated = waiting
            if not silent:
                self._line.answer(msg_id, message, truncated=truncated)
        self._report()

    def fail(self, call: Call, error: CallError) -> None:
        """Write an ERROR with the msg-id of the call."""
        waiting = self._waiting.pop(call, None)
        if waiting is not None:
            self._line.call_failed(error, waiting[0])
        self._report()

    def gone(self) -> None:
        """The client is gone. The hub cancels its calls, and nothing is reported any more."""
        self._waiting.clear()
        self._ended = None

    def _report(self) -> None:
        if self._ended is not None:
            self._ended()


@final
class SabcProvider(Provider):
    """The calls to one client's services that it has not answered yet, by the msg-id they were sent with."""

    def __init__(self, services: Services, line: Line) -> None:
        self.connection = line.client
        self._services: Final = services
        self._line: Final = line
        self._asked: Final[dict[str, Call]] = {}
        self._ids: Final[dict[Call, str]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        """Push the call to the client, which answers with its msg-id."""
        if not last:
            self._services.fail(call, CallError(400, "no-streams", "the provider takes one request per call"))
            return
        wrong = line_problem(METHOD, call.method) or line_problem(SERVICE, call.service)
        if wrong is not None:
            self._services.fail(call, CallError(400, "bad-method", "this method's name can't be sent to the provider"))
            return
        msg_id = self._line.next_id()
        self._asked[msg_id] = call
        self._ids[call] = msg_id
        self._line.ask(msg_id, call.service, call.method, message)

    def cancel(self, call: Call, error: CallError) -> None:
        """The call has ended without an answer. SABC-101: a provider that took too long is notified."""
        msg_id = self._ids.pop(call, None)
        if msg_id is not None:
            del self._asked[msg_id]
            if error.code == 504:
                self._line.too_late(TOO_SLOW, error.text, msg_id)

    def answered(self, msg_id: str, message: Message) -> bool:
        """The client's reply to the call sent with this msg-id. False if there is no such call."""
        call = self._pop(msg_id)
        return call is not None and self._services.reply(call, message)

    def failed(self, msg_id: str, error: Error) -> bool:
        """The client's ERROR for that call."""
        call = self._pop(msg_id)
        return call is not None and self._services.fail(call, provider_error(error))

    def gone(self) -> None:
        """The client is gone, or answers nothing any more. The hub fails the calls that wait for it."""
        self._asked.clear()
        self._ids.clear()

    def _pop(self, msg_id: str) -> Call | None:
        call = self._asked.pop(msg_id, None)
        if call is not None:
            del self._ids[call]
        return call


def provider_error(error: Error) -> CallError:
    """A provider's ERROR as the caller gets it (SABC-138)."""
    text = error.error_code or ""
    code = int(text) if len(text) == 3 and text.isascii() and text.isdigit() else FAILED_CODE
    tag = header(error.headers, ERROR_TAG) or ""
    return service_error(code, tag, error.body.decode(errors="replace"), read_retry_after(error.headers))
