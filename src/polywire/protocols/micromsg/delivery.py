"""What the hub sends to a MicroMsg2 connection: its subscriptions and consumers, and messages in MicroMsg2's form.

Connections differ in what they agreed on, so a message has several forms: with ``json`` its content type is not named,
with ``dotnet`` its type goes in a frame of its own. Each form is encoded once, with sequence number 1; each connection
puts its own number in. What has no place in MicroMsg2 is left out.

The frames of vendor extensions that came before a message travel in one header, as ``x-name=base64 x-name=base64``, so
that they survive queues and the journal in their order. No property can have the header's name.
"""

import binascii
from collections import deque
from datetime import datetime, timedelta
from typing import Final, assert_never, cast, final

from mypy_extensions import i64

from polywire.hub.access import SUBSCRIBE
from polywire.hub.channels import from_stars, name_problem, to_stars
from polywire.hub.client import UNENCODABLE, Client
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.message import Date, Headers, HeaderValue, Message
from polywire.hub.peer import Refused
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.protocols.micromsg.connection import Agreement, Connection
from polywire.protocols.micromsg.errors import BAD_FILTER, FORBIDDEN, NO_SUCH_DESTINATION, LocalProtocolError
from polywire.protocols.micromsg.filters import (
    TOPIC_PREFIX,
    Filter,
    forbidden,
    is_usable,
    matches,
    no_such_destination,
    topic_path,
)
from polywire.protocols.micromsg.frames import Error, Extension, encode
from polywire.protocols.micromsg.frames import Message as Send
from polywire.protocols.micromsg.text import (
    DOTNET,
    EPOCH,
    MAX_PROPERTIES,
    Value,
    as_key,
    json_problem,
    read_properties,
    write_properties,
)

# Messages in the form of MicroMsg2, and back.

CONTENT_TYPE: Final = "content-type"
DOTNET_TYPE: Final = "dotnet-type"  # MICROMSG-149
JSON_TYPE: Final = "application/json"
VENDOR_FRAMES: Final = "micromsg.extensions"  # MICROMSG-193
MAX_VENDOR_FRAMES: Final = 16
MAX_VENDOR_BYTES: Final = 16 * 1024
"""MICROMSG-194: how many frames of vendor extensions a message may have, and how many bytes in all of them."""

WITH_JSON: Final = 1
WITH_DOTNET: Final = 2
FORMS: Final = 16
"""How many places in ``Message.encoded`` belong to a protocol."""
PROPERTIES: Final = 4
IS_JSON: Final = 5
VENDORS: Final = 6


def as_topic(message: Message, protocol: int, form: int) -> bytes:
    """The message to the subscribers of its topic; empty if MicroMsg2 can't carry it."""
    key = protocol * FORMS + form
    octets = message.encoded.get(key)
    if octets is None:
        octets = encoded(message, TOPIC_PREFIX + to_stars(message.channel), form)
        message.encoded[key] = octets
    return cast("bytes", octets)


def encoded(message: Message, destination: str, form: int) -> bytes:
    """The message to a destination; empty if MicroMsg2 can't carry it."""
    text = properties_text(message, form) if message.headers or message.content_type else ""
    try:
        return encode(Send(1, destination, message.body, text))
    except LocalProtocolError:
        return b""


def is_json(message: Message, protocol: int) -> bool:
    """Whether the body is JSON, checked once."""
    key = protocol * FORMS + IS_JSON
    known = message.encoded.get(key)
    if known is None:
        known = json_problem(message.body) is None
        message.encoded[key] = known
    return bool(known)


def type_name(message: Message) -> str:
    """The .NET type of the message, empty if it has none."""
    if not message.headers:
        return ""
    value = message.header(DOTNET_TYPE)
    return value if isinstance(value, str) else ""


def write_vendor_frames(frames: list[tuple[str, bytes]]) -> str:
    """The header that carries frames of vendor extensions, each with the extension's name and the payload."""
    return " ".join(
        [f"{name}={binascii.b2a_base64(payload, newline=False).decode('ascii')}" for name, payload in frames]
    )


