"""A step of a streaming query: everything that one micro-batch does to all tables of the query, in one pass.

The source gives a step its *splits*, stretches of the journal. A task for each split reads it and computes the part of
every table with that table's kernel. It writes files of those whose rows it knows (``messages``, ``faults``), and hands
the rest to the driver: parts of aggregates, which are small, and parts of calls, which may be answered in another task
or another step. The driver merges parts, matches calls, writes files of these too, and at last commits one transaction
for each table. Tables of the user's own, which are functions of DataFrames, are computed by Spark of the same splits.

What a step needs of the steps before it is *state*: the calls that wait for their answers, and those that have just
ended. It is a file for each batch in ``_pipeline/state/<query>``, written before the batch counts anywhere. Batch *n*
begins with the state of batch *n - 1*, so it may be repeated at any time; what it gives depends on nothing else but the
journal's rows. That makes every point right to be killed at:

- Before the state is written: files lie about that no transaction names. They are vacuumed later.
- With the state, before the first transaction: the batch is repeated, and writes the same state again.
- Between two transactions: the batch is repeated. Tables that have it are left alone, the others get it.
- After the last transaction, before Spark has noted that the batch is done: it is repeated, and changes nothing.
- While old state is deleted: that of the batch before the last one stays, and that of older ones is not needed.

Where the state of the batch before is not there (a lake of an earlier release, whose state was Spark's own), it is made
again of the journal's rows of the minutes before the batch.
"""

import contextlib
import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyarrow.lib import concat_batches
from pyspark.sql import DataFrame

from polywire.journal.format import values
from polywire.pipeline import rpc
from polywire.pipeline.columns import Numbers, Rows, hashes
from polywire.pipeline.delta import Batch
from polywire.pipeline.files import FilePlace, Storage, TableWriter, report_of, reported, write_rows
from polywire.pipeline.journals import TICK, Journals, SourceOptions
from polywire.pipeline.lake import Lake, Written, schema_text
from polywire.pipeline.source import (
    JournalPartition,
    TickPartition,
    called_parts,
    for_spark,
    read_partition,
    spark_schema,
)
from polywire.pipeline.table import HeldParts, Kernel, Table, arrow_of, schema
from polywire.pipeline.tables.calls import finished
from polywire.pipeline.tables.matches import PARTS, STORED, Waiting, match, nothing, of_node

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 64 << 20
"""What kernels get at once: enough to be worth a call, little enough to hold."""

REPORT: Final = schema(
    "name string, path string, size bigint, rows bigint, partition string, stats string, content binary"
)
"""What a task tells the driver: files it wrote, and contents."""

_REPORT: Final = arrow_of(REPORT)

CLOCKS: Final = ""
"""In the place of a table's name: the latest times of nodes, and how many rows were read."""

log = logging.getLogger("polywire.pipeline")


@dataclass(frozen=True, slots=True)
class Output:
    """Where the rows of a kernel go: files at a place, or to the driver."""

    name: str
    kernel: Kernel
    place: FilePlace | None = None
    partition_by: tuple[str, ...] = ()


def chunked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in larger batches: a hub that is not busy writes a few at a time."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield concat_batches(held)


