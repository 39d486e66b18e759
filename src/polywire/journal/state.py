"""The hub's state in the journal: what each of its rows means when it is written, folded and read back.

State is retained messages, queues, sessions that are kept, and last wills. Each change is a row (``StateRecorder``).
The state at some offset is a table of the rows before it that still mean something: ``fold_keys`` takes out those that
a later one has undone, so it is also the fold of an earlier state and the rows between. It works on whole columns: what
is not about state costs nothing, and most of what is about it has come and gone. ``restore`` reads what is left when a
hub starts.

- A retained message is a ``publish`` with the retain flag. The next one of the channel undoes it, and so does one
  without a body, or ``retain``, which leaves none.
- A message in a queue is an ``enqueue``; ``nack`` says how often it was delivered. ``ack`` with the queued flag undoes
  both.
- A session that is kept is a ``session``. One with the clean flag begins it again, or ends it.
- Its subscriptions are ``subscribe``, undone by ``unsubscribe``.
- What is due to it is ``deliver``, then ``sent`` and ``received`` with a packet id, undone by ``ack``.
- Packet ids that its client holds are ``hold``, undone by ``release``.
- The last wills of a connection are ``will``, undone by one with the clean flag.

Rows that refer to another one have its offset, or the packet id, in ``correlation``; the name of a session is in
``client``. The rows of messages themselves are in ``polywire.hub.recorder``, which knows what a message is.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, final

import msgspec.json
from mypy_extensions import i64

from polywire.journal.columns import MAX_OCTETS, Columns
from polywire.journal.kinds import (
    ACK,
    CLEAN_FLAG,
    DELIVER,
    HOLD,
    NACK,
    NO_PROTOCOL,
    PERSISTENT_FLAG,
    QOS_MASK,
    QOS_SHIFT,
    QUEUED_FLAG,
    RECEIVED,
    RELEASE,
    REPLICATED_FLAG,
    RETAIN,
    RETAIN_FLAG,
    SENT,
    SESSION,
    SUBSCRIBE,
    UNSUBSCRIBE,
    WILL,
    WILL_FLAG,
)

BATCH_OCTETS: Final = 4 * 1024 * 1024
"""How large a batch grows before the next one begins, in bytes."""

FAILED_OCTETS: Final = 32 * 1024 * 1024
"""How much is kept while the journal can't be written, in bytes."""

UNRECORDED: Final = -1
"""The offset of a message that is not in the journal."""

QUEUE_PREFIX: Final = "queue/"

KEYS: Final = ("offset", "kind", "client", "channel", "correlation", "size", "flags")
"""The columns of a table of keys, which decide what is left."""

KEY_SOURCES: Final = (*KEYS, "protocol", "attachments")
"""The columns of a row that its keys are made of."""

SESSION_KINDS: Final = (
    "session",
    "subscribe",
    "unsubscribe",
    "deliver",
    "sent",
    "received",
    "ack",
    "hold",
    "release",
)

Row = dict[str, Any]
"""A row as readers see it, by the names of its columns."""


