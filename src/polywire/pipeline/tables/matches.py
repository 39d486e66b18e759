"""Requests matched with what ended them, of rows at rest and of a stream, by one and the same function.

A call is ended by its last reply or by an error, if that came within ``timeout`` of the request; else it timed out. A
timeout is reported once the node's rows have gone ``lateness`` beyond it, as no row comes later than that. ``match``
does this for the rows of one node, without Spark: they are an Arrow table with the columns of ``STORED``, and times are
microseconds.

Rows go by node and a hash of the correlation into buckets. In a stream each bucket keeps what is still open, and which
calls have just ended, as one value of Spark's state; at rest a bucket has all its rows at once. A bucket's clock are
rows of all kinds, so a timeout is found though the answering side went quiet; when everything did, the source's ticks
are the only rows, and do the same. There are no timers: they would go by the clock of the machine that computes, and a
journal that is read late, or again after a crash, has to give the same calls.

A correlation may be used again, as clients that count their calls do after a restart: a request that comes more than
``timeout`` and ``lateness`` after the one before it begins a new call. One that comes earlier belongs to the same call,
as a further request of a stream, or repeated.

Spark hands rows to a bucket one by one, at some microseconds each. So thousands of them are packed into one row first:
Arrow in a binary column, which the bucket opens as a whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import concat_batches
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from polywire.journal.format import Array
from polywire.pipeline.columns import Mask, Numbers, Rows, hashes
from polywire.pipeline.table import schema

REQUEST: Final = 0
OPENING: Final = 1
"""A request that others of the same call follow."""
REPLY: Final = 2
ERROR: Final = 3
CLOCK: Final = 4
"""No part of a call: it says only that the node has come to this time."""
ANSWERED: Final = 5
"""In the state that an earlier release left: a call that has ended but whose requests may continue."""
TIMEOUT: Final = 6
SINGLE: Final = 7
"""A reply that does not say it is the last one. It ends the call if nothing else does: where one reply is all there is,
a service need not mark it."""
PASSED: Final = 8
"""An answer that the hub passed on: its call is in the journal under another name, and not to be counted again."""

FIRST: Final = ("protocol", "connection", "client", "channel", "size")
"""What a call has from its request."""

END: Final = {"role": "end_role", "at": "end_at", "size": "end_size", "headers": "end_headers"}
"""What it has from its end, and how that is called there."""

_STORED: Final[list[tuple[str, pa.DataType]]] = [
    ("role", pa.int32()),
    ("correlation", pa.utf8()),
    ("offset", pa.int64()),
    ("at", pa.int64()),
    ("protocol", pa.utf8()),
    ("connection", pa.int64()),
    ("client", pa.utf8()),
    ("channel", pa.utf8()),
    ("size", pa.int32()),
    ("headers", pa.utf8()),
]

STORED: Final = pa.schema(_STORED)
"""How rows are kept between two micro-batches."""

NO_PAIRS: Final = pa.schema(
    [
        *(STORED.field(name) for name in ("correlation", "offset", "at", *FIRST)),
        *(STORED.field(name).with_name(called) for name, called in END.items()),
    ]
).empty_table()


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is kept of a bucket: rows that wait for their other half, calls that have ended, the node's latest time.

    Of a call that has ended there are a hash of its correlation, and offset and time of its last request. So a request
    that is repeated, and an answer that comes again, is known for what it is.
    """

    rows: pa.Table
    clock: int
    ended: pa.RecordBatch

    def to_bytes(self) -> bytes:
        """The rows and the ended calls, to be stored: one stream of Arrow behind the other."""
        if not (self.rows.num_rows or self.ended.num_rows):
            return b""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, STORED) as writer:
            writer.write_table(self.rows.combine_chunks())
        if self.ended.num_rows:
            with pa.ipc.new_stream(sink, ENDED) as writer:
                writer.write_batch(self.ended)
        return bytes(sink.getvalue())

    @staticmethod
    def from_bytes(data: bytes, clock: int) -> "Waiting":
        """Decode what ``to_bytes`` returned, also that of an earlier release."""
        if not data:
            return Waiting(STORED.empty_table(), clock, NONE_ENDED)
        source = pa.BufferReader(data)
        with pa.ipc.open_stream(source) as reader:
            rows = reader.read_all()
        ended = NONE_ENDED
        if source.tell() < len(data):
            with pa.ipc.open_stream(source) as reader:
                ended = reader.read_next_batch()
        return Waiting(rows, clock, ended)


