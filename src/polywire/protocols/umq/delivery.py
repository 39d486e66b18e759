"""What the hub sends to a UMQ peer: updates of its topics, answers to its requests, requests to its services.

What follows the topic id of an update is the same for every subscriber. It is made once per message and form, and kept
in the message; the bytes before it are kept per topic id, as long as the sizes of its updates don't change.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias, cast, final

from mypy_extensions import i64, mypyc_attr

from polywire.hub.channels import to_stars
from polywire.hub.client import UNENCODABLE, Client
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.message import Attached, Date, Message
from polywire.hub.outbox import JOIN_BELOW, Outbox
from polywire.hub.peer import Refused
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.hub.services import END, Call, Caller, CallError, Provider, service_error
from polywire.protocols.umq.connection import Connection
from polywire.protocols.umq.errors import (
    FatalCode,
    LocalProtocolError,
    MethodError,
    error_text,
    read_failure,
    write_failure,
)
from polywire.protocols.umq.frames import CallException, Result, TopicClose, write_number
from polywire.protocols.umq.methods import (
    Body,
    CallService,
    Header,
    Payload,
    Serve,
    ServedRequest,
    encode_json,
    shown,
    write_bare_body,
    write_envelope,
    write_request,
)
from polywire.wire.frame import Frame
from polywire.wire.websocket import TEXT, binary, header, text

HubConnection: TypeAlias = Connection[Call, None]
"""The hub's end: calls of its clients wait for answers of this peer, and it has no callbacks."""


BARE: Final = 8
ENVELOPED: Final = 9
FORMS: Final = 16
"""Where the forms of a message are kept in it: at 16 times the protocol's number, and the form's."""

SHORT: Final = 256
"""Bodies below this are examined again for every subscriber: that is quicker than to remember what was seen."""

NANOSECONDS: Final = 1_000_000

RETRY: Final = 1000
"""UMQ-148: after how many milliseconds a caller may try again where the provider did not keep up."""

CANCELLED: Final = CallError(499, "cancelled", "the caller has ended the stream")
NOT_READ: Final = "the responses were not read in time"

# UMQ-147: the codes for the errors of the hub itself.
CODES: Final = {
    400: FatalCode.BAD_REQUEST,
    401: FatalCode.FORBIDDEN,
    403: FatalCode.FORBIDDEN,
    404: FatalCode.NO_ROUTE,
    408: FatalCode.UNAVAILABLE,
    413: FatalCode.LIMIT_EXCEEDED,
    429: FatalCode.UNAVAILABLE,
    501: FatalCode.NO_ROUTE,
    502: FatalCode.BAD_REQUEST,
    503: FatalCode.UNAVAILABLE,
    504: FatalCode.UNAVAILABLE,
}


@final
@mypyc_attr(acyclic=True)
class Prepared:
    """A message but for the command and the id: ``A<count>:`` where it has attachments, then what follows the ``:``.

    ``rest`` begins with the ``length`` bytes of the payload; the frames of the attachments are behind them.
    """

    def __init__(self, announced: bytes, length: int, rest: bytes) -> None:
        self.announced: Final = announced
        self.length: Final = length
        self.rest: Final = rest

    def head(self, start: bytes) -> bytes:
        """What comes before ``rest``; ``start`` is the command, the id and the ``:``."""
        announced = self.announced + start
        return header(TEXT, len(announced) + self.length) + announced


def prepare(payload: Payload, attachments: tuple[Attached, ...]) -> Prepared:
    """A payload of a message that has ``attachments``, ready to be sent under any command and id.

    The payload was written for ``stand_ins`` of the attachments; where the body goes as an attachment it has one more.
    """
    octets = payload.text.encode()
    if len(payload.attachments) > len(attachments):
        return attach(octets, (payload.attachments[0], *attachments))
    return attach(octets, attachments)


def attach(payload: bytes, attachments: tuple[Attached, ...]) -> Prepared:
    """A payload in UTF-8 and its attachments; ``-`` takes the place of one that failed (UMQ-154)."""
    if not attachments:
        return Prepared(b"", len(payload), payload)
    announced = f"A{write_number(len(attachments))}:".encode()
    parts = [payload]
    for each in attachments:
        parts.append(binary(each) if isinstance(each, bytes) else text(b"-:" + each.text.encode(errors="replace")))
    return Prepared(announced, len(payload), b"".join(parts))


def stand_ins(message: Message) -> tuple[bytes, ...]:
    """As many attachments as a message has, for writing a payload, which depends on their number only.

    A binary body is the first of them.
    """
    others = (b"",) * len(message.attachments)
    return (message.body, *others) if message.binary and not message.body_failed else others