class StateRecorder:
    """Collects rows for the journal, and writes those that change the state.

    ``on_rows`` is called at the first row after ``take``; ``full`` are batches that are large enough.
    """

    def __init__(self, first: int, clock: Callable[[], int], on_rows: Callable[[], None]) -> None:
        self.columns = Columns(first)
        self.full: list[Columns] = []
        self.octets: i64 = 0  # of those
        self._taken: i64 = first  # the offset behind the last row that was taken
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
        self._taken = self.columns.first
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

    def together(self, *, on: bool) -> None:
        """From now on rows become safe all or none, until it is switched off."""
        if on and self.columns.octets() > BATCH_OCTETS:
            self.rotate()
        self._together = on
        self._kept = on and self.pending() <= FAILED_OCTETS

    def part(self) -> None:
        """Let the next row begin a batch of its own, unless it is to be safe together with those before it."""
        if not self._together:
            self.rotate()

    def rows(self) -> int:
        """How many rows wait to be taken."""
        return int(self.columns.first + self.columns.rows - self._taken)

    def pending(self) -> int:
        """About how many bytes wait to be taken."""
        return self.octets + self.columns.octets()

    def dequeued(self, queue: str, offset: int) -> None:
        """A consumer has acknowledged the message that was put into the queue with this offset."""
        if offset >= 0:
            self._note(ACK, NO_PROTOCOL, QUEUED_FLAG, 0, "", QUEUE_PREFIX + queue, str(offset))

    def returned(self, queue: str, offset: int, deliveries: int, reason: str) -> None:
        """The message with this offset is back in the queue, after so many deliveries."""
        if offset >= 0:
            about: Row = {"deliveries": deliveries, "reason": reason} if reason else {"deliveries": deliveries}
            self._note(NACK, NO_PROTOCOL, QUEUED_FLAG, 0, "", QUEUE_PREFIX + queue, str(offset), to_json(about))

    def cleared(self, protocol: i64, connection: i64, name: str, channel: str) -> None:
        """A client has cleared a topic: it has no retained message any more."""
        self._note(RETAIN, protocol, 0, connection, name, channel, "")

    def started(self) -> None:
        """The hub has started: all connections from before have ended."""
        self._note(SESSION, NO_PROTOCOL, CLEAN_FLAG, 0, "", "", "", '{"start":true}')

    def session(self, protocol: int, name: str, user: str, *, kept: bool, clean: bool, headers: str = "") -> None:
        """A session begins, ``clean`` or where it was; one that is not ``kept`` leaves nothing behind.

        ``headers`` is what its protocol wants to know of it later, in JSON.
        """
        flags = (PERSISTENT_FLAG if kept else 0) | (CLEAN_FLAG if clean else 0)
        self._note(SESSION, protocol, flags, 0, name, "", user, headers)

    def applied(self, name: str, place: str, headers: str = "") -> None:
        """A sink of the pipeline has published everything up to ``place``. ``headers`` is a JSON object."""
        self._note(SESSION, NO_PROTOCOL, PERSISTENT_FLAG, 0, name, "", place, headers)

    def session_subscribed(self, protocol: int, name: str, topic_filter: str, qos: int) -> None:
        """A kept session has subscribed to a filter, written as its protocol does."""
        self._note(SUBSCRIBE, protocol, PERSISTENT_FLAG | (qos << QOS_SHIFT), 0, name, topic_filter, "")

    def session_unsubscribed(self, protocol: int, name: str, topic_filter: str) -> None:
        """A kept session has unsubscribed."""
        self._note(UNSUBSCRIBE, protocol, PERSISTENT_FLAG, 0, name, topic_filter, "")

    def stored(
        self, protocol: int, name: str, topic: str, offset: i64, body: bytes, qos: int, packet: int, *, retain: bool
    ) -> int:
        """A message is due to a kept session, which gets it under ``packet`` if that is not 0.

        ``offset`` is that of the message's own row, which has the body; without one, this row has it. Returns the
        offset of this row.
        """
        flags = PERSISTENT_FLAG | (qos << QOS_SHIFT) | (RETAIN_FLAG if retain else 0)
        headers = _packet(packet) if packet else ""
        if offset >= 0:
            return self._note(DELIVER, protocol, flags, 0, name, topic, str(offset), headers)
        return self._note(DELIVER, protocol, flags, 0, name, topic, "", headers, body)

    def sent(self, protocol: int, name: str, delivery: int, packet: int) -> None:
        """What is due to a session was sent for the first time, under this packet id."""
        self._note(SENT, protocol, PERSISTENT_FLAG, 0, name, "", str(delivery), _packet(packet))

    def received(self, protocol: int, name: str, delivery: int, packet: int) -> None:
        """The session's client has the message; the end of the flow is still to come."""
        self._note(RECEIVED, protocol, PERSISTENT_FLAG, 0, name, "", str(delivery), _packet(packet))

    def finished(self, protocol: int, name: str, delivery: int) -> None:
        """What was due to a session has been delivered, or is given up."""
        self._note(ACK, protocol, PERSISTENT_FLAG, 0, name, "", str(delivery))

    def held(self, protocol: int, name: str, packet: int) -> None:
        """A kept session's client has published under this id, and not released it."""
        self._note(HOLD, protocol, PERSISTENT_FLAG, 0, name, "", str(packet))

    def released(self, protocol: int, name: str, packet: int) -> None:
        """The client has released the id."""
        self._note(RELEASE, protocol, PERSISTENT_FLAG, 0, name, "", str(packet))

    def will(
        self, protocol: i64, connection: i64, name: str, channel: str, flags: i64, body: bytes, about: str, group: int
    ) -> None:
        """A connection has left a last will. Wills of one ``group`` are over together. ``about`` is a JSON object."""
        will = _will(connection, group)
        self._note(WILL, protocol, WILL_FLAG | flags, connection, name, channel, will, about, body)

    def wills_over(self, protocol: i64, connection: i64, name: str, group: int) -> None:
        """A group of last wills was published, or is not to be."""
        self._note(WILL, protocol, WILL_FLAG | CLEAN_FLAG, connection, name, "", _will(connection, group))

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
        """A change of the state. It is recorded even while the journal can't be written, as long as there is room."""
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
        """Make sure that there is room for so many bytes, and that somebody will take the rows."""
        held: i64 = self.columns.octets()
        if (held > BATCH_OCTETS and not self._together) or held + size > MAX_OCTETS:
            self.rotate()
        if not self._told:
            self._told = True
            self._on_rows()