ENDED: Final = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("call", "offset", "at")])
NONE_ENDED: Final = pa.RecordBatch.from_arrays([pa.array([], pa.int64())] * 3, schema=ENDED)


def packed(rows: pa.Table) -> bytes:
    """Rows with the columns of ``STORED``, as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def unpacked(several: list[bytes]) -> pa.Table:
    """The rows of all of them."""
    tables = []
    for data in several:
        with pa.ipc.open_stream(data) as reader:
            tables.append(reader.read_all())
    return pa.concat_tables(tables) if tables else STORED.empty_table()


def nothing() -> Waiting:
    """What a bucket begins with."""
    return Waiting(STORED.empty_table(), 0, NONE_ENDED)


def match(before: Waiting, rows: pa.Table, timeout: int, lateness: int) -> tuple[pa.Table, Waiting]:
    """The calls these rows bring to an end, with the columns of ``PAIRS``, and what waits from now on."""
    clock = max(before.clock, pc.max(rows["at"]).as_py()) if rows.num_rows else before.clock
    window = timeout + lateness
    fresh = rows.filter(pc.not_equal(rows["role"], pa.scalar(CLOCK))) if rows.num_rows else rows
    parts = pa.concat_tables([before.rows, fresh]) if before.rows.num_rows else fresh
    if not parts.num_rows:  # a clock, and nothing it could settle: most buckets of a small micro-batch
        return NO_PAIRS, Waiting(parts, clock, _recent(before.ended, clock - window - lateness))
    calls = _Calls(parts.combine_chunks(), before.ended, window)
    at = calls.time[calls.begin]
    end = calls.first(np.isin(calls.role, (REPLY, ERROR, PASSED)))
    came = end >= 0
    single = calls.latest((calls.role == SINGLE) & (calls.time <= calls.begun + timeout))
    end = np.where(came & (calls.time[end] <= at + timeout), end, single)
    over = ~calls.ended & (came | (at <= clock - window))
    told = over & ((end < 0) | (calls.role[end] != PASSED))
    last = calls.latest(calls.asks)
    open_ = ~calls.ended & ~over
    # What ends a call may come before its request; it waits as long as the request could.
    lone = np.flatnonzero((calls.call < 0) & (calls.time > clock - window))
    kept = np.unique(np.concatenate([calls.begin[open_], last[open_], single[open_ & (single >= 0)], lone]))
    ended = calls.finished(~open_, last)
    return calls.pairs(np.flatnonzero(told), end, timeout), Waiting(
        calls.rows(kept), clock, _recent(ended, clock - window - lateness)
    )


class _Calls:
    """Parts of calls and calls that have ended, in the order of their correlations and offsets, and cut into calls.

    Of each row there are its ``role``, its ``time``, which ``call`` it belongs to, -1 for none, and when that was
    ``begun``; of each call where it begins, and whether it has ``ended`` before.
    """

    def __init__(self, parts: pa.Table, ended: pa.RecordBatch, window: int) -> None:
        own = hashes(parts.column("correlation").combine_chunks())
        before, offset, at = (_numbers(ended.column(name)) for name in ENDED.names)
        again = np.isin(before, own)
        self._parts = parts
        self._others = ended.filter(pa.array(~again))
        keys = np.concatenate([own, before[again]])
        offsets = np.concatenate([_numbers(parts["offset"]), offset[again]])
        order = np.lexsort((offsets, keys))
        answered = np.full(int(again.sum()), ANSWERED)
        self._source = order  # beyond the parts: calls that have ended
        self._keys = keys[order]
        self._offsets = offsets[order]
        self.time: Final = np.concatenate([_numbers(parts["at"]), at[again]])[order]
        self.role: Final = np.concatenate([_numbers(parts["role"]), answered])[order]
        self.asks: Final = np.isin(self.role, (REQUEST, OPENING, ANSWERED))
        place = np.arange(len(order))
        first = np.maximum.accumulate(np.where(np.diff(self._keys, prepend=self._keys[0]) != 0, place, 0))
        asked = np.concatenate([[-1], np.maximum.accumulate(np.where(self.asks, place, -1))[:-1]])
        begins = self.asks & ((asked < first) | (self.time > self.time[asked] + window))
        self.begin: Final = np.flatnonzero(begins)
        lone = np.maximum.accumulate(np.where(begins, place, -1)) < first
        self.call: Final = np.where(lone, -1, np.cumsum(begins) - 1)
        self.begun: Final = np.zeros(len(order), np.int64)
        self.begun[~lone] = self.time[self.begin[self.call[~lone]]]
        self.ended: Final = self.role[self.begin] == ANSWERED

    def first(self, meant: Mask) -> Numbers:
        """Of each call the first of these rows, -1 for none."""
        return self._one_each(np.flatnonzero(meant & (self.call >= 0))[::-1])

    def latest(self, meant: Mask) -> Numbers:
        """Of each call the last of these rows."""
        return self._one_each(np.flatnonzero(meant & (self.call >= 0)))

    def _one_each(self, rows: Numbers) -> Numbers:
        found = np.full(len(self.begin), -1, np.int64)
        found[self.call[rows]] = rows  # of several the last stays
        return found

    def rows(self, which: Numbers) -> pa.Table:
        """Parts, to be kept as they are."""
        return self._parts.take(self._source[which])

    def finished(self, over: Mask, last: Numbers) -> pa.RecordBatch:
        """The calls that have ended, now and before."""
        rows = last[over]
        columns = [pa.array(values[rows]) for values in (self._keys, self._offsets, self.time)]
        ended = pa.RecordBatch.from_arrays(columns, schema=ENDED)
        return concat_batches([self._others, ended]) if self._others.num_rows else ended

    def pairs(self, calls: Numbers, ends: Numbers, timeout: int) -> pa.Table:
        """Calls that are over: the columns of the request, and those of the end where it came in time."""
        begin, end = self.begin[calls], ends[calls]
        came = end >= 0
        where: Array = pa.array(self._source[end], pa.int64(), mask=~came)
        first = self._parts.select(["correlation", "offset", "at", *FIRST]).take(self._source[begin])
        last = self._parts.select(["size", "headers"]).take(where)
        role = np.where(came, np.where(self.role[end] == SINGLE, REPLY, self.role[end]), TIMEOUT)
        at = np.where(came, self.time[end], self.time[begin] + timeout)
        size = pc.coalesce(last["size"], pa.scalar(0, pa.int32()))
        columns: list[Any] = [*first.columns, pa.array(role.astype(np.int32)), pa.array(at), size, last["headers"]]
        return pa.Table.from_arrays(columns, schema=NO_PAIRS.schema)


def _numbers(column: "Array | pa.ChunkedArray[Any]") -> Numbers:
    found: Numbers = column.to_numpy().astype(np.int64)
    return found


def _recent(ended: pa.RecordBatch, since: int) -> pa.RecordBatch:
    """Calls whose requests may still be repeated."""
    return ended.filter(pc.greater_equal(ended.column("at"), pa.scalar(since))) if ended.num_rows else ended


_PARTS: Final[list[tuple[str, pa.DataType]]] = [("node", pa.utf8()), *_STORED]

PARTS: Final = pa.schema(_PARTS)
"""Parts of calls of several nodes."""

PACKED: Final = schema("node string, bucket int, clock bigint, parts binary")
"""What buckets get: parts of calls as Arrow has them, or nothing, and how far the node has come."""

HELD: Final = 50_000
"""Parts that are packed at once: a few megabytes."""

PAIRS: Final = schema(
    "node string, correlation string, offset bigint, at bigint, protocol string, connection bigint, client string, "
    "channel string, size int, end_role int, end_at bigint, end_size int, end_headers string"
)
"""A request and its end."""

STATE: Final = schema("clock bigint, rows binary")


BUCKETS_AT_REST: Final = 64
"""There a bucket is held in memory as a whole."""

Slim = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Makes parts of calls of the journal's rows."""