def vendor_frames(message: Message, protocol: int) -> list[tuple[str, bytes]]:
    """The frames of vendor extensions that go before the message, read once. Other protocols may set the header too."""
    key = protocol * FORMS + VENDORS
    known = message.encoded.get(key)
    if known is None:
        known = _read_vendor_frames(message.header(VENDOR_FRAMES))
        message.encoded[key] = known
    return cast("list[tuple[str, bytes]]", known)


def _read_vendor_frames(value: HeaderValue | None) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    if not isinstance(value, str):
        return found
    total = 0
    for part in value.split(" ", MAX_VENDOR_FRAMES)[:MAX_VENDOR_FRAMES]:
        name, equals, text = part.partition("=")
        try:
            payload = binascii.a2b_base64(text, strict_mode=True) if text else b""
        except ValueError:
            continue
        total += len(payload)
        if equals and total <= MAX_VENDOR_BYTES:
            found.append((name, payload))
    return found


def filtered_properties(message: Message, protocol: int) -> dict[str, Value]:
    """What filters look at: all the properties the message would have without extensions."""
    key = protocol * FORMS + PROPERTIES
    known = message.encoded.get(key)
    if known is None:
        known = _properties(message, 0)
        message.encoded[key] = known
    return cast("dict[str, Value]", known)


def properties_text(message: Message, form: int) -> str:
    """The properties of a message in one form, as many as there is room for."""
    text = ""
    for key, value in _properties(message, form).items():
        try:
            one = write_properties({key: value})
        except LocalProtocolError:
            continue
        if len(text) + len(one) <= MAX_PROPERTIES:
            text += one
    return text


def headers(text: str, named_type: str, attached: str) -> tuple[str, Headers]:
    """The content type and the headers of a message with these properties.

    ``named_type`` is what a ``dotnet`` frame said, ``attached`` what ``write_vendor_frames`` made; both may be empty.
    """
    content_type = ""
    found: list[tuple[str, HeaderValue]] = []
    if text:
        for key, value in read_properties(text).items():
            if key == CONTENT_TYPE and isinstance(value, str):
                content_type = value
            elif key == DOTNET_TYPE and named_type:
                continue
            elif isinstance(value, datetime):
                found.append((key, Date((value - EPOCH).total_seconds())))
            else:
                found.append((key, value))
    if named_type:
        found.append((DOTNET_TYPE, named_type))
    if attached:
        found.append((VENDOR_FRAMES, attached))
    return (content_type, tuple(found))


def _properties(message: Message, form: int) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in message.headers:
        if name == VENDOR_FRAMES or (form & WITH_DOTNET and name == DOTNET_TYPE):
            continue
        key = as_key(name)
        if not key or key in found:
            continue
        if isinstance(value, Date):
            try:
                found[key] = EPOCH + timedelta(seconds=value.seconds)
            except (OverflowError, ValueError):
                continue
        else:
            found[key] = value
    content_type = message.content_type
    if content_type and not (form & WITH_JSON and content_type == JSON_TYPE):
        found[CONTENT_TYPE] = content_type
    return found


NOT_JSON: Final = "not-json"
PARCEL_SIZE: Final = 128
"""Bytes that a waiting message takes besides its own."""


@final
class Parcel:
    """A message that waits for the window to open: a topic's, or a queue's with its ``delivery``.

    ``before`` are the frames of vendor extensions that go before it.
    """

    def __init__(self, before: bytes, octets: bytes, named_type: str, delivery: Delivery | None) -> None:
        self.before: Final = before
        self.octets: Final = octets
        self.named_type: Final = named_type
        self.delivery: Final = delivery

    def size(self) -> int:
        """How many bytes it takes in the outbox while it waits."""
        return len(self.before) + len(self.octets) + PARCEL_SIZE