def session_about(how: str, groups: Iterable[str], *, bridge: bool, away: int | None = None) -> str:
    """The headers of a ``session`` row: who its client is, and with ``away`` that it has gone; see ``KeptSession``."""
    about: Row = {} if away is None else {"away": away}
    about["how"] = how
    ordered = sorted(groups)
    if ordered:
        about["groups"] = ordered
    if bridge:
        about["bridge"] = True
    return to_json(about)


def to_json(value: Row) -> str:
    """A JSON object as rows have it."""
    return msgspec.json.encode(value).decode()


def _will(connection: i64, group: int) -> str:
    """The name of a group of last wills."""
    return f"{connection}/{group}" if group else str(connection)


def _packet(number: int) -> str:
    return f'{{"packet":{number}}}'


@functools.cache
def _arrow() -> tuple[Any, Any]:
    """Arrow and its kernels, loaded at first use: the hub imports this module, and without a journal needs neither."""
    import pyarrow as pa  # noqa: PLC0415 - see above
    import pyarrow.compute as pc  # noqa: PLC0415 - see above

    return pa, pc


def keys_of(rows: Any) -> Any:
    """A table of the keys of these rows, which have at least the columns ``KEY_SOURCES``.

    ``client`` names the protocol too, as sessions of different protocols may have one name. ``size`` is not 0 where
    there are attachments, even if they are empty or failed: the message is not one that clears its channel.
    """
    pa, pc = _arrow()
    client = pc.binary_join_element_wise(pc.fill_null(rows["protocol"], ""), rows["client"], "/")
    size = pc.max_element_wise(rows["size"], pc.cast(pc.is_valid(rows["attachments"]), pa.int32()))
    return pa.table({name: rows[name] for name in KEYS} | {"client": client, "size": size})


def fold_keys(keys: Any) -> Any:
    """Of the keys of rows, in order of offsets, those of rows that still mean something."""
    pa, pc = _arrow()
    kept = [_retained(keys), *_queued(keys), *_sessions(keys), *_wills(keys)]
    offsets = pa.concat_arrays([pa.array(each, pa.int64()) for each in kept])
    return keys.filter(pc.is_in(keys["offset"], value_set=offsets))


def references(rows: Any) -> Any:
    """The offsets of the messages that deliveries without a body of their own stand for."""
    pa, pc = _arrow()
    return pc.cast(rows.filter(unresolved(rows))["correlation"], pa.int64()).unique()


def resolve(rows: Any, bodies: Mapping[int, bytes]) -> Any:
    """The rows, with the bodies of messages, by their offsets, put into the deliveries that stand for them.

    A delivery whose message is not there any more is left out.
    """
    pa, pc = _arrow()
    waiting = unresolved(rows)
    if not pc.any(waiting).as_py():
        return rows
    changed = []
    for row in rows.filter(waiting).to_pylist():
        body = bodies.get(int(row["correlation"]))
        if body is not None:
            changed.append(row | {"body": body, "size": len(body), "correlation": None})
    others = rows.filter(pc.invert(waiting))
    return pa.concat_tables([others, pa.Table.from_pylist(changed, rows.schema)]).sort_by("offset")


def unresolved(rows: Any) -> Any:
    """For each row whether it is a delivery that stands for a message elsewhere."""
    pc = _arrow()[1]
    return pc.and_(_is(rows, "deliver"), pc.is_valid(rows["correlation"]))


def _retained(rows: Any) -> Any:
    """The last row of each channel, unless it cleared it."""
    pc = _arrow()[1]
    mine = rows.filter(pc.or_(_is(rows, "retain"), pc.and_(_is(rows, "publish"), _has(rows, RETAIN_FLAG))))
    last = _last_of(mine, ["channel"])
    return last.filter(pc.greater(last["size"], 0))["offset"].combine_chunks()