class StepTask:
    """For ``mapInArrow`` over splits: reads them, computes all tables, writes files, and reports."""

    def __init__(self, options: SourceOptions, outputs: Sequence[Output]) -> None:
        self._options = options
        self._outputs = tuple(outputs)
        needed = {name for output in outputs for name in output.kernel.columns}
        self._columns = tuple(name for name in options.columns if name in needed | {"node", "ts", "kind", "channel"})

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The splits of a task; there is one, as a rule."""
        for split in splits_in(batches):
            reports = self._read(split) if isinstance(split, JournalPartition) else [_clocks(split, 0)]
            for report in reports:
                yield pa.RecordBatch.from_pylist([report], schema=_REPORT)

    def _read(self, split: JournalPartition) -> Iterator[dict[str, Any]]:
        read = split.split.to_offset - split.split.from_offset
        clocks = TickPartition(0, {})
        latest: dict[str, int] = {}
        held = {output.name: _Held(output) for output in self._outputs}
        called = False
        for batch in chunked(read_partition(split, self._options, self._columns, None)):
            rows = Rows(batch)
            for node, at in rows.latest().items():
                latest[node] = max(latest.get(node, at), at)
            for one in held.values():
                yield from one.add(rows)
            called = called or ("body" not in self._columns and bool(pc.any(rpc.on_service_topic(batch)).as_py()))
        calls = [one for one in held.values() if one.output.kernel.matching is not None]
        if called and calls:
            for batch in called_parts(split, self._options, self._columns, None):
                for one in calls:
                    yield from one.add(Rows(batch))
        for one in held.values():
            yield from one.close()
        yield _clocks(replace(clocks, nodes=latest), read)


def _clocks(tick: TickPartition, rows: int) -> dict[str, Any]:
    """Of each node the latest time that was seen."""
    latest = tick.nodes if not tick.time else dict.fromkeys(tick.nodes, tick.time)
    return {"name": CLOCKS, "rows": rows, "content": json.dumps(latest).encode()}


def splits_in(batches: Iterator[pa.RecordBatch]) -> Iterator[JournalPartition | TickPartition]:
    """The splits that the source gave a task."""
    for batch in batches:
        for data in values(batch.column("split")):
            yield pickle.loads(data)  # noqa: S301 - our source made it, for this task


class _Held:
    """What one kernel makes of a split."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self._writer = None if output.place is None else TableWriter(output.place, output.partition_by)
        self._parts = HeldParts(output.kernel)

    def add(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """Compute some more rows."""
        part = self.output.kernel.part(rows)
        if self._writer is None:
            self._parts.add(part)
        else:
            yield from (report_of(self.output.name, file) for file in self._writer.write(part))

    def close(self) -> Iterator[dict[str, Any]]:
        """What is to be reported at the end."""
        if self._writer is not None:
            yield from (report_of(self.output.name, file) for file in self._writer.close())
            return
        parts = self._parts.merged()
        if parts.num_rows:
            yield {"name": self.output.name, "rows": parts.num_rows, "content": encoded(parts).to_pybytes()}


def encoded(rows: pa.Table) -> pa.Buffer:
    """Rows as Arrow has them, packed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def decoded(content: bytes | pa.Buffer) -> pa.Table:
    """The way back."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


class ReadTask:
    """For ``mapInArrow`` over splits: the journal's rows, for tables that are functions of DataFrames."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], kinds: tuple[str, ...]) -> None:
        self._options = replace(options, columns=columns, kinds=kinds)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        columns = self._options.columns
        for split in splits_in(batches):
            if isinstance(split, JournalPartition):
                yield from for_spark(read_partition(split, self._options, columns, None), columns)


State = dict[str, Waiting]
"""What waits for its other half, node by node."""

SLICE: Final = 250_000
"""Parts of calls that are matched at once: more of them are cut by their correlations."""


def matched(
    before: State, parts: pa.Table, clocks: Mapping[str, int], timeout: int, lateness: int
) -> tuple[pa.Table, State]:
    """The calls that have ended, of all nodes, and what waits from now on."""
    found, after = [], {}
    for node in sorted({*before, *clocks}):
        known = before.get(node) or nothing()
        clock = max(known.clock, clocks.get(node, 0))
        mine = parts.filter(pc.equal(parts.column("node"), pa.scalar(node))).select(STORED.names)
        pairs, after[node] = _matched(Waiting(known.rows, clock, known.ended), mine, timeout, lateness)
        found.append(of_node(node, pairs))
    return pa.concat_tables(found) if found else of_node("", match(nothing(), STORED.empty_table(), 0, 0)[0]), after


def _matched(before: Waiting, parts: pa.Table, timeout: int, lateness: int) -> tuple[pa.Table, Waiting]:
    """The same of one node."""
    count = 1 + parts.num_rows // SLICE
    if count == 1:
        return match(before, parts, timeout, lateness)
    own = _slices(hashes(parts.column("correlation").combine_chunks()), count)
    waiting = _slices(hashes(before.rows.column("correlation").combine_chunks()), count)
    ended = _slices(before.ended.column("call").to_numpy(), count)
    done = [
        match(
            Waiting(before.rows.take(waiting[place]), before.clock, before.ended.take(ended[place])),
            parts.take(own[place]),
            timeout,
            lateness,
        )
        for place in range(count)
    ]
    left = [one for _, one in done]
    rows, over = pa.concat_tables([one.rows for one in left]), concat_batches([one.ended for one in left])
    return pa.concat_tables([pairs for pairs, _ in done]), Waiting(rows, max(one.clock for one in left), over)


def _slices(keys: Numbers, count: int) -> list[Any]:
    """The places of the rows of each slice."""
    where = keys % count
    return [pa.array((where == number).nonzero()[0]) for number in range(count)]


_STATE: Final = arrow_of(schema("node string, clock bigint, waiting binary"))
END: Final = b"polywire.end"
"""In the state of a batch: the place in the journal behind it."""


class StateFiles:
    """The state of a query after each of its last batches."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def load(self, batch: Batch) -> State | None:
        """What a batch begins with; None where it is not there."""
        wanted = (batch.offsets or {}).get("begin")
        files, root = self._storage.open()
        for name in self._names():
            if int(name.partition("-")[0]) == batch.number - 1:
                with files.open_input_stream(f"{root}/{name}") as stream:
                    table = decoded(stream.read_buffer())
                if wanted is None or json.loads((table.schema.metadata or {}).get(END, b"null")) == wanted:
                    return {row["node"]: Waiting.from_bytes(row["waiting"], row["clock"]) for row in table.to_pylist()}
        return None

    def save(self, batch: Batch, state: State) -> None:
        """Keep what the next batch begins with. It is there as a whole or not at all."""
        rows = [{"node": node, "clock": one.clock, "waiting": one.to_bytes()} for node, one in state.items()]
        end = json.dumps((batch.offsets or {}).get("end")).encode()
        table = pa.Table.from_pylist(rows, _STATE.with_metadata({END: end}))
        self._storage.write(f"{batch.number:010d}-{batch.identity:016x}.arrow", encoded(table))

    def has(self, batch: Batch) -> bool:
        """Whether the state after a batch is there."""
        return f"{batch.number:010d}-{batch.identity:016x}.arrow" in self._names()

    def forget(self, number: int) -> None:
        """Delete what no batch needs any more once this one is done; it may still be repeated itself."""
        files, root = self._storage.open()
        for name in self._names():
            if int(name.partition("-")[0]) < number - 1:
                with contextlib.suppress(FileNotFoundError):
                    files.delete_file(f"{root}/{name}")

    def _names(self) -> list[str]:
        files, root = self._storage.open()
        found = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return [info.base_name for info in found if info.base_name.endswith(".arrow") and info.base_name[0].isdigit()]


def rebuilt(options: SourceOptions, place: Mapping[str, int], kernel: Kernel) -> State:
    """What waits at a place in the journal: found again in the rows of the minutes before it."""
    timeout, lateness = kernel.matching or (0, 0)
    parts: list[pa.RecordBatch] = []
    clocks: dict[str, int] = {}
    for name, journal in Journals(options.journals, options.token).current().items():
        end = place.get(name, 0)
        last = [batch for batch in journal.scan(["ts"], from_offset=end - 1, to_offset=end, on_corrupt="skip") if end]
        if not last:
            continue
        until = Rows(last[-1]).at[-1]
        # A call may have begun long before, and its requests may have been repeated ever since.
        begin = journal.offset_at(_time(int(until) - 3 * (timeout + lateness)))
        for batch in journal.scan(options.columns, from_offset=begin, to_offset=end, on_corrupt="skip"):
            rows = Rows(batch)
            parts.append(kernel.part(rows))
            for node, at in rows.latest().items():
                clocks[node] = max(clocks.get(node, at), at, place.get(TICK, 0))
    return matched({}, pa.Table.from_batches(parts, PARTS), clocks, timeout, lateness)[1]


def _time(at: int) -> Any:
    return pa.scalar(max(at, 0), pa.timestamp("us", tz="UTC")).as_py()


@dataclass
class Steps:
    """The steps of one query, for ``foreachBatch``. ``tables`` are those it writes, each before those made of it.

    ``offsets`` gives the places in the journal that a batch is between.
    """

    lake: Lake
    tables: Sequence[Table]
    query: str
    options: SourceOptions
    state: StateFiles
    offsets: Callable[[int], Mapping[str, Any] | None] = lambda _: None
    latest: int = 0
    """How many rows the last step read."""
    _read: dict[int, int] = field(default_factory=dict)

    def __call__(self, splits: DataFrame, number: int) -> None:
        """Write what a micro-batch gives."""
        batch = Batch(self.query, number, self.offsets(number))
        matching = self._matching
        missing = self.lake.missing([table.name for table in self.tables], batch)
        if not missing and (matching is None or self.state.has(batch)):
            return
        found = self._computed(splits, batch)
        files = found.files
        after = None
        if matching is not None:
            after = self._match(matching, found, batch)
        for table in self.tables:
            if table.kernel is not None and table.kernel.merge is not None:
                self._write(table, found.merged(table), files, batch)
        files |= self._own(splits, files, [name for name in missing if self._table(name).kernel is None], batch)
        if after is not None:
            self.state.save(batch, after)
        self.lake.commit({name: files[name] for name in missing if name in files}, batch)
        self.state.forget(number)
        self.latest = self._read[number] = found.rows

    def taken(self, number: int) -> int:
        """How many rows were read up to a batch, since this was asked for the last time."""
        return sum(self._read.pop(done) for done in sorted(self._read) if done <= number)

    @property
    def _matching(self) -> Table | None:
        return next((table for table in self.tables if table.kernel is not None and table.kernel.matching), None)

    def _table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)

    def _computed(self, splits: DataFrame, batch: Batch) -> "_Found":
        """What the tasks make of the splits."""
        outputs = []
        for table in self.tables:
            kernel = table.kernel
            if kernel is None or table.after is not None:
                continue
            if kernel.merge is not None or kernel.matching is not None:
                outputs.append(Output(table.name, kernel))
            else:
                outputs.append(Output(table.name, kernel, self.lake.place(table.name, batch), table.partition_by))
        done = splits.mapInArrow(StepTask(self.options, outputs), REPORT).toArrow()
        found = _Found(
            {table.name: Written([], schema_text(table.kernel.schema)) for table in self.tables if table.kernel}
        )
        for report in done.to_pylist():
            found.add(report)
        return found

    def _match(self, table: Table, found: "_Found", batch: Batch) -> State:
        """Write the calls that have ended; what waits now."""
        assert table.kernel is not None  # noqa: S101 - it is one of those
        timeout, lateness = table.kernel.matching or (0, 0)
        before = self.state.load(batch) if batch.number else {}
        if before is None:
            log.warning("the query %r has no state of batch %d: it is read again", self.query, batch.number - 1)
            before = rebuilt(self.options, (batch.offsets or {}).get("begin") or {}, table.kernel)
        pairs, after = matched(before, found.parts(table), found.clocks, timeout, lateness)
        rows = [finished(one) for one in pairs.to_batches()]
        assert table.schema is not None  # noqa: S101 - as above
        made = pa.Table.from_batches(rows, arrow_of(table.schema))
        found.files[table.name] = Written([], schema_text(table.schema))
        self._write(table, made, found.files, batch)
        for other in self.tables:
            if other.after == table.name and other.kernel is not None:
                for one in rows:
                    found.hold(other, pa.Table.from_batches([other.kernel.part(Rows(one))]))
        return after

    def _write(self, table: Table, rows: pa.Table, files: dict[str, Written], batch: Batch) -> None:
        """On the driver: files of rows that only it knows."""
        place = self.lake.place(table.name, batch)
        files[table.name].files.extend(write_rows(place, self.lake.partitioned(table.name), rows))

    def _own(
        self, splits: DataFrame, files: Mapping[str, Written], missing: Sequence[str], batch: Batch
    ) -> dict[str, Written]:
        """The same of tables that are functions of DataFrames."""
        frames: dict[str, DataFrame] = {}
        for table in self.tables:
            if table.kernel is not None:
                continue
            if table.after is None:
                task = ReadTask(self.options, table.columns, table.kinds)
                rows = splits.mapInArrow(task, spark_schema(table.columns))
            elif table.after in frames:
                rows = frames[table.after]
            else:
                rows = self.lake.frame(table.after, files[table.after], splits.sparkSession)
            frames[table.name] = table.rows(rows)
        wanted = {name: frames[name] for name in missing}
        return self.lake.wrote(wanted, batch) if wanted else {}


@dataclass
class _Found:
    """What the tasks of a step reported."""

    files: dict[str, Written]
    clocks: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    _contents: dict[str, list[pa.Table]] = field(default_factory=dict)

    def add(self, report: Mapping[str, Any]) -> None:
        """One report."""
        if report["name"] == CLOCKS:
            self.rows += report["rows"]
            for node, at in json.loads(report["content"]).items():
                self.clocks[node] = max(self.clocks.get(node, at), at)
        elif report["content"] is None:
            self.files[report["name"]].files.append(reported(report))
        else:
            self._contents.setdefault(report["name"], []).append(decoded(report["content"]))

    def hold(self, table: Table, part: pa.Table) -> None:
        """A part that was made here."""
        self._contents.setdefault(table.name, []).append(part)

    def parts(self, table: Table) -> pa.Table:
        """All parts of a table."""
        assert table.kernel is not None  # noqa: S101 - only those have parts
        return pa.concat_tables([table.kernel.arrow.empty_table(), *self._contents.get(table.name, [])])

    def merged(self, table: Table) -> pa.Table:
        """The same, those with the same key as one."""
        assert table.kernel is not None  # noqa: S101 - as above
        parts = HeldParts(table.kernel)
        parts.add(self.parts(table))
        return parts.merged()