@final
class Outgoing:
    """What one connection is sent: numbered, within the window the two sides agreed on.

    Messages of topics that find the window closed wait here in order, and count against the outbox's cap: beyond it the
    policy for slow readers decides. A queue's messages wait in their queue; only one of them waits among the topics'
    messages, so that neither kind keeps the other out. A message counts as sent once it is in the outbox.
    """

    def __init__(self, client: Client, connection: Connection) -> None:
        self._client: Final = client
        self._connection: Final = connection
        self._acks = False
        self._typed = False
        self._json = False
        self._form = 0
        self._waiting: Final[deque[Parcel]] = deque()
        self._queued: i64 = 0  # how many of the waiting are a queue's
        self._unacknowledged: Final[deque[Delivery | None]] = deque()
        self._busy = False  # between numbers: nothing may be sent from below
        self.draining = False
        self.closed = False

    def agree(self, agreement: Agreement) -> None:
        """The handshake is done."""
        self._acks = agreement.window > 0
        self._typed = agreement.has(DOTNET)
        self._json = agreement.json
        self._form = (WITH_DOTNET if self._typed else 0) | (WITH_JSON if self._json else 0)

    def is_busy(self) -> bool:
        """Whether messages are in flight that the peer, or the hub for it, still has to handle."""
        if self._waiting:
            return True
        for delivery in self._unacknowledged:
            if delivery is not None:
                return True
        return False

    def topic(self, message: Message) -> None:
        """Send a topic's message, now or when the window opens."""
        if self.closed:
            return
        client = self._client
        protocol = client.protocol
        if self._json and not is_json(message, protocol):
            client.counters.drop(NOT_JSON)
            return
        octets = as_topic(message, protocol, self._form)
        if not octets:
            client.counters.drop(UNENCODABLE)
            return
        named_type = type_name(message) if self._typed else ""
        before = self._before(message) if self._connection.vendors and message.headers else b""
        if self._waiting or not self._connection.outgoing.is_open():
            parcel = Parcel(before, octets, named_type, None)
            if client.outbox.hold(parcel.size()):
                self._waiting.append(parcel)
            else:
                client.too_slow(message.channel)
            return
        ready = self._ready(before, octets, named_type)
        # Making room in the outbox may call back here, before this message has got its number.
        self._busy = True
        accepted = client.deliver(ready, message.channel)
        self._busy = False
        if accepted:
            self._sent(named_type, None)

    def room(self) -> bool:
        """Whether a queue may hand out a message for this connection."""
        if self.closed or self.draining or self._busy:
            return False
        return self._client.outbox.takes_queued() and self._queued == 0

    def suits(self, message: Message) -> bool:
        """Whether the connection can carry a queue's message."""
        return not self._json or is_json(message, self._client.protocol)

    def queued(self, delivery: Delivery, destination: str) -> None:
        """Send a queue's message, now or when the window opens. Without acks it is the peer's once it is written."""
        message = delivery.outgoing()
        octets = encoded(message, destination, self._form)
        if not octets:
            self._client.counters.drop(UNENCODABLE)
            delivery.ack()
            return
        named_type = type_name(message) if self._typed else ""
        before = self._before(message) if self._connection.vendors and message.headers else b""
        if self._waiting or not self._connection.outgoing.is_open():
            self._queued += 1
            self._waiting.append(Parcel(before, octets, named_type, delivery))
            return
        self._put(before, octets, named_type, delivery)

    def acked(self, count: int) -> None:
        """The peer has acknowledged so many messages."""
        done: list[Delivery] = []
        for _ in range(count):
            delivery = self._unacknowledged.popleft()
            if delivery is not None:
                done.append(delivery)
        self.resume()
        # The queues these came from get no room before the others: the caller lets them take turns.
        self._busy = True
        for delivery in done:
            delivery.ack()
        self._busy = False

    def nacked(self, sequence: int, delay: float, reason: str) -> Error | None:
        """MICROMSG-196: the peer rejects a queue's message, whose number it acknowledges all the same.

        A second nack, or one of a topic's message, changes nothing.
        """
        place = self._connection.outgoing.place(sequence)
        if isinstance(place, Error):
            return place
        delivery = self._unacknowledged[place]
        if delivery is not None:
            self._unacknowledged[place] = None
            self._busy = True
            delivery.nack(delay, reason)
            self._busy = False
        return None

    def resume(self) -> None:
        """Send what waits, as far as window and outbox allow."""
        waiting = self._waiting
        while waiting and self._connection.outgoing.is_open() and not self._client.outbox.full() and not self._busy:
            parcel = waiting.popleft()
            if parcel.delivery is not None:
                self._queued -= 1
            else:
                self._client.outbox.release(parcel.size())
            self._put(parcel.before, parcel.octets, parcel.named_type, parcel.delivery)

    def has_sent_to(self, consumer: Consumer) -> bool:
        """Whether the peer has messages of this consumer that it did not acknowledge."""
        for delivery in self._unacknowledged:
            if delivery is not None and delivery.consumer is consumer:
                return True
        return False

    def forget(self, consumer: Consumer) -> list[Delivery]:
        """Take a consumer's messages out of the line, for their queue to have back."""
        removed: list[Delivery] = []
        kept: list[Parcel] = []
        for parcel in self._waiting:
            delivery = parcel.delivery
            if delivery is not None and delivery.consumer is consumer:
                removed.append(delivery)
                self._queued -= 1
            else:
                kept.append(parcel)
        self._waiting.clear()
        self._waiting.extend(kept)
        return removed

    def close(self) -> None:
        """Send nothing more."""
        self.closed = True
        for parcel in self._waiting:
            if parcel.delivery is None:
                self._client.outbox.release(parcel.size())
            else:
                parcel.delivery.attempts -= 1  # it was not sent
        self._waiting.clear()
        self._queued = 0

    def _put(self, before: bytes, octets: bytes, named_type: str, delivery: Delivery | None) -> None:
        self._client.push(self._ready(before, octets, named_type))
        self._sent(named_type, delivery)
        if delivery is not None and not self._acks:
            delivery.ack()

    def _before(self, message: Message) -> bytes:
        """MICROMSG-193: the frames of the vendor extensions this connection has agreed on, under its own numbers."""
        found: list[bytes] = []
        for name, payload in vendor_frames(message, self._client.protocol):
            number = self._connection.vendors.get(name)
            if number is not None:
                found.append(encode(Extension(number, payload)))
        return b"".join(found)

    def _ready(self, before: bytes, octets: bytes, named_type: str) -> bytes:
        """The bytes to write: the message with its number, after the frames of vendors and of its type."""
        prepared = self._connection.prepared(octets, named_type)
        return before + prepared if before else prepared

    def _sent(self, named_type: str, delivery: Delivery | None) -> None:
        self._connection.sent(named_type)
        if self._acks:
            self._unacknowledged.append(delivery)