def matched(rows: DataFrame, slim: Slim, timeout: int, lateness: int, buckets: int) -> DataFrame:
    """Pairs, as the rows come. Times are microseconds."""
    keyed = rows.mapInArrow(Packer(slim, buckets), PACKED).groupBy("node", "bucket")
    return keyed.transformWithStateInPandas(
        statefulProcessor=Matcher(timeout, lateness),
        outputStructType=PAIRS,
        outputMode="Append",
        timeMode="None",
    )


def matched_at_rest(rows: DataFrame, slim: Slim, timeout: int, lateness: int, *, now: int) -> DataFrame:
    """Pairs, of all rows at once, as if each node had come to the time ``now``."""

    def of_bucket(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        clock = max(pc.max(rows["clock"]).as_py(), now)
        several = [data for data in rows["parts"].to_pylist() if data]
        pairs, _ = match(Waiting(STORED.empty_table(), clock, NONE_ENDED), unpacked(several), timeout, lateness)
        return of_node(key[0], pairs)

    packed_rows = rows.mapInArrow(Packer(slim, BUCKETS_AT_REST), PACKED)
    return packed_rows.groupBy("node", "bucket").applyInArrow(of_bucket, PAIRS)


def of_node(node: str, pairs: pa.Table) -> pa.Table:
    """Pairs with the name of their node."""
    return pairs.add_column(0, pa.field("node", pa.utf8()), pa.repeat(node, pairs.num_rows).cast(pa.utf8()))


class Packer:
    """Packs parts of calls by node and bucket, and at the end sends every bucket the progress of each node."""

    def __init__(self, slim: Slim, buckets: int) -> None:
        self._slim = slim
        self._buckets = buckets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One partition of the source."""
        clocks: dict[str, int] = {}
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            for node, latest in Rows(batch).latest().items():
                clocks[node] = max(clocks.get(node, latest), latest)
            held.append(self._slim(batch))
            rows += held[-1].num_rows
            if rows >= HELD:
                yield self._packed(held, clocks)
                held, rows = [], 0
        if clocks:
            yield self._packed(held, clocks)

    def _packed(self, held: list[pa.RecordBatch], clocks: dict[str, int]) -> pa.RecordBatch:
        """A row for each node and bucket, with the parts that are held of it."""
        parts = pa.Table.from_batches(held, PARTS).combine_chunks()
        found: list[dict[str, Any]] = []
        for node, clock in clocks.items():
            for bucket, data in enumerate(self._in_buckets(parts, node)):
                found.append({"node": node, "bucket": bucket, "clock": clock, "parts": data})
        return pa.RecordBatch.from_pylist(found, _PACKED)

    def _in_buckets(self, parts: pa.Table, node: str) -> list[bytes]:
        mine = parts.filter(pc.equal(parts["node"], pa.scalar(node)))
        bucket = hashes(mine.column("correlation").combine_chunks()) % self._buckets
        ordered = mine.select(STORED.names).take(np.argsort(bucket, kind="stable")).cast(STORED)
        ends = np.cumsum(np.bincount(bucket, minlength=self._buckets)).tolist()
        return [
            packed(ordered.slice(begin, end - begin)) if end > begin else b""
            for begin, end in zip([0, *ends], ends, strict=False)
        ]


_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("node", pa.utf8()),
    ("bucket", pa.int32()),
    ("clock", pa.int64()),
    ("parts", pa.binary()),
]
_PACKED: Final = pa.schema(_COLUMNS)


class Matcher(StatefulProcessor):
    """A bucket of one node. Names of methods and parameters are Spark's."""

    def __init__(self, timeout: int, lateness: int) -> None:
        self._timeout = timeout
        self._lateness = lateness

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark begins a task."""
        self._state = handle.getValueState("waiting", STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: tuple[str, int],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: ARG002, N803 - as above
    ) -> Iterator[pd.DataFrame]:
        """Rows of a bucket have come."""
        found = self._state.get()
        before = Waiting.from_bytes(b"", 0) if found is None else Waiting.from_bytes(found[1], found[0])
        clock, parts = before.clock, []
        for frame in rows:
            clock = max(clock, int(frame["clock"].max()))
            parts += [data for data in frame["parts"] if data]
        now = Waiting(before.rows, clock, before.ended)
        pairs, after = match(now, unpacked(parts), self._timeout, self._lateness)
        self._state.update((after.clock, after.to_bytes()))
        if pairs.num_rows:
            told = pairs.to_pandas()
            told.insert(0, "node", key[0])
            yield told[PAIRS.names]

    def close(self) -> None:
        """Spark ends a task."""