def json_body(message: Message) -> Body:
    """A message's body for JSON: ``null`` if it is an attachment, because it is binary (UMQ-167), or has failed."""
    return Body(None if message.binary or message.body_failed else message.body, message.content_type or None)


def bare(message: Message, protocol: int) -> Prepared:
    """The message as its bare body (UMQ-122, UMQ-167)."""
    key = protocol * FORMS + BARE
    found = message.encoded.get(key)
    if found is None:
        if message.body_failed:
            found = attach(b"", message.attachments)
        elif message.binary:
            found = attach(b"", (message.body, *message.attachments))
        elif not message.attachments and is_text(message.body):
            found = Prepared(b"", len(message.body), message.body)
        else:
            found = prepare(write_bare_body(message.body, stand_ins(message)), message.attachments)
        message.encoded[key] = found
    return cast("Prepared", found)


def enveloped(message: Message, protocol: int) -> Prepared | None:
    """The message in its envelope (UMQ-128), or None where JSON can't carry it."""
    key = protocol * FORMS + ENVELOPED
    if key not in message.encoded:
        message.encoded[key] = _envelope(message)
    return cast("Prepared | None", message.encoded[key])


def _envelope(message: Message) -> Prepared | None:
    channel = to_stars(message.channel)
    time = message.time // NANOSECONDS
    try:
        payload = write_envelope(channel, json_body(message), _headers(message), time, stand_ins(message))
        return prepare(payload, message.attachments)
    except (LocalProtocolError, ValueError):  # a lone surrogate, or a number too long to write
        return None


def _headers(message: Message) -> Mapping[str, Header | datetime]:
    """The headers as an envelope has them; a date beyond the calendar is left out."""
    found: dict[str, Header | datetime] = {}
    for name, value in message.headers:
        if isinstance(value, Date):
            try:
                found[name] = datetime.fromtimestamp(value.seconds, UTC)
            except (ValueError, OverflowError, OSError):
                continue
        else:
            found[name] = value
    return found


def is_text(body: bytes) -> bool:
    """Whether a body is UTF-8."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@final
class TopicWriter:
    """Writes updates of one topic id into its client's outbox."""

    def __init__(self, client: Client, topic_id: int, *, envelope: bool = False) -> None:
        self._client: Final = client
        self._protocol: Final = client.protocol
        self._start: Final = f"T{write_number(topic_id)}:".encode()
        self._envelope: Final = envelope
        self._length: i64 = -1
        self._head = b""

    def offer(self, message: Message) -> bool:
        """Write an update, unless the reader is too slow. False where it was dropped, which is counted."""
        body = message.body
        length: i64 = len(body)
        plain = not self._envelope and not message.attachments and not message.binary
        if plain and length < SHORT and body.isascii():
            if length != self._length:
                self._head = header(TEXT, len(self._start) + length) + self._start
                self._length = length
            return self._client.deliver(self._head + body, message.channel)
        update = self._prepared(message)
        if update is None:
            self._client.counters.drop(UNENCODABLE)
            return False
        head = update.head(self._start)
        if len(update.rest) < JOIN_BELOW:
            return self._client.deliver(head + update.rest, message.channel)
        return self._client.deliver_pair(head, update.rest, message.channel)

    def push(self, message: Message) -> None:
        """Write an update that there is room for."""
        update = self._prepared(message)
        if update is None:
            self._client.counters.drop(UNENCODABLE)
            return
        self._client.outbox.push(update.head(self._start))
        self._client.push(update.rest)

    def _prepared(self, message: Message) -> Prepared | None:
        return enveloped(message, self._protocol) if self._envelope else bare(message, self._protocol)


@final
class UmqSubscription(Subscription):
    """A topic id for the channels of a pattern. UMQ-132: a group of its own, so each id gets its update."""

    def __init__(self, pattern: str, client: Client, group: int, writer: TopicWriter) -> None:
        super().__init__(pattern, client.outbox, group)
        self.takes_failed_body = True
        self._writer: Final = writer

    def deliver(self, message: Message) -> None:
        """Write the message as an update."""
        self._writer.offer(message)


@final
class UmqConsumer(Consumer):
    """A topic id that takes from a queue. Updates have no acknowledgements: what was written is taken (UMQ-150)."""

    def __init__(self, outbox: Outbox, writer: TopicWriter) -> None:
        super().__init__()
        self._outbox: Final = outbox
        self._writer: Final = writer

    def room(self) -> bool:
        """Whether the peer keeps up."""
        return self._outbox.takes_queued()

    def take(self, delivery: Delivery) -> None:
        """Write the message and acknowledge it."""
        self._writer.push(delivery.outgoing())
        delivery.ack()