FILTERED_GROUPS: Final = 1 << 32


@final
class Seen:
    """The last message a connection got through a filter, so that a second filter does not send it again."""

    def __init__(self) -> None:
        self.filters = 0
        self.serial = 0
        self.message: Message | None = None


@final
class MicromsgSubscription(Subscription):
    """A subscription to a topic, or to a pattern of topics.

    Subscriptions without a filter are interchangeable and share their client's group. One with a filter has a group
    of its own, or another's filter might be used in its place.
    """

    def __init__(self, pattern: str, client: Client, outgoing: Outgoing, condition: Filter, seen: Seen) -> None:
        group = client.number
        if condition.clauses:
            seen.serial += 1
            group = -(client.number * FILTERED_GROUPS + seen.serial)
        super().__init__(pattern, client.outbox, group)
        self._protocol: Final = client.protocol
        self._outgoing: Final = outgoing
        self._seen: Final = seen
        self.condition: Final = condition

    def deliver(self, message: Message) -> None:
        """MICROMSG-76: send the message, if it passes the filter and was not sent for another subscription."""
        seen = self._seen
        if seen.filters:
            if seen.message is message or not self.lets_through(message):
                return
            seen.message = message
        self._outgoing.topic(message)

    def deliver_retained(self, message: Message) -> None:
        """Send a retained message, even if another subscription had it."""
        if self.lets_through(message):
            self._outgoing.topic(message)

    def lets_through(self, message: Message) -> bool:
        """Whether the message passes the filter."""
        condition = self.condition
        return not condition.clauses or matches(condition, filtered_properties(message, self._protocol))


