"""What happens in the hub, as rows for the journal.

The hub and its sessions call the recorder, which appends to the current ``Columns``; the journal's writer takes those
away from time to time. Here are the rows of messages, calls and events, and how messages are read back; the rows that
say what became of stored messages and sessions are in ``polywire.journal.state``.

While the journal can't be written (``failed``), rows of messages are not kept, as they would fill the memory; those
that say what became of stored messages are, up to a bound, and so are last wills.

Publications that are forwarded as they came are recorded as ``Runs``: one that begins where the last one ended makes
that one longer, and the positions of topics and bodies are looked up once for all of them.
"""

from collections.abc import Callable, Sequence
from typing import Final, cast, final

import msgspec.json
from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from polywire.hub.access import Identity
from polywire.hub.channels import from_stars, is_literal, to_stars
from polywire.hub.client import Client
from polywire.hub.message import Date, FailedAttachment, Headers, Message
from polywire.hub.routes import Route
from polywire.journal.kinds import (
    BINARY_FLAG,
    CONNECT,
    DISCARD,
    DISCONNECT,
    ENQUEUE,
    ERROR,
    LAST_FLAG,
    NO_PROTOCOL,
    PATTERN_FLAG,
    PUBLISH,
    QOS_MASK,
    QOS_SHIFT,
    REPLICATED_FLAG,
    REPLY,
    REQUEST,
    RETAIN,
    RETAIN_FLAG,
    SUBSCRIBE,
    UNHEARD_FLAG,
    UNSUBSCRIBE,
)
from polywire.journal.state import UNRECORDED, Row, StateRecorder, time_of, to_json
from polywire.wire.frame import RAW_KEPT, Run

NOT_KEPT: Final = "the attachment failed"
"""The text of a failed attachment that comes from the journal, which keeps a null in its place."""


@final
class Recorder(StateRecorder):
    """The rows of one hub."""

    def begin_run(self, data: bytes, count: i64, client: Client, now: i64, flags: i64) -> i64:
        """Publications are about to be located: where their chunk begins in the arena, or -1 if they are not kept."""
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

    def copied(self, message: Message, node: str) -> None:
        """A message that a client of another node retained, or without a body one that has cleared its channel.

        The message itself is in that node's journal.
        """
        if self.failed:
            self.unrecorded += 1
            return
        flags = message.qos << QOS_SHIFT
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
        columns.state = True
        headers = encode_headers(message.headers) if message.headers else ""
        columns.append(
            RETAIN, NO_PROTOCOL, flags, message.origin, message.time, "", channel, message.body, node,
            message.content_type, headers,
        )  # fmt: skip
        if message.attachments:
            columns.attach(kept_attachments(message))

    def enqueued(self, message: Message, client: Client) -> int:
        """A message put into a queue."""
        return self._message(ENQUEUE, message, client, message.qos << QOS_SHIFT, state=True)

    def enqueued_elsewhere(self, message: Message, protocol: int, client: str) -> int:
        """A message that a client of another hub has put into a queue of this one."""
        return self._row(ENQUEUE, message, protocol, message.origin, client, message.qos << QOS_SHIFT, state=True)

    def replicated(self, message: Message, protocol: int, connection: int, client: str) -> None:
        """A message put into a queue that is kept in another log. The row only tells of it."""
        if not self.failed:
            flags = REPLICATED_FLAG | message.qos << QOS_SHIFT
            self._row(ENQUEUE, message, protocol, connection, client, flags, state=False)

    def moved(self, message: Message, queue: str, offset: int) -> int:
        """A queue has given up the message with this offset: ``message`` takes its place in another queue.

        Both rows are written or neither, so the message is in exactly one of the queues after a crash too.
        """
        together = self._together
        self.together(on=True)
        found = self._row(ENQUEUE, message, NO_PROTOCOL, message.origin, "", message.qos << QOS_SHIFT, state=True)
        self.dequeued(queue, offset)
        self._together = together
        return found

    def requested(self, call: str, channel: str, message: Message, client: Client | None, *, last: bool) -> None:
        """A request of a call."""
        self._step(REQUEST, call, channel, message, client, LAST_FLAG if last else 0)

    def replied(self, call: str, channel: str, message: Message, client: Client | None, *, last: bool) -> None:
        """A reply of a call."""
        self._step(REPLY, call, channel, message, client, LAST_FLAG if last else 0)

    def call_failed(self, call: str, channel: str, code: int, tag: str, text: str) -> None:
        """A call has ended with an error."""
        if not self.failed:
            headers = to_json({"code": code, "tag": tag, "text": text})
            self._ready(0)
            self.columns.append(ERROR, NO_PROTOCOL, LAST_FLAG, 0, self._clock(), "", channel, b"", call, "", headers)

    def connected(self, client: Client) -> None:
        """A client has joined."""
        self._event(CONNECT, client, "", {"address": client.address, "user": client.identity.name})

    def disconnected(self, client: Client) -> None:
        """A client has left."""
        self._event(DISCONNECT, client, "", {"reason": client.reason or "closed"})

    def subscribed(self, client: Client, pattern: str) -> None:
        """A client has subscribed to the topics of a pattern."""
        self._event(SUBSCRIBE, client, pattern, None)

    def unsubscribed(self, client: Client, pattern: str) -> None:
        """A client has unsubscribed from them."""
        self._event(UNSUBSCRIBE, client, pattern, None)

    def discarded(self, client: Client, channel: str, rule: str, reason: str, raw: bytes, size: int) -> None:
        """Something a client sent went nowhere."""
        if self.failed:
            return
        self._ready(len(raw))
        columns = self.columns
        headers = to_json({"rule": rule, "reason": reason})
        raw = raw[:RAW_KEPT]
        columns.append(
            DISCARD, client.protocol, 0, client.number, self._clock(), client.name, channel, raw, "", "", headers
        )
        if size != len(raw):
            columns.size(size)

    def will_left(self, message: Message, client: Client, mark: int, group: int = 0) -> None:
        """A client has left a last will. ``mark`` is what its protocol wants to know when the will is published.

        Wills of one ``group`` are over together.
        """
        flags = message.qos << QOS_SHIFT
        if message.retain:
            flags |= RETAIN_FLAG
        channel = message.channel
        if not is_literal(channel):
            channel = to_stars(channel)
            flags |= PATTERN_FLAG
        who = client.identity
        about = to_json({"user": who.name, "groups": sorted(who.groups), "how": who.how, "mark": mark})
        self.will(client.protocol, client.number, client.name, channel, flags, message.body, about, group)

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

    def _step(self, kind: i64, call: str, channel: str, message: Message, client: Client | None, flags: int) -> None:
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
            call,
            message.content_type,
            headers,
        )
        if message.attachments:
            self.columns.attach(kept_attachments(message))

    def _event(self, kind: i64, client: Client, channel: str, headers: dict[str, object] | None) -> None:
        """Something that happened, and does not change the state."""
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
                "" if headers is None else to_json(headers),
            )


