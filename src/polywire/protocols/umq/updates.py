"""Updates towards a peer: how a message becomes the ``T`` of a topic id, for topics, queues and streams.

What is behind the topic id is the same for every subscriber. It is made once per message and form, and left in the
message; the octets before it are kept per topic id, as long as the sizes of its updates don't change.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, cast, final

from mypy_extensions import i64, mypyc_attr

from polywire.hub.channels import to_stars
from polywire.hub.client import Client
from polywire.hub.message import Attached, Date, Message
from polywire.hub.outbox import JOIN_BELOW, Outbox
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.protocols.umq.base36 import write
from polywire.protocols.umq.errors import LocalProtocolError
from polywire.protocols.umq.methods import Body, Header, Payload, write_bare_body, write_envelope
from polywire.wire.websocket import TEXT, binary, header, text

SLOW_READER: Final = "slow-reader"
UNENCODABLE: Final = "unencodable"

BARE: Final = 8
ENVELOPED: Final = 9
FORMS: Final = 16
"""Where the forms of a message are kept in it: at 16 times the protocol's number, and the form's."""

SHORT: Final = 256
"""Bodies below this are looked at again for every subscriber: that is quicker than to remember what was seen."""

NANOSECONDS: Final = 1_000_000


@final
@mypyc_attr(acyclic=True)
class Prepared:
    """A message but for the command and the id: ``A<count>:`` where it has attachments, then what follows the ``:``.

    ``rest`` begins with the ``length`` octets of the payload; the frames of the attachments are behind them.
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
    announced = f"A{write(len(attachments))}:".encode()
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
    """The headers as an envelope has them; a date beyond the calendar is left behind."""
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
        self._outbox: Final[Outbox] = client.outbox
        self._client: Final = client
        self._protocol: Final = client.protocol
        self._start: Final = f"T{write(topic_id)}:".encode()
        self._envelope: Final = envelope
        self._length: i64 = -1
        self._head = b""

    def offer(self, message: Message) -> bool:
        """Write an update, unless the reader is too slow. False where it went nowhere, which is counted."""
        body = message.body
        length: i64 = len(body)
        plain = not self._envelope and not message.attachments and not message.binary
        if plain and length < SHORT and body.isascii():
            if length != self._length:
                self._head = header(TEXT, len(self._start) + length) + self._start
                self._length = length
            if self._outbox.offer(self._head + body):
                self._client.counters.messages_out += 1
                return True
        else:
            update = self._prepared(message)
            if update is None:
                self._client.counters.drop(UNENCODABLE)
                return False
            if len(update.rest) < JOIN_BELOW:
                taken = self._outbox.offer(update.head(self._start) + update.rest)
            else:
                taken = self._outbox.offer_pair(update.head(self._start), update.rest)
            if taken:
                self._client.counters.messages_out += 1
                return True
        self._client.counters.drop(SLOW_READER)
        self._outbox.count_dropped(message.channel, 1)
        return False

    def push(self, message: Message) -> None:
        """Write an update that there is room for."""
        update = self._prepared(message)
        if update is None:
            self._client.counters.drop(UNENCODABLE)
            return
        self._outbox.push(update.head(self._start))
        self._outbox.push(update.rest)
        self._client.counters.messages_out += 1

    def _prepared(self, message: Message) -> Prepared | None:
        return enveloped(message, self._protocol) if self._envelope else bare(message, self._protocol)


@final
class UmqSubscription(Subscription):
    """A topic id that stands for the channels of a pattern. UMQ-132: a group of its own, so each id gets its update."""

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
        """Write the message and call it done."""
        self._writer.push(delivery.outgoing())
        delivery.ack()