@final
class Topics:
    """What one peer has subscribed to, by topic id. Streams have theirs among the same ids."""

    def __init__(self, hub: Hub, client: Client) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._consumers: Final[dict[int, UmqConsumer]] = {}

    def subscribe(self, topic_id: int, pattern: str, *, envelope: bool) -> Refused | None:
        """Subscribe to a pattern, or take from a queue, under an id that is open. ``begin`` follows its answer."""
        client = self._client
        writer = TopicWriter(client, topic_id, envelope=envelope)
        if not pattern.startswith(QUEUE_PREFIX):
            subscription = UmqSubscription(pattern, client, self._hub.next_number(), writer)
            return self._hub.subscribe(client, topic_id, subscription)
        consumer = UmqConsumer(client.outbox, writer)
        refused = self._hub.consume(client, pattern[len(QUEUE_PREFIX) :], consumer, begin=False)
        if refused is None:
            self._consumers[topic_id] = consumer
        return refused

    def begin(self, topic_id: int) -> None:
        """Send a new subscription the retained messages, or those in its queue."""
        consumer = self._consumers.get(topic_id)
        if consumer is not None:
            self._hub.begin_consuming(self._client, consumer)
        else:
            self._hub.replay(self._client, self._client.subscriptions[topic_id])

    def end(self, topic_id: int) -> None:
        """Send no more updates of a topic."""
        consumer = self._consumers.pop(topic_id, None)
        if consumer is not None:
            self._hub.stop_consuming(self._client, consumer)
        else:
            self._hub.unsubscribe(self._client, topic_id)

    def room(self) -> None:
        """The peer has caught up: queues may hand out more."""
        for consumer in list(self._consumers.values()):
            consumer.queue.dispatch()

    def gone(self) -> None:
        """The peer has no subscriptions any more, and neither calls nor serves."""
        self._consumers.clear()
        self._hub.silence(self._client)


@final
class Answers:
    """Writes the messages of a connection, answers to the peer's requests above all. None is written after an ``F``."""

    def __init__(self, connection: HubConnection, client: Client) -> None:
        self._connection: Final = connection
        self._client: Final = client
        self._outbox: Final[Outbox] = client.outbox

    def send(self, frame: Frame) -> None:
        """Write a message without attachments."""
        if not self._connection.closed:
            self.write(self._connection.send(frame))

    def write(self, message: str | bytes) -> None:
        """Write a text message that the connection gave."""
        self._outbox.put(text(message.encode() if isinstance(message, str) else message))

    def result(self, call_id: int, payload: str = "null") -> None:
        """Answer a request with JSON, which is ``null`` where there is nothing to say."""
        if call_id in self._connection.requests:
            self.send(Result(call_id, payload))

    def json(self, call_id: int, value: object, attachments: tuple[Attached, ...]) -> None:
        """Answer a request with JSON that has attachments."""
        if self._due(call_id):
            answer = attach(encode_json(value).encode(), attachments)
            self._outbox.put(answer.head(f"R{write_number(call_id)}:".encode()) + answer.rest)

    def body(self, call_id: int, message: Message) -> None:
        """Answer a request with a bare body (UMQ-110), unless the reader is too slow for replies."""
        if self._due(call_id):
            reply = bare(message, self._client.protocol)
            if not self._outbox.reply(reply.head(f"R{write_number(call_id)}:".encode()), reply.rest):
                self._client.too_slow(message.channel)

    def error(self, call_id: int, payload: str) -> None:
        """Answer a request that failed."""
        if call_id in self._connection.requests:
            self.send(CallException(call_id, payload if payload.isascii() else writable(payload)))

    def refuse(self, call_id: int, code: FatalCode, detail: str = "") -> None:
        """Answer a request with one of UMQ's own errors."""
        self.error(call_id, error_text(code, detail))

    def _due(self, call_id: int) -> bool:
        """Note an answer that is written as it was prepared. False where none is due, or the connection is closed."""
        return self._connection.requests.settle(call_id) and not self._connection.closed


def writable(payload: str) -> str:
    """The text without characters that UTF-8 can't write; texts of other protocols may have some."""
    return payload.encode(errors="replace").decode()