def _queued(rows: Any) -> list[Any]:
    """What was put into a queue and not acknowledged, and of each the last row that says how often it was delivered."""
    pa, pc = _arrow()
    acks = rows.filter(pc.and_(_is(rows, "ack"), _has(rows, QUEUED_FLAG)))
    done = pc.cast(acks["correlation"], pa.int64())
    entered = rows.filter(pc.and_(_is(rows, "enqueue"), pc.invert(_has(rows, REPLICATED_FLAG))))["offset"]
    left = entered.filter(pc.invert(pc.is_in(entered, value_set=done.combine_chunks()))).combine_chunks()
    nacks = rows.filter(_is(rows, "nack"))
    if not nacks.num_rows:
        return [left]
    last = _last_of(nacks, ["correlation"])
    return [left, last.filter(pc.is_in(_number(last["correlation"]), value_set=left))["offset"].combine_chunks()]


def _sessions(rows: Any) -> list[Any]:
    """Of each session that is kept: its last beginning, its subscriptions, what is due to it and what it holds."""
    pc = _arrow()[1]
    mine = rows.filter(pc.and_(pc.is_valid(rows["client"]), _is(rows, *SESSION_KINDS)))
    mine = mine.filter(pc.or_(_has(mine, PERSISTENT_FLAG), _has(mine, CLEAN_FLAG)))
    if not mine.num_rows:
        return []
    mine = _alive(mine)
    filters = _last_of(mine.filter(_is(mine, "subscribe", "unsubscribe")), ["client", "channel"])
    holds = _last_of(mine.filter(_is(mine, "hold", "release")), ["client", "correlation"])
    steps = _last_of(mine.filter(_is(mine, "sent", "received", "ack")), ["client", "correlation"])
    received = steps.filter(_is(steps, "received"))
    gone = steps.filter(_is(steps, "received", "ack"))
    due = mine.filter(_is(mine, "deliver"))
    due = due.filter(pc.invert(pc.is_in(due["offset"], value_set=_number(gone["correlation"]))))
    sent = steps.filter(_is(steps, "sent"))
    sent = sent.filter(pc.is_in(_number(sent["correlation"]), value_set=due["offset"].combine_chunks()))
    left = [
        _last_of(mine.filter(_is(mine, "session")), ["client"]),
        filters.filter(_is(filters, "subscribe")),
        holds.filter(_is(holds, "hold")),
        received,
        due,
        sent,
    ]
    return [each["offset"].combine_chunks() for each in left]


def _wills(rows: Any) -> list[Any]:
    """The last wills of connections that had not ended."""
    pc = _arrow()[1]
    mine = rows.filter(_is(rows, "will"))
    if not mine.num_rows:
        return []
    over = mine.filter(_has(mine, CLEAN_FLAG)).group_by("correlation").aggregate([("offset", "max")])
    mine = mine.join(over, "correlation", join_type="left outer", use_threads=False)
    return [mine.filter(pc.greater(mine["offset"], pc.fill_null(mine["offset_max"], -1)))["offset"].combine_chunks()]


def _alive(mine: Any) -> Any:
    """Without what came before a session began clean, and without sessions of which nothing is kept."""
    pc = _arrow()[1]
    begins = mine.filter(_is(mine, "session"))
    clean = begins.filter(_has(begins, CLEAN_FLAG)).group_by("client").aggregate([("offset", "max")])
    mine = mine.join(clean, "client", join_type="left outer", use_threads=False).sort_by("offset")
    born = pc.fill_null(mine["offset_max"], -1)
    mine = mine.filter(pc.greater_equal(mine["offset"], born)).drop_columns(["offset_max"])
    last = _last_of(mine.filter(_is(mine, "session")), ["client"])
    kept = last.filter(_has(last, PERSISTENT_FLAG))["client"].combine_chunks()
    return mine.filter(pc.is_in(mine["client"], value_set=kept))


def _last_of(rows: Any, keys: list[str]) -> Any:
    """The last row for each combination of keys."""
    pc = _arrow()[1]
    last = rows.group_by(keys, use_threads=False).aggregate([("offset", "max")])["offset_max"]
    return rows.filter(pc.is_in(rows["offset"], value_set=last.combine_chunks()))


def _is(rows: Any, *kinds: str) -> Any:
    pa, pc = _arrow()
    return pc.is_in(rows["kind"], value_set=pa.array(kinds, pa.utf8()))


def _has(rows: Any, flag: int) -> Any:
    pc = _arrow()[1]
    return pc.not_equal(pc.bit_wise_and(rows["flags"], flag), 0)