@final
class MicromsgConsumer(Consumer):
    """A consumer of a queue. While ``leaving`` it may acknowledge what was sent."""

    def __init__(self, destination: str, client: Client, outgoing: Outgoing, condition: Filter) -> None:
        super().__init__(choosy=True)
        self.destination: Final = destination
        self._protocol: Final = client.protocol
        self._outgoing: Final = outgoing
        self.condition = condition

    def room(self) -> bool:
        """Whether the connection takes another message now."""
        return not self.leaving and self._outgoing.room()

    def wants(self, message: Message) -> bool:
        """Whether the message passes the filter, and is JSON if that was agreed on."""
        if self.leaving or not self._outgoing.suits(message):
            return False
        condition = self.condition
        return not condition.clauses or matches(condition, filtered_properties(message, self._protocol))

    def take(self, delivery: Delivery) -> None:
        """Send the message."""
        self._outgoing.queued(delivery, self.destination)


# The channel of a destination, or the ERROR that says why there is none. ``topic/<path>`` is the topic of that path, in
# a subscription perhaps a pattern. Anything else is a queue, under its name; other protocols write ``queue/<name>`` for
# it, and that is understood here too.

MAX_DESTINATION: Final = 255


def channel_of_message(destination: str) -> str | Error:
    """The channel a SEND goes to."""
    channel = _channel(destination)
    if isinstance(channel, str) and not channel.startswith(QUEUE_PREFIX) and from_stars(channel) != channel:
        return _nowhere(destination, "a pattern can be subscribed to, not sent to")
    return channel


def channel_of_subscription(destination: str) -> str | Error:
    """MICROMSG-136: the channel to subscribe to, or the pattern after ``topic/``."""
    if len(destination.encode("utf-8", "replace")) > MAX_DESTINATION:
        return _nowhere(destination[:MAX_DESTINATION], f"a destination has at most {MAX_DESTINATION} bytes")
    channel = _channel(destination)
    if isinstance(channel, Error) or channel.startswith(QUEUE_PREFIX):
        return channel
    if "**" in channel.split("/")[:-1]:
        return _nowhere(destination, "** is allowed at the end of a pattern only")
    return from_stars(channel)


def _channel(destination: str) -> str | Error:
    if not is_usable(destination):
        return _nowhere(destination, "")
    channel = topic_path(destination)
    if channel is not None:
        if channel.startswith(QUEUE_PREFIX):
            return _nowhere(destination, "this is a queue's name, write it without topic/")
    else:
        channel = QUEUE_PREFIX + destination.removeprefix(QUEUE_PREFIX)
        if channel == QUEUE_PREFIX:
            return _nowhere(destination, "the queue has no name")
    problem = name_problem(channel)
    return channel if problem is None else _nowhere(destination, problem)


def _nowhere(destination: str, reason: str) -> Error:
    named = (("destination", destination),)
    return Error(NO_SUCH_DESTINATION, (*named, ("reason", reason)) if reason else named)


FILTER_BYTES: Final = 256 * 1024
"""How many bytes the filters of one connection may have in total."""