def kept_attachments(message: Message) -> tuple[bytes | None, ...]:
    """A message's attachments as the journal has them: null for one that failed."""
    return tuple([each if isinstance(each, bytes) else None for each in message.attachments])


def encode_headers(headers: Headers) -> str:
    """Headers as the journal has them: a JSON object, with ``{"date": seconds}`` for a date."""
    return to_json({name: {"date": value.seconds} if isinstance(value, Date) else value for name, value in headers})


def message_of(row: Row) -> Message:
    """The message that a row has."""
    flags = row["flags"]
    channel = from_stars(row["channel"], rest=False) if flags & PATTERN_FLAG else row["channel"]
    message = Message(
        channel,
        row["body"],
        row["content_type"] or "",
        headers_of(row["headers"]),
        tuple([FailedAttachment(NOT_KEPT) if each is None else each for each in row["attachments"] or ()]),
        bool(flags & RETAIN_FLAG),
        time_of(row),
        row["connection"],
        (flags & QOS_MASK) >> QOS_SHIFT,
        binary=bool(flags & BINARY_FLAG),
    )
    message.offset = row["offset"]
    return message


def headers_of(text: str | None) -> Headers:
    """Headers as the journal has them, read again."""
    if not text:
        return ()
    found: Row = msgspec.json.decode(text)
    return tuple([(name, Date(value["date"]) if isinstance(value, dict) else value) for name, value in found.items()])


def will_of(row: Row) -> tuple[Message, Identity, int]:
    """The last will a row tells of, whose it was, and what its protocol wants to know when it is published."""
    about: Row = msgspec.json.decode(row["headers"])
    message = message_of(row | {"headers": None})  # they are not its own
    return message, Identity(about["user"], about["groups"], about["how"]), about["mark"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Runs:
    """One connection's runs. A session derives its own, and says how its protocol's frames are read.

    ``qos`` is that of the messages they hold, -1 for the run's own; ``origin`` is their connection. ``now`` is when
    the chunk at hand came, ``version`` what ``RouteTable.changes`` was when it was scanned: its runs have the routes of
    that moment.
    """

    def __init__(self, client: Client, qos: int = -1) -> None:
        self.client: Final = client
        self.qos: Final = qos
        self.origin: i64 = client.number
        self.now: i64 = 0
        self.version: i64 = -1
        self._data = b""
        self._start: i64 = 0
        self._end: i64 = 0
        self._count: i64 = 0
        self._flags: i64 = 0

    def locate(self, data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
        """Write where the topics and bodies of the frames are, counted from ``base``.

        Each takes 64 bits: where it begins and, 32 bits up, ends.
        """
        raise NotImplementedError

    def scan(
        self, data: bytes, routes: dict[bytes, object], resolve: Callable[[bytes], object | None]
    ) -> Sequence[object]:
        """The runs in frames that came in runs, and went through another node. The arguments are a view's."""
        raise NotImplementedError

    def next_offset(self, recorder: Recorder) -> i64:
        """The offset behind what was added last."""
        return recorder.columns.first + recorder.columns.rows + self._count

    def add(self, run: Run, recorder: Recorder) -> None:
        """One more run of the chunk at hand."""
        flags: i64 = run.qos << QOS_SHIFT
        if len(cast("Route", run.route).subscriptions) == 0:
            flags |= UNHEARD_FLAG
        if run.start == self._end and flags == self._flags and run.data is self._data:
            self._end = run.end
            self._count += run.count
            return
        self.record(recorder)
        self._data = run.data
        self._start = run.start
        self._end = run.end
        self._count = run.count
        self._flags = flags

    def record(self, recorder: Recorder) -> i64:
        """Something else follows, or nothing: record what there is. Returns the offset behind it, -1 for none."""
        count = self._count
        if count == 0:
            return -1
        data = self._data
        base = recorder.begin_run(data, count, self.client, self.now, self._flags)
        self._data = b""
        self._count = 0
        if base < 0:
            return -1
        columns = recorder.columns
        self.locate(data, self._start, self._end, base, columns.places)
        columns.rows += count
        return columns.first + columns.rows
