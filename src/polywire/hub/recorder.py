"""What happens in the hub, as rows for the journal.

The hub and its sessions tell the recorder, which appends to the current ``Columns``; whoever writes the journal takes
those away from time to time. While the journal can't be written (``failed``), rows of messages are not kept, as they
would fill the memory; those that say what became of stored messages are, up to a bound, and so are last wills.
"""

from collections.abc import Callable
from typing import Final, final

import msgspec.json
from mypy_extensions import i64

from polywire.hub.channels import is_literal, to_stars
from polywire.hub.client import Client
from polywire.hub.message import Date, Headers, Message
from polywire.journal.columns import MAX_OCTETS, Columns
from polywire.journal.kinds import (
    ACK,
    BINARY_FLAG,
    CLEAN_FLAG,
    CONNECT,
    DELIVER,
    DISCARD,
    DISCONNECT,
    ENQUEUE,
    ERROR,
    HOLD,
    LAST_FLAG,
    NACK,
    NO_PROTOCOL,
    PATTERN_FLAG,
    PERSISTENT_FLAG,
    PUBLISH,
    QOS_SHIFT,
    QUEUED_FLAG,
    RECEIVED,
    RELEASE,
    REPLY,
    REQUEST,
    RETAIN,
    RETAIN_FLAG,
    SENT,
    SESSION,
    SUBSCRIBE,
    UNHEARD_FLAG,
    UNSUBSCRIBE,
    WILL,
    WILL_FLAG,
)
from polywire.wire.frame import RAW_KEPT

BATCH_OCTETS: Final = 4 * 1024 * 1024
"""How large a batch grows before the next one is begun."""

FAILED_OCTETS: Final = 32 * 1024 * 1024
"""How much is kept of what can't be written."""

UNRECORDED: Final = -1
"""The offset of what is not in the journal."""

QUEUE_PREFIX: Final = "queue/"