def call_error_text(error: CallError) -> str:
    """The payload of the ``E`` for a call that has failed.

    UMQ-161: a service's error keeps its code, tag and text; UMQ-162: one of the hub begins with a code of UMQ.
    """
    words = write_failure(error.code, error.tag, error.text, error.retry_after)
    if not error.from_hub:
        found = read_failure(error.text)
        plain = error.tag == "" and error.retry_after == 0 and found.code == error.code and found.text == error.text
        return error.text if plain and not found.by_runtime else words
    code = CODES.get(error.code, FatalCode.UNAVAILABLE)
    detail = error.text
    if error.tag == "no-service":
        code, detail = FatalCode.NO_RPC_SERVER, ""
    elif error.tag == "draining":
        code = FatalCode.SHUTTING_DOWN
    brief = error_text(code, detail)
    found = read_failure(brief)
    known = found.code == error.code and found.tag == error.tag and found.retry_after == error.retry_after
    return brief if known else error_text(code, words)


@final
class Asked:
    """A call in progress: the id of its ``C`` and, where it is streamed, the topic id and what writes to it."""

    def __init__(self, call_id: int, topic_id: int, stream: TopicWriter | None) -> None:
        self.call_id: Final = call_id
        self.topic_id: Final = topic_id
        self.stream: Final = stream


@final
class UmqCaller(Caller):
    """One peer as a caller. Its streams share their topic ids with its subscriptions."""

    def __init__(self, hub: Hub, client: Client, connection: HubConnection, answers: Answers) -> None:
        self.connection = client
        self.takes_failed_body = True
        self._hub: Final = hub
        self._client: Final = client
        self._topics: Final = connection.publications
        self._answers: Final = answers
        self._asked: Final[dict[Call, Asked]] = {}
        self._streams: Final[dict[int, Call]] = {}

    def start(self, call_id: int, method: CallService, message: Message, seconds: float) -> Refused | None:
        """Make a call. Raises ``MethodError`` where its stream's topic id can't be had."""
        stream: TopicWriter | None = None
        topic_id = 0
        if method.stream is not None:
            topic_id = method.stream
            self._topics.open(topic_id)
            stream = TopicWriter(self._client, topic_id)
        call = Call(self, method.service, method.method, streamed=stream is not None)
        asked = Asked(call_id, topic_id, stream)
        self._asked[call] = asked
        if stream is not None:
            self._streams[topic_id] = call
        refused = self._hub.call(self._client, call, message, seconds=seconds)
        if refused is not None:
            self._forget(call, asked)
            self._topics.close(topic_id)
        return refused

    def reply(self, call: Call, message: Message, *, last: bool) -> None:
        """UMQ-110: the answer is the bare body; UMQ-127: of a stream it is a ``T``."""
        asked = self._asked.get(call)
        if asked is None:
            return
        if asked.stream is None:
            del self._asked[call]
            self._answers.body(asked.call_id, message)
            return
        # UMQ-146: the end without a response is no update.
        if message is not END and not asked.stream.offer(message):
            self._end(call, asked)
            self._hub.services.cancel(call, CallError(499, "slow-reader", NOT_READ))
            self._answers.error(asked.call_id, error_text(FatalCode.LIMIT_EXCEEDED, NOT_READ))
        elif last:
            self._end(call, asked)
            self._answers.result(asked.call_id)

    def fail(self, call: Call, error: CallError) -> None:
        """The answer is an ``E``; a stream has ended before."""
        asked = self._asked.get(call)
        if asked is not None:
            self._end(call, asked)
            self._answers.error(asked.call_id, call_error_text(error))

    def cancel(self, topic_id: int) -> bool:
        """The peer has ended a stream, whose ``D`` is sent: the call is cancelled. False where it is no stream's id."""
        call = self._streams.get(topic_id)
        if call is None:
            return False
        asked = self._asked[call]
        self._forget(call, asked)
        self._hub.services.cancel(call, CANCELLED)
        self._answers.result(asked.call_id)
        return True

    def gone(self) -> None:
        """The peer waits for nothing any more. The hub cancels its calls."""
        self._asked.clear()
        self._streams.clear()

    def _end(self, call: Call, asked: Asked) -> None:
        self._forget(call, asked)
        if asked.stream is not None:
            self._answers.send(TopicClose(asked.topic_id))

    def _forget(self, call: Call, asked: Asked) -> None:
        del self._asked[call]
        if asked.stream is not None:
            del self._streams[asked.topic_id]


