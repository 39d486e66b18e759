"""The Spark format ``polywire``, and the journal as its source: readers that plan on the driver and read in tasks.

What is to be read is cut into partitions, one task of Spark each, planned from the index without reading rows. Filters
that Spark pushes down are applied while reading, and tell which offsets and times are needed.

Ticks are rows with the current time, so that a stateful query notices timeouts when there is no traffic. A tick
is part of a stream's place, so a step that is run again has the same one. It comes only when every journal has been
read to its end, with a time from before that end was looked up: everything older has been read. If a query
reads only some kinds of rows, each task ends with a tick too: of the latest row it has read, of any kind. So a query
needs no other rows just to know the time.
"""

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import concat_batches
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.reader import Journal, Split
from polywire.journal.readers import NamedReaders
from polywire.pipeline import rpc
from polywire.pipeline.errors import DataLossError, JournalReplacedError
from polywire.pipeline.journals import (
    COLUMNS,
    LATEST,
    TICK,
    Journals,
    Place,
    SourceOptions,
    from_spark,
    is_remote,
    next_place,
    placed,
)
from polywire.pipeline.rpc import RPC
from polywire.pipeline.sink import BatchWriter, StreamWriter

BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 32 << 20
"""A batch for Spark: small ones cost a message between two processes each, large ones are held in memory twice."""

_TYPES: Final[dict[pa.DataType, DataType]] = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.utf8(): StringType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    pa.list_(pa.binary()): ArrayType(BinaryType()),
}


def spark_schema(columns: Iterable[str]) -> StructType:
    """These columns of the journal, as a schema of Spark."""
    return StructType([StructField(name, _TYPES[PLAIN_SCHEMA.field(name).type]) for name in columns])


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """The same as a schema of Arrow. Spark compares it with its own to the letter: all columns may be null there."""
    fields = []
    for name in columns:
        kind = PLAIN_SCHEMA.field(name).type
        # The items of a list are called differently by the two.
        fields.append(pa.field(name, pa.list_(pa.field("element", pa.binary())) if pa.types.is_list(kind) else kind))
    return pa.schema(fields)