@final
class Recorder:
    """Rows to be. ``on_rows`` is told of the first one after ``take``; ``full`` are batches that are large enough."""

    def __init__(self, first: int, clock: Callable[[], int], on_rows: Callable[[], None]) -> None:
        self.columns = Columns(first)
        self.full: list[Columns] = []
        self.octets: i64 = 0  # of those
        self.failed = False
        self.unrecorded: i64 = 0
        self._clock: Final = clock
        self._on_rows: Final = on_rows
        self._told = False
        self._together = False
        self._kept = False  # rows that become safe together are kept though the journal fails

    def take(self) -> list[Columns]:
        """All rows there are, as closed columns; the next row begins new ones."""
        self.rotate()
        taken = self.full
        self.full = []
        self.octets = 0
        self._told = False
        return taken

    def rotate(self) -> None:
        """Let the next row begin a batch of its own."""
        columns = self.columns
        if columns.rows > 0:
            columns.close()
            self.full.append(columns)
            self.octets += columns.octets()
            self.columns = Columns(columns.first + columns.rows)

    def insert(self, columns: Columns) -> int:
        """Append rows that were collected elsewhere and closed, as one batch. Returns the offset of the first one."""
        self.rotate()
        columns.first = self.columns.first
        self.full.append(columns)
        self.octets += columns.octets()
        self.columns = Columns(columns.first + columns.rows)
        self._ready(0)
        return int(columns.first)

    def next_offset(self) -> int:
        """The offset of the next row."""
        return int(self.columns.first + self.columns.rows)

    def together(self, together: bool) -> None:
        """From now on rows become safe all or none, until it is false again."""
        if together and self.columns.octets() > BATCH_OCTETS:
            self.rotate()
        self._together = together
        self._kept = together and self.pending() <= FAILED_OCTETS

    def part(self) -> None:
        """Let the next row begin a batch of its own, unless it is to be safe together with those before it."""
        if not self._together:
            self.rotate()

    def pending(self) -> int:
        """About how many octets wait to be taken."""
        return self.octets + self.columns.octets()

    def begin_run(self, data: bytes, count: i64, client: Client, now: i64, flags: i64) -> i64:
        """Publications are about to be located: where their chunk begins in the arena, or -1 for not at all."""
        if self.failed:
            self.unrecorded += count
            return -1
        self._ready(len(data))
        columns = self.columns
        columns.stretch(PUBLISH, client.protocol, flags, client.number, now, client.name)
        return columns.hold(data)

    def published(self, message: Message, client: Client, flags: int, *, heard: bool) -> int:
        """A message to a topic."""
        flags |= message.qos << QOS_SHIFT
        return self._message(PUBLISH, message, client, flags if heard else flags | UNHEARD_FLAG)

    def enqueued(self, message: Message, client: Client) -> int:
        """A message put into a queue."""
        return self._message(ENQUEUE, message, client, message.qos << QOS_SHIFT, state=True)

    def dequeued(self, queue: str, offset: int) -> None:
        """A consumer has the message that was put into the queue with this offset."""
        if offset >= 0:
            self._note(ACK, NO_PROTOCOL, QUEUED_FLAG, 0, "", QUEUE_PREFIX + queue, str(offset))

    def returned(self, queue: str, offset: int, deliveries: int, reason: str) -> None:
        """The message with this offset is back in the queue, and was delivered so often."""
        if offset >= 0:
            about: dict[str, object] = (
                {"deliveries": deliveries, "reason": reason} if reason else {"deliveries": deliveries}
            )
            self._note(NACK, NO_PROTOCOL, QUEUED_FLAG, 0, "", QUEUE_PREFIX + queue, str(offset), _json(about))

    def moved(self, message: Message, queue: str, offset: int) -> int:
        """A queue has given the message with this offset up: ``message`` takes its place in another queue.

        Both rows become safe or none, so the message is in exactly one of the queues whatever happens.
        """
        together = self._together
        self.together(True)
        found = self._row(ENQUEUE, message, NO_PROTOCOL, message.origin, "", message.qos << QOS_SHIFT, state=True)
        self.dequeued(queue, offset)
        self._together = together
        return found

    def cleared(self, channel: str, client: Client) -> None:
        """A topic has no retained message any more, and nobody was told."""
        self._note(RETAIN, client.protocol, 0, client.number, client.name, channel, "")

    def requested(self, call: int, channel: str, message: Message, client: Client | None, *, last: bool) -> None:
        """A request of a call."""
        self._step(REQUEST, call, channel, message, client, LAST_FLAG if last else 0)

    def replied(self, call: int, channel: str, message: Message, client: Client | None, *, last: bool) -> None:
        """A reply of a call."""
        self._step(REPLY, call, channel, message, client, LAST_FLAG if last else 0)

    def call_failed(self, call: int, channel: str, code: int, tag: str, text: str) -> None:
        """A call has ended with an error."""
        if not self.failed:
            headers = _json({"code": code, "tag": tag, "text": text})
            self._ready(0)
            self.columns.append(
                ERROR, NO_PROTOCOL, LAST_FLAG, 0, self._clock(), "", channel, b"", str(call), "", headers
            )

    def connected(self, client: Client) -> None:
        """A client has joined."""
        self._event(CONNECT, client, "", {"address": client.address, "user": client.identity.name})

    def disconnected(self, client: Client) -> None:
        """A client has left."""
        self._event(DISCONNECT, client, "", {"reason": client.reason or "closed"})

    def subscribed(self, client: Client, pattern: str) -> None:
        """A client wants the topics of a pattern."""
        self._event(SUBSCRIBE, client, pattern, None)

    def unsubscribed(self, client: Client, pattern: str) -> None:
        """A client wants them no more."""
        self._event(UNSUBSCRIBE, client, pattern, None)

    def discarded(self, client: Client, channel: str, rule: str, reason: str, raw: bytes, size: int) -> None:
        """Something a client sent went nowhere."""
        if self.failed:
            return
        self._ready(len(raw))
        columns = self.columns
        headers = _json({"rule": rule, "reason": reason})
        raw = raw[:RAW_KEPT]
        columns.append(
            DISCARD, client.protocol, 0, client.number, self._clock(), client.name, channel, raw, "", "", headers
        )
        if size != len(raw):
            columns.size(size)

    def started(self) -> None:
        """The hub has started: whoever was connected before is not any more."""
        self._note(SESSION, NO_PROTOCOL, CLEAN_FLAG, 0, "", "", "", '{"start":true}')

    def session(self, protocol: int, name: str, user: str, *, kept: bool, anew: bool, headers: str = "") -> None:
        """A session begins, ``anew`` or where it was; one that is not ``kept`` leaves nothing behind.

        ``headers`` is what its protocol wants to know of it later, in JSON.
        """
        flags = (PERSISTENT_FLAG if kept else 0) | (CLEAN_FLAG if anew else 0)
        self._note(SESSION, protocol, flags, 0, name, "", user, headers)

    def applied(self, name: str, place: str, headers: str = "") -> None:
        """A client that publishes in parts has got so far. ``headers`` is a JSON object."""
        self._note(SESSION, NO_PROTOCOL, PERSISTENT_FLAG, 0, name, "", place, headers)

    def will_left(self, message: Message, client: Client, mark: int, group: int = 0) -> None:
        """A client has left a last will. ``mark`` is what its protocol wants to know when the will is published.

        Wills of one ``group`` are over together.
        """
        flags = WILL_FLAG | message.qos << QOS_SHIFT
        if message.retain:
            flags |= RETAIN_FLAG
        channel = message.channel
        if not is_literal(channel):
            channel = to_stars(channel)
            flags |= PATTERN_FLAG
        who = client.identity
        headers = _json({"user": who.name, "groups": sorted(who.groups), "how": who.how, "mark": mark})
        number = client.number
        self._note(
            WILL, client.protocol, flags, number, client.name, channel, _will(number, group), headers, message.body
        )

    def wills_over(self, client: Client, group: int = 0) -> None:
        """A group of a client's last wills was published, or is not to be."""
        number = client.number
        self._note(WILL, client.protocol, WILL_FLAG | CLEAN_FLAG, number, client.name, "", _will(number, group))

    def wished(self, protocol: int, name: str, topic_filter: str, qos: int) -> None:
        """A kept session has subscribed to a filter, written as its protocol does."""
        self._note(SUBSCRIBE, protocol, PERSISTENT_FLAG | (qos << QOS_SHIFT), 0, name, topic_filter, "")

    def unwished(self, protocol: int, name: str, topic_filter: str) -> None:
        """And no more."""
        self._note(UNSUBSCRIBE, protocol, PERSISTENT_FLAG, 0, name, topic_filter, "")

    def stored(
        self, protocol: int, name: str, topic: str, message: Message, qos: int, packet: int, *, retain: bool
    ) -> int:
        """A message is due to a kept session, which gets it under ``packet`` if that is not 0. Returns its offset."""
        flags = PERSISTENT_FLAG | (qos << QOS_SHIFT) | (RETAIN_FLAG if retain else 0)
        body = b"" if message.offset >= 0 else message.body
        headers = _packet(packet) if packet else ""
        where = str(message.offset) if message.offset >= 0 else ""
        return self._note(DELIVER, protocol, flags, 0, name, topic, where, headers, body)

    def sent(self, protocol: int, name: str, delivery: int, packet: int) -> None:
        """What is due to a session was sent for the first time, under this packet id."""
        self._note(SENT, protocol, PERSISTENT_FLAG, 0, name, "", str(delivery), _packet(packet))

    def received(self, protocol: int, name: str, delivery: int, packet: int) -> None:
        """The session's client has the message; the end of the flow is still to come."""
        self._note(RECEIVED, protocol, PERSISTENT_FLAG, 0, name, "", str(delivery), _packet(packet))

    def finished(self, protocol: int, name: str, delivery: int) -> None:
        """What was due to a session is done with."""
        self._note(ACK, protocol, PERSISTENT_FLAG, 0, name, "", str(delivery))

    def held(self, protocol: int, name: str, packet: int) -> None:
        """A kept session's client has published under this id, and not released it."""
        self._note(HOLD, protocol, PERSISTENT_FLAG, 0, name, "", str(packet))

    def released(self, protocol: int, name: str, packet: int) -> None:
        """And now it has."""
        self._note(RELEASE, protocol, PERSISTENT_FLAG, 0, name, "", str(packet))

    def _message(self, kind: i64, message: Message, client: Client, flags: int, *, state: bool = False) -> int:
        if self.failed and not self._kept:
            self.unrecorded += 1
            return UNRECORDED
        return self._row(kind, message, client.protocol, client.number, client.name, flags, state=state)

    def _row(
        self, kind: i64, message: Message, protocol: i64, connection: i64, name: str, flags: int, *, state: bool
    ) -> int:
        """A message's row. ``state``: it changes what is kept."""
        if message.retain:
            flags |= RETAIN_FLAG
        if message.binary:
            flags |= BINARY_FLAG
        channel = message.channel
        if not is_literal(channel):
            channel = to_stars(channel)
            flags |= PATTERN_FLAG
        self._ready(message.size())
        columns = self.columns
        if state or message.retain:
            columns.state = True
        headers = encode_headers(message.headers) if message.headers else ""
        offset = columns.append(
            kind,
            protocol,
            flags,
            connection,
            message.time,
            name,
            channel,
            message.body,
            "",
            message.content_type,
            headers,
        )
        if message.attachments:
            columns.attach(kept_attachments(message))
        return offset

    def _step(self, kind: i64, call: int, channel: str, message: Message, client: Client | None, flags: int) -> None:
        """A part of a call."""
        if self.failed:
            return
        self._ready(message.size())
        headers = encode_headers(message.headers) if message.headers else ""
        self.columns.append(
            kind,
            NO_PROTOCOL if client is None else client.protocol,
            flags | BINARY_FLAG if message.binary else flags,
            message.origin if client is None else client.number,
            self._clock(),
            "" if client is None else client.name,
            channel,
            message.body,
            str(call),
            message.content_type,
            headers,
        )
        if message.attachments:
            self.columns.attach(kept_attachments(message))

    def _event(self, kind: i64, client: Client, channel: str, headers: dict[str, object] | None) -> None:
        """Something that is told, and changes nothing that is kept."""
        if not self.failed:
            self._ready(0)
            self.columns.append(
                kind,
                client.protocol,
                0,
                client.number,
                self._clock(),
                client.name,
                channel,
                b"",
                "",
                "",
                "" if headers is None else _json(headers),
            )

    def _note(
        self,
        kind: i64,
        protocol: i64,
        flags: i64,
        connection: i64,
        name: str,
        channel: str,
        correlation: str,
        headers: str = "",
        body: bytes = b"",
    ) -> int:
        """A change of what is kept. It is recorded though the journal fails, as long as there is room."""
        if self.failed and not self._kept and (self._together or self.pending() > FAILED_OCTETS):
            self.unrecorded += 1
            return UNRECORDED
        self._ready(len(body))
        columns = self.columns
        columns.state = True
        return columns.append(
            kind, protocol, flags, connection, self._clock(), name, channel, body, correlation, "", headers
        )

    def _ready(self, size: i64) -> None:
        """Have columns that can take so many octets, and somebody who will take them."""
        held: i64 = self.columns.octets()
        if (held > BATCH_OCTETS and not self._together) or held + size > MAX_OCTETS:
            self.rotate()
        if not self._told:
            self._told = True
            self._on_rows()


def kept_attachments(message: Message) -> tuple[bytes | None, ...]:
    """A message's attachments as the journal has them: null for one that failed."""
    return tuple([each if isinstance(each, bytes) else None for each in message.attachments])


def encode_headers(headers: Headers) -> str:
    """Headers as the journal has them: a JSON object, with ``{"date": seconds}`` for a date."""
    return _json({name: {"date": value.seconds} if isinstance(value, Date) else value for name, value in headers})


def _will(connection: int, group: int) -> str:
    """The name of a group of last wills."""
    return f"{connection}/{group}" if group else str(connection)


def _packet(number: int) -> str:
    return f'{{"packet":{number}}}'


def _json(value: dict[str, object]) -> str:
    return msgspec.json.encode(value).decode()