@final
class UmqProvider(Provider):
    """One peer as a provider: requests go to it as ``B``, its ``R`` or ``E`` is the reply.

    It may offer ``limit`` services.
    """

    def __init__(self, hub: Hub, client: Client, connection: HubConnection, *, limit: int) -> None:
        self.connection = client
        self.takes_failed_body = True
        self._hub: Final = hub
        self._client: Final = client
        self._limit: Final = limit
        self._calls: Final = connection.calls
        self._callbacks: Final[dict[str, int]] = {}
        self._ids: Final[dict[Call, int]] = {}

    def problem(self, service: str) -> MethodError | None:
        """Why the peer can't offer a service: it does already, or offers too many."""
        if service in self._callbacks:
            return MethodError(f"service {shown(service)} is served already", rule="UMQ-116")
        if len(self._callbacks) >= self._limit:
            reason = f"{self._limit} services are served"
            return MethodError(reason, rule="UMQ-136", code=FatalCode.LIMIT_EXCEEDED)
        return None

    def serve(self, method: Serve) -> Refused | None:
        """Offer a service."""
        refused = self._hub.serve(self._client, method.service, self)
        if refused is None:
            self._callbacks[method.service] = method.callback_id
        return refused

    def unserve(self, service: str) -> None:
        """Offer a service no longer; requests that are with the peer may still be answered."""
        if self._callbacks.pop(service, None) is None:
            raise MethodError(f"service {shown(service)} is not served", rule="UMQ-117")
        self._hub.unserve(self._client, service)

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        """Send a request to the peer's callback. One that can't be sent has failed at once."""
        if not last:
            self._fail(call, CallError(501, "no-streams", "a service over UMQ takes one request"))
            return
        request = self._prepared(call, message)
        if request is None:
            self._fail(call, CallError(400, "bad-request", "the request can't be written as JSON"))
            return
        try:
            number = self._calls.start(call)
        except LocalProtocolError:
            self._fail_overloaded(call)
            return
        self._ids[call] = number
        start = f"B{write_number(number)}:".encode()
        if not self._client.outbox.offer(request.head(start) + request.rest):
            self._forget(call)
            self._fail_overloaded(call)

    def cancel(self, call: Call, error: CallError) -> None:  # noqa: ARG002 - UMQ can't say why
        """The caller waits no longer: the peer's answer will be ignored (UMQ-149)."""
        self._forget(call)

    def answered(self, frame: Result | CallException) -> Call | None:
        """The call the peer has answered. None, which is counted, where nobody waits for it (UMQ-100)."""
        call = self._calls.answered(frame)
        if call is None:
            self._client.counters.fault("UMQ-100")
            return None
        del self._ids[call]
        return call

    def reply(self, call: Call, body: Body | None, attachments: tuple[Attached, ...]) -> None:
        """Hand the peer's reply to the caller."""
        data, rest, failed = assembled(body, attachments)
        message = Message(
            call.service,
            data,
            attachments=rest,
            time=self._hub.clock(),
            origin=self._client.number,
            body_failed=failed,
            binary=body is None or body.data is None,
        )
        self._hub.services.reply(call, message)

    def fail(self, call: Call, payload: str) -> None:
        """Hand the peer's ``E`` to the caller. The error is the service's, whatever the text says."""
        found = read_failure(payload)
        self._fail(call, service_error(found.code, found.tag, found.text, found.retry_after))

    def fail_incomplete(self, call: Call, reason: str) -> None:
        """The peer's reply is not whole."""
        self._fail(call, CallError(413, "bad-reply", f"the reply is not whole: {reason}"))

    def gone(self) -> None:
        """The peer offers nothing any more, and will answer nothing. The hub fails the calls that wait for it."""
        self._callbacks.clear()
        self._calls.drain()
        self._ids.clear()

    def _prepared(self, call: Call, message: Message) -> Prepared | None:
        request = ServedRequest(call.method, json_body(message))
        try:
            payload = prepare(write_request(request, stand_ins(message)), message.attachments)
        except (LocalProtocolError, ValueError):
            return None
        callback = f"{write_number(self._callbacks[call.service])}:".encode()
        return Prepared(payload.announced, len(callback) + payload.length, callback + payload.rest)

    def _forget(self, call: Call) -> None:
        number = self._ids.pop(call, None)
        if number is not None:
            self._calls.abandon(number)

    def _fail(self, call: Call, error: CallError) -> None:
        self._hub.services.fail(call, error)

    def _fail_overloaded(self, call: Call) -> None:
        self._fail(call, CallError(429, "overloaded", f"the provider of {call.service!r} does not keep up", RETRY))


def assembled(body: Body | None, attachments: tuple[Attached, ...]) -> tuple[bytes, tuple[Attached, ...], bool]:
    """A body's bytes, the attachments beside it (UMQ-121), and whether the body was an attachment that failed."""
    if body is not None and body.data is not None:
        return body.data, attachments, False
    first = attachments[0]
    if isinstance(first, bytes):
        return first, attachments[1:], False
    return b"", attachments, True