def for_spark(batches: Iterable[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Batches with these columns, as Spark takes them: neighbours put together until they are worth sending."""
    schema = arrow_schema(columns)
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(_fitted(batch, schema))
        rows += batch.num_rows
        size += held[-1].get_total_buffer_size()
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for wanted in schema:
        column = batch.column(wanted.name)
        arrays.append(column if column.type.equals(wanted.type) else column.cast(wanted.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else concat_batches(batches)


_ORDERED: Final = (ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual)
_MICROSECOND: Final = timedelta(microseconds=1)
_STRUCTURED: Final = ("attachments",)


@dataclass
class Pushed:
    """The filters a source applies itself: ``expression`` for every row, the bounds for what not to read at all."""

    expression: pc.Expression | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    applied: list[str] = field(default_factory=list)

    def take(self, filters: Iterable[ds.Filter]) -> list[ds.Filter]:
        """Take what can be applied exactly; what is left is Spark's."""
        left = []
        for found in filters:
            expression = _expression(found)
            if expression is None:
                left.append(found)
                continue
            self.expression = expression if self.expression is None else self.expression & expression
            self.applied.append(str(found))
            self._bound(found)
        return left

    def _bound(self, found: ds.Filter) -> None:
        if not isinstance(found, _ORDERED) or len(found.attribute) != 1:
            return
        name, value = found.attribute[0], found.value
        above = isinstance(found, (ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual))
        below = isinstance(found, (ds.EqualTo, ds.LessThan, ds.LessThanOrEqual))
        if name == "offset" and isinstance(value, int):
            low = value + isinstance(found, ds.GreaterThan)
            high = value + (not isinstance(found, ds.LessThan))
            if above:
                self.from_offset = low if self.from_offset is None else max(self.from_offset, low)
            if below:
                self.to_offset = high if self.to_offset is None else min(self.to_offset, high)
        elif name == "ts" and isinstance(value, datetime):
            moment = _utc(value)
            if above:
                self.from_time = moment if self.from_time is None else max(self.from_time, moment)
            if below:
                # The upper end is exclusive.
                end = moment + _MICROSECOND
                self.to_time = end if self.to_time is None else min(self.to_time, end)


def _expression(found: ds.Filter) -> pc.Expression | None:
    """The filter as Arrow applies it, or None where it would not be exactly the same."""
    if isinstance(found, ds.Not):
        inner = _expression(found.child)
        if inner is None:
            return None
        # In SQL null is neither in a list nor not in it.
        return ~inner & pc.field(found.child.attribute[0]).is_valid() if isinstance(found.child, ds.In) else ~inner
    path: tuple[str, ...] = getattr(found, "attribute", ())
    if len(path) != 1 or path[0] not in PLAIN_SCHEMA.names or path[0] in _STRUCTURED:
        return None
    column = pc.field(path[0])
    kind = PLAIN_SCHEMA.field(path[0]).type
    if isinstance(found, ds.IsNull):
        return column.is_null()
    if isinstance(found, ds.IsNotNull):
        return column.is_valid()  # type: ignore[return-value] # a bool to the stubs
    if isinstance(found, ds.In):
        # With a null in the list SQL's answer is never false, which Arrow has no word for.
        values = [_literal(value) for value in found.value]
        return None if None in values else column.isin(pa.array(values, kind))
    value = _literal(getattr(found, "value", None))
    if value is None:
        return None
    scalar = pc.scalar(pa.array([value], kind)[0])
    if isinstance(found, ds.EqualTo):
        return column == scalar
    if isinstance(found, ds.GreaterThan):
        return column > scalar
    if isinstance(found, ds.GreaterThanOrEqual):
        return column >= scalar
    if isinstance(found, ds.LessThan):
        return column < scalar
    if isinstance(found, ds.LessThanOrEqual):
        return column <= scalar
    if isinstance(found, ds.StringStartsWith):
        return pc.starts_with(column, pattern=value)
    if isinstance(found, ds.StringEndsWith):
        return pc.ends_with(column, pattern=value)
    if isinstance(found, ds.StringContains):
        return pc.match_substring(column, pattern=value)
    return None


def _literal(value: Any) -> Any:
    return _utc(value) if isinstance(value, datetime) else value


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


LEAST_ROWS: Final = 100_000
"""A task costs some milliseconds, and some more for each file it writes: fewer rows are not worth one of their own."""

TASKS: Final = 8
"""How many tasks a step is cut into where it has rows enough: a few for each core of a small machine."""


SPLITS: Final = StructType([StructField("split", BinaryType())])
"""What a stream is made of whose tasks read the journal themselves: its partitions, to be unpickled."""

_SPLITS: Final = pa.schema([pa.field("split", pa.binary())])


@dataclass
class JournalPartition(InputPartition):
    """Rows of one segment of a journal."""

    split: Split


@dataclass(frozen=True, slots=True)
class Range:
    """A stretch of one journal."""

    journal: Journal
    from_offset: int
    to_offset: int


def ranges(journals: dict[str, Journal], start: Place, end: Place, *, fail_on_data_loss: bool) -> Iterator[Range]:
    """What is between two positions, journal by journal."""
    for name, opened in journals.items():
        if name not in end:
            continue
        begin, stop = start.get(name, opened.first_offset), end[name]
        first, safe = opened.first_offset, opened.end_offset
        if begin < min(first, stop) or (begin < stop and stop > safe):
            if fail_on_data_loss:
                raise DataLossError(name, begin if begin < first else safe, first if begin < first else stop)
            begin, stop = max(begin, first), min(stop, safe)
        if begin < stop:
            yield Range(opened, begin, stop)


def plan(found: list[Range], rows_per_partition: int, tasks: int = TASKS) -> list[JournalPartition]:
    """The partitions of all ranges, in order."""
    total = sum(part.to_offset - part.from_offset for part in found)
    rows = min(rows_per_partition, max(LEAST_ROWS, -(-total // tasks)))
    return [
        JournalPartition(split)
        for part in found
        for split in part.journal.splits(part.from_offset, part.to_offset, rows)
    ]


def read_partition(
    partition: JournalPartition, options: SourceOptions, columns: tuple[str, ...], pushed: Pushed | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, as record batches of the journal."""
    kinds = tuple(kind for kind in options.kinds if kind != RPC)
    if kinds or not options.kinds:
        yield from _filtered(_scanned(partition, options, columns, pushed, kinds=kinds), pushed)
    if RPC in options.kinds:
        yield from _filtered(called_parts(partition, options, columns, pushed), pushed)


def _scanned(
    partition: JournalPartition,
    options: SourceOptions,
    columns: tuple[str, ...],
    pushed: Pushed | None,
    *,
    kinds: tuple[str, ...],
    channels: tuple[str, ...] = (),
) -> Iterator[pa.RecordBatch]:
    return partition.split.read(
        columns,
        channels=options.channels or channels or None,
        kinds=kinds or None,
        protocols=options.protocols or None,
        from_time=None if pushed is None else pushed.from_time,
        to_time=None if pushed is None else pushed.to_time,
        on_corrupt=options.on_corrupt,
    )


def called_parts(
    partition: JournalPartition, options: SourceOptions, columns: tuple[str, ...], pushed: Pushed | None
) -> Iterator[pa.RecordBatch]:
    """Parts of calls that were published on service topics. Only their bodies are needed, so they are read apart."""
    wanted = {*columns, *rpc.NEEDED}
    needed = tuple(name for name in COLUMNS if name in wanted)
    for batch in _scanned(partition, options, needed, pushed, kinds=("publish",), channels=rpc.TOPICS):
        found = rpc.parts(batch)
        if found.num_rows:
            yield found


def _filtered(batches: Iterator[pa.RecordBatch], pushed: Pushed | None) -> Iterator[pa.RecordBatch]:
    expression = None if pushed is None else pushed.expression
    return batches if expression is None else (batch.filter(expression) for batch in batches)


KIND: Final = "tick"


@dataclass
class TickPartition(InputPartition):
    """A tick: its time in microseconds, and for each node where its journal ended."""

    time: int
    nodes: dict[str, int]


def now() -> int:
    """The time in microseconds, as ticks have it."""
    return time.time_ns() // 1000


class Clock:
    """When a stream gets its next tick: after ``interval`` seconds without rows; never where that is None."""

    def __init__(self, interval: float | None) -> None:
        self._interval = interval
        self._moved = 0
        self._last: int | None = None

    def finish_at(self, moment: int) -> None:
        """The stream ends once it has read what is there now: then it gets one tick, of this time."""
        self._last = moment

    def next_tick(self, start: Place, end: Place, moment: int) -> Place:
        """The place ``end``, with a tick where one is due; ``moment`` is before the ends were looked up."""
        if self._interval is None:
            return end
        if end != start:
            self._moved = moment
            return end
        told = start.get(TICK, 0)
        if self._last is not None:
            return placed({**end, TICK: self._last}) if told < self._last else end
        due = max(told, self._moved) + int(self._interval * 1_000_000)
        return placed({**end, TICK: moment}) if moment >= due else end


def tick_between(start: Place, end: Place, journals: dict[str, Journal]) -> list[TickPartition]:
    """The tick of a step, if it has one."""
    if TICK not in end or end[TICK] == start.get(TICK):
        return []
    nodes: dict[str, int] = {}
    for name, opened in journals.items():
        behind = end.get(name, 0)
        if behind == 0:
            continue  # nothing was ever written there
        for batch in opened.scan(["node"], from_offset=behind - 1, to_offset=behind, on_corrupt="skip"):
            nodes[batch.column("node")[0].as_py()] = behind
    return [TickPartition(end[TICK], nodes)]


def tick_rows(partition: TickPartition) -> pa.RecordBatch:
    """The rows of a tick, with all columns."""
    return _rows({node: (offset, partition.time) for node, offset in partition.nodes.items()})


def read_with_ticks(
    partition: JournalPartition, options: SourceOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition that are of the kinds wanted, and a tick for each node there are rows of, of any kind."""
    needed = tuple(name for name in COLUMNS if name in {*columns, "offset", "ts", "node", "kind", "channel"})
    wanted = pa.array(options.kinds, pa.utf8())
    latest: dict[str, tuple[int, int]] = {}
    called = False
    for batch in read_partition(partition, replace(options, kinds=()), needed, None):
        ends = pa.Table.from_batches([batch]).group_by("node").aggregate([("offset", "max"), ("ts", "max")])
        columns_of_ends = (ends[name].cast(kind).to_pylist() for name, kind in _ENDS)
        for node, offset, moment in zip(*columns_of_ends, strict=True):
            before = latest.get(node, (0, moment))
            latest[node] = max(before[0], offset + 1), max(before[1], moment)
        called = called or (RPC in options.kinds and bool(pc.any(rpc.on_service_topic(batch)).as_py()))
        yield batch.filter(pc.is_in(batch.column("kind"), wanted))
    if called:
        yield from called_parts(partition, options, columns, None)
    yield _rows(latest)


_ENDS: Final = (("node", pa.utf8()), ("offset_max", pa.int64()), ("ts_max", pa.int64()))


def _rows(ticks: Mapping[str, tuple[int, int]]) -> pa.RecordBatch:
    """Of each node a tick: where its journal ended, and the time."""
    rows = [
        {"offset": offset, "ts": moment, "node": node, "kind": KIND, "connection": 0}
        | {"body": b"", "size": 0, "flags": 0}
        for node, (offset, moment) in sorted(ticks.items())
    ]
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in PLAIN_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=PLAIN_SCHEMA)


class BatchReader(DataSourceReader):
    """What the journals hold when the query starts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = tuple(schema.names)
        self.pushed = Pushed(from_time=options.starting_time, to_time=options.ending_time)

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that can be applied while reading."""
        return self.pushed.take(filters)

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        found = []
        for opened in Journals(self.options.journals, self.options.token).current().values():
            begin, end = opened.first_offset, opened.end_offset
            if self.options.starting_offset == LATEST:
                begin = end
            elif self.options.starting_offset.isdigit():
                begin = max(begin, int(self.options.starting_offset))
            begin = max(begin, self.pushed.from_offset or 0)
            if self.pushed.from_time is not None:
                begin = max(begin, opened.offset_at(self.pushed.from_time))
            if self.pushed.to_offset is not None:
                end = min(end, self.pushed.to_offset)
            if begin < end:
                found.append(Range(opened, begin, end))
        return list(plan(found, self.options.rows_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: its rows."""
        if not isinstance(partition, JournalPartition):
            return iter(())  # Spark asks for one partition where there is none
        return for_spark(read_partition(partition, self.options, self.columns, self.pushed), self.columns)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of the journals and what is written to them, as far as it is on disk."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = tuple(schema.names)
        self._journals: Journals | None = None
        self._target: Place | None = None
        self._clock = Clock(options.ticks)

    def initialOffset(self) -> Place:  # noqa: N802 - Spark's name
        """Where a query begins that has no checkpoint."""
        return placed({name: self._begin(opened) for name, opened in self._current().items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Place:  # noqa: N802 - as above
        """How far the next step goes."""
        place = from_spark(start)
        before = now()
        journals = self._current()
        safe = {name: opened.end_offset for name, opened in journals.items()}
        for name, end in safe.items():
            if place.get(name, 0) > end and self.options.fail_on_data_loss:
                raise JournalReplacedError(name, place[name], end)
        if self._target is not None:
            safe = {name: min(end, self._target[name]) for name, end in safe.items() if name in self._target}
        first = {name: self._begin(journals[name]) if name not in place else 0 for name in safe}
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._clock.next_tick(place, next_place(place, safe, first, rows), before)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - as above
        """How much one step may read."""
        return ReadMaxRows(self.options.rows_per_trigger) if self.options.rows_per_trigger else ReadAllAvailable()

    def reportLatestOffset(self) -> Place:  # noqa: N802 - as above
        """How far there is anything, for the query's progress."""
        return placed({name: opened.end_offset for name, opened in self._current().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above
        """Go no further than what is there now."""
        self._clock.finish_at(now())
        self._target = self.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a step."""
        journals, begin, stop = self._current(), from_spark(start), from_spark(end)
        found = list(ranges(journals, begin, stop, fail_on_data_loss=self.options.fail_on_data_loss))
        parts = plan(found, self.options.rows_per_partition, self.options.splits or TASKS)
        return [*parts, *tick_between(begin, stop, journals)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: its rows, or itself where the tasks of a step are to read it."""
        if self.options.splits:
            return iter([pa.RecordBatch.from_pylist([{"split": pickle.dumps(partition)}], _SPLITS)])
        if isinstance(partition, TickPartition):
            return for_spark([tick_rows(partition)], self.columns)
        if not isinstance(partition, JournalPartition):
            return iter(())
        if self.options.ticks is not None and self.options.kinds:
            return for_spark(read_with_ticks(partition, self.options, self.columns), self.columns)
        return for_spark(read_partition(partition, self.options, self.columns, None), self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before ``end`` is processed: notify the journals, so that retention may delete it."""
        if self.options.reader is None or self._journals is None:
            return
        for name, offset in from_spark(end).items():
            if name == TICK:
                continue
            location = self._journals.location(name)
            # On other storage only its owner deletes anything.
            if not is_remote(location) and Path(location).is_dir():
                NamedReaders(Path(location)).put(self.options.reader, offset)

    def _current(self) -> dict[str, Journal]:
        if self._journals is None:
            self._journals = Journals(self.options.journals, self.options.token)
        return self._journals.current()

    def _begin(self, opened: Journal) -> int:
        if self.options.starting_offset == LATEST:
            return opened.end_offset
        if self.options.starting_offset.isdigit():
            return max(opened.first_offset, int(self.options.starting_offset))
        time = self.options.starting_time
        return opened.first_offset if time is None else opened.offset_at(time)


NAME = "polywire"


class PolywireFormat(DataSource):
    """``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` with ``.format("polywire")``."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format()``."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the journal, or those the option ``columns`` names."""
        options = SourceOptions.read(self.options)
        return SPLITS if options.splits else spark_schema(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for batches."""
        return BatchReader(SourceOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """To read what there is and what comes."""
        return StreamReader(SourceOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """To publish a DataFrame."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802 - as above
        """To publish a stream."""
        return StreamWriter(self.options, schema)