@final
class Receivers:
    """The subscriptions and consumers of a connection, at most ``limit``. What is refused is returned as ERROR."""

    def __init__(self, hub: Hub, client: Client, outgoing: Outgoing, limit: int) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._outgoing: Final = outgoing
        self._limit: Final = limit
        client.most_subscriptions = limit
        self._seen: Final = Seen()
        self._consumers: Final[dict[str, MicromsgConsumer]] = {}  # by channel
        self._turns: Final[deque[MicromsgConsumer]] = deque()  # the same, the next to be served first
        self._leaving = 0
        self._filters: Final[dict[str, int]] = {}  # bytes, by channel or pattern
        self._filter_bytes = 0

    def subscribe(self, destination: str, condition: Filter, text: str | None) -> Error | None:
        """Subscribe to a topic or pattern, or consume a queue. Once more for the same: with the new filter."""
        channel = channel_of_subscription(destination)
        if isinstance(channel, Error):
            return channel
        client = self._client
        size = len(text) if text and condition.clauses else 0
        if self._filter_bytes - self._filters.get(channel, 0) + size > FILTER_BYTES:
            refused = self._hub.forbids(client, SUBSCRIBE, channel, dollar=False)
            if refused is not None:
                return self._refusal(destination, refused)
            reason = f"the filters of this connection have more than {FILTER_BYTES} bytes"
            return Error(BAD_FILTER, (("limit", str(FILTER_BYTES)), ("reason", reason)))
        if channel.startswith(QUEUE_PREFIX):
            refused = self._consume(channel, destination, condition)
            if refused is not None:
                return self._refusal(destination, refused)
            self._count_filter(channel, size)
            return None
        subscription = MicromsgSubscription(channel, client, self._outgoing, condition, self._seen)
        refused = self._hub.subscribe(client, channel, subscription)
        if refused is not None:
            return self._refusal(destination, refused)
        self._count_filter(channel, size)
        self._hub.replay(client, subscription)
        return None

    def _refusal(self, destination: str, refused: Refused) -> Error:
        """The ERROR for a subscription that the hub has refused, and counted."""
        named = ("destination", destination)
        match refused:
            case Refused.FORBIDDEN:
                return forbidden(destination)
            case Refused.LIMIT:
                reason = f"{self._limit} subscriptions are allowed"
                return Error(FORBIDDEN, (named, ("limit", str(self._limit)), ("reason", reason)))
            case (
                Refused.TOO_MANY_QUEUES
                | Refused.PATTERN_COST
                | Refused.NAMES_SIZE
                | Refused.SERVICE_CHANNEL
                | Refused.UNSUPPORTED
                | Refused.TOO_DEEP
                | Refused.WATCHERS
                | Refused.WILLS_SIZE
                | Refused.RETAINED_FULL
                | Refused.QUEUE_FULL
                | Refused.QUEUES_FULL
                | Refused.DRAINING
                | Refused.UNAVAILABLE
            ):
                return Error(FORBIDDEN, (named, ("reason", refused.message)))
            case _:
                assert_never(refused)

    def unsubscribe(self, destination: str) -> Error | None:
        """MICROMSG-134: end a subscription, if there is one."""
        channel = channel_of_subscription(destination)
        if isinstance(channel, Error):
            return channel
        consumer = self._consumers.get(channel)
        if consumer is not None and not consumer.leaving:
            self._count_filter(channel, 0)
            consumer.leaving = True
            self._leaving += 1
            for delivery in self._outgoing.forget(consumer):
                consumer.queue.give_back(delivery)
            self.resume()
            return None
        if consumer is None and self._hub.unsubscribe(self._client, channel):
            self._count_filter(channel, 0)
            return None
        return no_such_destination(destination)

    def resume(self) -> None:
        """The connection may have room again: let the queues deliver, in turn."""
        if self._leaving:
            for channel, consumer in list(self._consumers.items()):
                if consumer.leaving:
                    self._leave(channel, consumer)
        turns = self._turns
        for _ in range(len(turns)):
            if not self._outgoing.room():
                return
            turns.rotate(-1)
            turns[-1].queue.dispatch()

    def end(self) -> None:
        """The connection is gone. MICROMSG-139: what was not acknowledged returns to its queue, by ``Hub.leave``."""
        self._consumers.clear()
        self._turns.clear()

    def _consume(self, channel: str, destination: str, condition: Filter) -> Refused | None:
        name = channel[len(QUEUE_PREFIX) :]
        consumer = self._consumers.get(channel)
        if consumer is not None:
            refused = self._hub.consume(self._client, name, consumer)
            if refused is not None:
                return refused
            consumer.condition = condition
            if consumer.leaving:
                consumer.leaving = False
                self._leaving -= 1
            consumer.queue.reconsider()
            return None
        consumer = MicromsgConsumer(destination, self._client, self._outgoing, condition)
        refused = self._hub.consume(self._client, name, consumer, begin=False)
        if refused is None:
            self._consumers[channel] = consumer
            self._turns.append(consumer)
            self._hub.begin_consuming(self._client, consumer)
        return refused

    def _leave(self, channel: str, consumer: MicromsgConsumer) -> None:
        """Stop consuming, unless the peer has messages it may still acknowledge."""
        if not self._outgoing.has_sent_to(consumer):
            del self._consumers[channel]
            self._turns.remove(consumer)
            self._leaving -= 1
            self._hub.stop_consuming(self._client, consumer)

    def _count_filter(self, channel: str, size: int) -> None:
        self._filter_bytes += size - self._filters.pop(channel, 0)
        if size:
            self._filters[channel] = size
        self._seen.filters = len(self._filters)
        if not self._filters:
            self._seen.message = None