def _number(texts: Any) -> Any:
    pa, pc = _arrow()
    return pc.cast(texts, pa.int64()).combine_chunks()


@final
class Due:
    """A message that is due to a session."""

    def __init__(self, topic: str, body: bytes, qos: int, *, retain: bool) -> None:
        self.topic: Final = topic
        self.body: Final = body
        self.qos: Final = qos
        self.retain: Final = retain


@final
class KeptSession:
    """A session that is kept, as its rows leave it. ``protocol`` is a name; None for one of the hub's own.

    ``offset`` and ``time`` are those of the row in which it was last begun or left, ``user`` and ``about`` what is in
    it. ``filters`` are its subscriptions with their QoS. ``due`` are messages by the offset of their ``deliver`` row;
    those in ``packets`` were sent under that packet id. Those in ``released`` are not due any more, but their packet id
    is still in use. ``held`` are the packet ids that its client has published under, and not released.
    """

    def __init__(self, protocol: str | None, name: str) -> None:
        self.protocol: Final = protocol
        self.name: Final = name
        self.offset = 0
        self.time = 0
        self.user = ""
        self.about: Row = {}
        self.filters: Final[dict[str, int]] = {}
        self.held: Final[set[int]] = set()
        self.due: Final[dict[int, Due]] = {}
        self.packets: Final[dict[int, int]] = {}
        self.released: Final[dict[int, int]] = {}

    @property
    def away_since(self) -> int:
        """When its client went, in nanoseconds; 0 where it was there to the end."""
        return self.time if "away" in self.about else 0

    @property
    def doubtful(self) -> int:
        """What is due under an offset below this may have been sent before."""
        return int(self.about.get("away", 0))

    @property
    def bridge(self) -> bool:
        """Whether its client is a bridge."""
        return bool(self.about.get("bridge", False))

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of its client."""
        return tuple(self.about.get("groups", ()))

    @property
    def how(self) -> str:
        """How its client proved who it is."""
        return str(self.about.get("how", ""))

    def take(self, row: Row) -> None:
        """One of its rows, in order."""
        kind, flags = row["kind"], row["flags"]
        qos = (flags & QOS_MASK) >> QOS_SHIFT
        if kind == "session":
            self.offset, self.time = row["offset"], time_of(row)
            self.user = row["correlation"] or ""
            self.about = msgspec.json.decode(row["headers"] or "{}")
        elif kind == "subscribe":
            self.filters[row["channel"]] = qos
        elif kind == "hold":
            self.held.add(int(row["correlation"]))
        elif kind == "deliver":
            self.due[row["offset"]] = Due(row["channel"], row["body"], qos, retain=bool(flags & RETAIN_FLAG))
            if row["headers"]:
                self.packets[row["offset"]] = packet_of(row)
        elif kind == "sent":
            self.packets[int(row["correlation"])] = packet_of(row)
        elif kind == "received":
            self.released[int(row["correlation"])] = packet_of(row)


class Memory(Protocol):
    """What takes back the messages of the state, one row after the other."""

    def retain(self, row: Row) -> None:
        """A retained message."""

    def enqueue(self, row: Row) -> None:
        """A message in a queue."""

    def redeliver(self, offset: int, deliveries: int) -> None:
        """The queue's message with this offset was delivered so often."""

    def will(self, row: Row) -> None:
        """A last will of a connection that had not ended."""


def restore(rows: Iterable[Row], memory: Memory) -> list[KeptSession]:
    """Give the messages of a folded state, in the order of their offsets, to ``memory``. Returns the sessions."""
    sessions: dict[tuple[str | None, str], KeptSession] = {}
    for row in rows:
        kind = row["kind"]
        if kind in {"publish", "retain"}:
            memory.retain(row)
        elif kind == "enqueue":
            memory.enqueue(row)
        elif kind == "nack":
            memory.redeliver(int(row["correlation"]), msgspec.json.decode(row["headers"])["deliveries"])
        elif kind == "will":
            memory.will(row)
        else:
            protocol, name = row["protocol"], row["client"]
            session = sessions.get((protocol, name))
            if session is None:
                session = KeptSession(protocol, name)
                sessions[protocol, name] = session
            session.take(row)
    return list(sessions.values())


def packet_of(row: Row) -> int:
    """The packet id in a row's headers."""
    return int(msgspec.json.decode(row["headers"])["packet"])


def time_of(row: Row) -> int:
    """A row's time, in nanoseconds."""
    seconds: float = row["ts"].timestamp()
    return round(seconds * 1_000_000) * 1000
