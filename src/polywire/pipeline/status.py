"""How far each query is: written by the process that runs it, read by ``polywire pipeline status`` and ``doctor``.

It is kept in small JSON files beside the tables, in the lake's directory ``_pipeline``, with the checkpoints.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from polywire.journal.errors import JournalError
from polywire.journal.format import PLAIN_SCHEMA
from polywire.pipeline.delta import HISTORY_HOURS, KEPT, LOG, PARTS, Batch, LakeTable, files_of
from polywire.pipeline.errors import LakeError, PipelineError
from polywire.pipeline.files import Storage
from polywire.pipeline.journals import TICK, Journals
from polywire.pipeline.query import Questions, tables_in

FOLDER: Final = "_pipeline"
_SUFFIX: Final = ".json"


class Notes:
    """The notes of a lake, on a disk or any storage ``pyarrow.fs`` knows."""

    def __init__(
        self, lake: str | Path | Storage, options: Mapping[str, str] | None = None, checkpoint: str | None = None
    ) -> None:
        self.storage = Storage.parse(checkpoint) if checkpoint else Storage.parse(lake, options).below(FOLDER)

    def __str__(self) -> str:
        return str(self.storage)

    def checkpoint(self, query: str) -> str:
        """Where Spark keeps how far a query is."""
        found = self.storage.below(f"checkpoints/{query}").uri
        # Spark calls S3 as Hadoop does.
        return "s3a" + found[2:] if found.startswith("s3:") else found

    def last_batch(self, query: str) -> int:
        """The last micro-batch that a query has begun, as its checkpoint says; -1 where there is none."""
        files, root = self.storage.open()
        found = files.get_file_info(fs.FileSelector(f"{root}/checkpoints/{query}/offsets", allow_not_found=True))
        return max((int(info.base_name) for info in found if info.base_name.isdigit()), default=-1)

    def offsets(self, query: str, batch: int) -> dict[str, Any] | None:
        """The places in the journal that a micro-batch is between, as the checkpoint has them."""
        files, root = self.storage.open()
        found: dict[str, Any] = {}
        for name, number in (("begin", batch - 1), ("end", batch)):
            try:
                with files.open_input_stream(f"{root}/checkpoints/{query}/offsets/{number}") as stream:
                    found[name] = json.loads(stream.read().splitlines()[-1])
            except (OSError, ValueError, IndexError):
                found[name] = None
        return None if found["end"] is None else found

    def read(self, name: str) -> dict[str, Any] | None:
        """A note, or None where there is none."""
        files, root = self.storage.open()
        try:
            with files.open_input_stream(f"{root}/{name}{_SUFFIX}") as stream:
                found = json.loads(stream.read())
        except FileNotFoundError:
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, note: dict[str, Any]) -> None:
        """Write a note atomically: readers find the complete old or new one."""
        files, root = self.storage.open()
        path = f"{root}/{name}{_SUFFIX}"
        files.create_dir(str(PurePosixPath(path).parent), recursive=True)
        fresh = f"{path}.{uuid.uuid4().hex}"
        with files.open_output_stream(fresh) as stream:
            stream.write(json.dumps(note, indent=1).encode())
        files.move(fresh, path)

    def names(self, folder: str) -> Iterator[str]:
        """The notes in a directory, in order."""
        files, root = self.storage.open()
        found = files.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True))
        for name in sorted(PurePosixPath(info.path).name for info in found):
            if name.endswith(_SUFFIX):
                yield f"{folder}/{name.removesuffix(_SUFFIX)}"


STATUSES: Final = "status"


@dataclass(frozen=True, slots=True)
class Status:
    """A query as its last progress shows it. ``place`` is the next offset of each journal."""

    query: str
    tables: tuple[str, ...]
    journals: tuple[str, ...]
    state: str
    batch: int
    rows: int
    rows_per_second: float
    batch_seconds: float
    place: Mapping[str, int]
    latest: Mapping[str, int]
    updated: str
    reason: str = ""
    """Why the query failed, while it waits to be started again or after it was given up."""
    step_rows: int = 0
    """Rows of the step that is in progress; 0 where none is."""
    step_done: int = 0
    """Those of them that its tasks are done with."""

    @property
    def lag(self) -> int:
        """Rows that were safe in the journal and not yet read, when this was written."""
        return sum(max(end - self.place.get(name, 0), 0) for name, end in self.latest.items())

    @property
    def remaining(self) -> float | None:
        """Seconds until the query has caught up, at the rate of now; None where nobody knows."""
        left = max(self.lag - self.step_done, 0)
        return left / self.rows_per_second if self.rows_per_second else None if left else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is in progress: where it begins and ends in each journal, how far those go, and when it began."""

    begin: Mapping[str, int]
    end: Mapping[str, int]
    latest: Mapping[str, int]
    since: float

    @property
    def rows(self) -> int:
        """How many it reads."""
        return sum(max(end - self.begin.get(name, 0), 0) for name, end in self.end.items())


def step_of(offsets: Mapping[str, Any], journals: Journals, since: float) -> Step:
    """The step between two places of a checkpoint (``Notes.offsets``)."""
    opened = journals.current()
    firsts = {name: one.first_offset for name, one in opened.items()}
    end = _place(offsets["end"])
    return Step(
        {**firsts, **_place(offsets["begin"])}, end, {name: one.end_offset for name, one in opened.items()}, since
    )


def within(status: Status, step: Step, share: float, now: float) -> Status:
    """The status of a query that is in the middle of a step, with a share of its tasks done."""
    done = int(step.rows * share)
    place = dict(status.place) if status.place else dict(step.begin)
    speed = done / (now - step.since) if done and now > step.since else status.rows_per_second
    return replace(
        status,
        place=place,
        latest={name: max(end, status.latest.get(name, 0)) for name, end in step.latest.items()},
        rows_per_second=speed,
        step_rows=step.rows,
        step_done=done,
    )


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind a query is now: rows, and the age of the oldest of them."""

    rows: int
    seconds: float


def of_progress(
    query: str, tables: tuple[str, ...], journals: tuple[str, ...], progress: Any, *, state: str, rows: int
) -> Status:
    """The status of a query with this progress, the last one of Spark; ``rows`` is what it read since its start."""
    source = progress["sources"][0] if progress and progress["sources"] else {}
    return Status(
        query=query,
        tables=tables,
        journals=journals,
        state=state,
        batch=int(progress["batchId"]) if progress else -1,
        rows=rows,
        rows_per_second=float(source.get("processedRowsPerSecond") or 0.0),
        batch_seconds=float(progress["durationMs"].get("triggerExecution", 0)) / 1000 if progress else 0.0,
        place=_place(source.get("endOffset")),
        latest=_place(source.get("latestOffset")) or _place(source.get("endOffset")),
        updated=now(),
    )


def now() -> str:
    """The time, as a status has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_status(notes: Notes, status: Status) -> None:
    """Write down how far a query is."""
    notes.write(f"{STATUSES}/{status.query}", asdict(status))


def read_statuses(notes: Notes) -> list[Status]:
    """All queries that ever ran on a lake."""
    found = []
    for name in notes.names(STATUSES):
        note = notes.read(name)
        if note is not None:
            try:
                found.append(Status(**{**note, "tables": tuple(note["tables"]), "journals": tuple(note["journals"])}))
            except (KeyError, TypeError) as error:
                raise PipelineError(f"{name}: not a status of this version: {error}") from error
    return found


def lag_now(status: Status, token: str | None = None) -> Lag | None:
    """How far a query is behind its journals as they are now; None where they can't be read from here."""
    try:
        rows = sum(
            max(opened.end_offset - max(status.place.get(name, 0), opened.first_offset), 0)
            for name, opened in Journals(status.journals, token).current().items()
        )
        oldest = next_time(status, token) if rows else None
    except (JournalError, OSError, PipelineError):
        return None
    seconds = 0.0 if oldest is None else (datetime.now(UTC) - oldest).total_seconds()
    return Lag(rows, max(seconds, 0.0))


def next_time(status: Status, token: str | None = None) -> datetime | None:
    """The time of the first row a query has not read yet; None where it has read all there is."""
    oldest: datetime | None = None
    for name, opened in Journals(status.journals, token).current().items():
        begin = max(status.place.get(name, 0), opened.first_offset)
        for batch in opened.scan(["ts"], from_offset=begin, on_corrupt="skip"):
            moment: datetime = batch.column("ts")[0].as_py()
            oldest = moment if oldest is None else min(oldest, moment)
            break
    return oldest


def _place(offset: Any) -> dict[str, int]:
    """A place as Spark's progress has it: text with JSON in it, or None before the first step."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    if not isinstance(offset, dict):
        return {}
    return {str(name): int(value) for name, value in offset.items() if name != TICK}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was checked, and whether it is as it should be."""

    good: bool
    text: str


MESSAGE_KINDS: Final = ("publish", "enqueue", "request", "reply", "error")
"""Rows of the journal that are rows of ``messages``."""

GAP: Final = "gap"
"""The kind of row that a reader puts in the place of rows that can't be read."""

MOST_NAMED: Final = 10
"""Gaps, or files, that are named one by one."""


def examined(
    lake: str | Storage,
    token: str | None = None,
    options: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
) -> list[Finding]:
    """Compare the journal, the checkpoints and the lake: what should be there, and what is."""
    storage = Storage.parse(lake, options)
    notes = Notes(storage, checkpoint=checkpoint)
    statuses = read_statuses(notes)
    if not statuses:
        raise PipelineError(f"{storage}: no query ever ran here; 'polywire pipeline run' starts some")
    found: list[Finding] = []
    for status in statuses:
        tables = {name: list(_places(storage, name)) for name in status.tables}
        found += _examined_query(status, token)
        found += _examined_checkpoint(notes, status, [places[0] for places in tables.values()])
        found += [finding for places in tables.values() for table in places for finding in _examined_table(table)]
        if "messages" in status.tables:
            found += _examined_messages(storage, status, token)
    return found


def _places(storage: Storage, name: str) -> Iterator[LakeTable]:
    """Where a table is: the parts of an aggregate first, which a query writes, then what is made of them."""
    parts = LakeTable(storage.below(f"{PARTS}/{name}"), f"parts of {name}")
    with suppress(LakeError):
        if parts.version() >= 0:
            yield parts
    yield LakeTable(storage.below(name), name)


def _examined_query(status: Status, token: str | None) -> Iterator[Finding]:
    """Whether the journals still have what the query has not read yet."""
    query = f"query {status.query}"
    if status.state == "failed":
        yield Finding(good=False, text=f"{query}: failed: {status.reason or 'for an unknown reason'}")
    try:
        journals = Journals(status.journals, token).current()
    except (JournalError, OSError, PipelineError) as error:
        yield Finding(good=False, text=f"{query}: its journal can't be read from here: {_line(error)}")
        return
    waiting = 0
    for name, opened in journals.items():
        place, first, end = status.place.get(name, 0), opened.first_offset, opened.end_offset
        waiting += max(end - max(place, first), 0)
        if place < first and status.place:
            text = f"offsets {place} to {first - 1} of {name} were deleted before it read them"
            yield Finding(good=False, text=f"{query}: {text}")
        if place > end:
            text = f"has read {name} up to offset {place}, but it ends at {end}: another journal or an older copy"
            yield Finding(good=False, text=f"{query}: {text}")
    yield Finding(good=True, text=f"{query}: {status.state}, {waiting:,} rows behind the journal")


def _examined_checkpoint(notes: Notes, status: Status, tables: list[LakeTable]) -> Iterator[Finding]:
    """Whether the checkpoint and the lake are of the same time."""
    last = notes.last_batch(status.query)
    where = f"query {status.query}: its checkpoint"
    newest = -1
    for table in tables:
        try:
            done, identity = table.committed(status.query)
        except LakeError:
            continue  # reported with the table
        newest = max(newest, done)
        if done > last:
            state = f"is at batch {last}" if last >= 0 else f"is missing ({notes.checkpoint(status.query)})"
            text = (
                f"{where} {state}, but table {table.name} has batch {done}: restore the checkpoint, or use a new lake"
            )
            yield Finding(good=False, text=text)
            return
        offsets = notes.offsets(status.query, done)
        if identity and offsets is not None and Batch(status.query, done, offsets).identity != identity:
            text = f"{where} has other rows in batch {done} than table {table.name}: it belongs to another lake"
            yield Finding(good=False, text=text)
            return
    if last >= 0:
        yield Finding(good=True, text=f"{where} is at batch {last}, the lake at batch {newest}")


def _examined_table(table: LakeTable) -> Iterator[Finding]:
    """Whether all files of a table are there, which files are no part of it, and how far its history goes back."""
    try:
        opened = table.opened()
        if opened is None:
            yield Finding(good=True, text=f"table {table.name}: nothing was written yet")
            return
        listed = table.files(opened)
        there = _files_there(table)
        lost = [file.path for file in listed if there.get(file.path) != file.size]
        for path in lost[:MOST_NAMED]:
            state = "is missing" if path not in there else f"has {there[path]} bytes, not what the log says"
            yield Finding(good=False, text=f"table {table.name}: {path} {state}")
        if len(lost) > MOST_NAMED:
            yield Finding(good=False, text=f"table {table.name}: so it is with {len(lost) - MOST_NAMED} more files")
        if not lost:
            rows = sum(file.rows for file in listed)
            text = f"table {table.name}: {len(listed):,} files, {rows:,} rows, version {opened.version()}"
            yield Finding(good=True, text=f"{text}{_history(table, opened, there)}")
        stray = _stray(opened)
        if stray:
            named = ", ".join(stray[:3]) + (" …" if len(stray) > 3 else "")  # noqa: PLR2004 - enough to find them
            text = f"{len(stray):,} files belong to no version, as killed tasks leave them ({named})"
            yield Finding(good=True, text=f"table {table.name}: {text}; they are deleted after {HISTORY_HOURS} hours")
    except (LakeError, DeltaError, OSError) as error:
        yield Finding(good=False, text=f"table {table.name}: its log can't be read: {_line(error)}")


def _files_there(table: LakeTable) -> dict[str, int]:
    """The files in a table's directory, with their sizes."""
    files, root = table.storage.open()
    found = files.get_file_info(fs.FileSelector(root, recursive=True))
    return {info.path.removeprefix(f"{root}/"): info.size for info in found if info.type == fs.FileType.File}


def _stray(opened: DeltaTable) -> list[str]:
    """Files that belong neither to this version nor to one before."""
    every = {"retention_hours": 0, "enforce_retention_duration": False, "dry_run": True}
    unused = set(opened.vacuum(full=True, **every))  # type: ignore[arg-type] # of several types
    return sorted(unused - set(opened.vacuum(full=False, **every)))  # type: ignore[arg-type] # as above


def _history(table: LakeTable, opened: DeltaTable, there: Mapping[str, int]) -> str:
    """How far back the table can be queried: the first version whose files are all there."""
    low, high = _first_version(there), opened.version()
    while low < high:
        middle = (low + high) // 2
        try:
            whole = all(file.path in there for file in files_of(table.at_version(middle)))
        except (LakeError, DeltaError):
            whole = False
        low, high = (low, middle) if whole else (middle + 1, high)
    return "" if low == 0 else f"; versions before {low} have expired"


def _first_version(there: Mapping[str, int]) -> int:
    """The first version that the log may still describe."""
    found = [_LOGGED.fullmatch(path) for path in there]
    numbers = [(int(one[1]), one[2]) for one in found if one is not None]
    commits = [number for number, kind in numbers if kind == ".json"]
    if 0 in commits:
        return 0
    return min((number for number, kind in numbers if kind != ".json"), default=0)


_LOGGED: Final = re.compile(rf"{LOG}/(\d{{20}})(\.json|\.checkpoint\..*)")


def _examined_messages(storage: Storage, status: Status, token: str | None) -> Iterator[Finding]:
    """Whether each message of the journal that the query has read is in the table, once, and no other."""
    if "messages" not in tables_in(storage):
        return
    try:
        yield from _compared(storage, *_journal_rows(storage, status, token))
    except (JournalError, LakeError, DeltaError, OSError, PipelineError) as error:
        yield Finding(good=False, text=f"table messages: can't be compared with the journal: {_line(error)}")


_COMPARED: Final = ("node", "offset", "kind", "headers")


def _journal_rows(storage: Storage, status: Status, token: str | None) -> tuple[pa.Table, pa.Table]:
    """The journal's messages that the query has read and the lake still keeps, and where rows can't be read."""
    kept = LakeTable(storage.below("messages"), "messages").committed(KEPT)[0]
    first = datetime.fromordinal(kept + 1).replace(tzinfo=UTC) if kept > 0 else None
    batches = [
        batch
        for name, opened in Journals(status.journals, token).current().items()
        for batch in opened.scan(
            _COMPARED,
            to_offset=status.place.get(name, 0),
            kinds=(*MESSAGE_KINDS, GAP),
            from_time=first,
            on_corrupt="gap",
        )
    ]
    schema = pa.schema([PLAIN_SCHEMA.field(name).with_nullable(nullable=True) for name in _COMPARED])
    rows = pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)
    return rows.filter(pc.field("kind") != GAP), rows.filter(pc.field("kind") == GAP)


_ISLANDS: Final = (
    'SELECT node, min("offset"), max("offset"), count(*) FROM (SELECT node, "offset", "offset" - row_number() OVER '
    '(PARTITION BY node ORDER BY "offset") AS island FROM ({rows})) GROUP BY node, island ORDER BY ALL'
)
"""Rows that follow each other, as ranges."""


def _compared(storage: Storage, rows: pa.Table, gaps: pa.Table) -> Iterator[Finding]:
    """The rows of the table against those of the journal."""
    for gap in gaps.to_pylist()[:MOST_NAMED]:
        yield Finding(good=False, text=f"journal: {_gap(gap)}")
    if not rows.num_rows:
        return
    with closing(Questions(storage)) as questions:
        questions.register("journal_rows", rows)
        missing = 'SELECT node, "offset" FROM journal_rows ANTI JOIN messages USING (node, "offset")'
        more = (
            'SELECT node, "offset" FROM messages ANTI JOIN journal_rows USING (node, "offset") JOIN (SELECT node, '
            'min("offset") AS low, max("offset") AS high FROM journal_rows GROUP BY node) AS ends USING (node) '
            'WHERE "offset" BETWEEN low AND high'
        )
        ranges = {
            "lacks": questions.ask(_ISLANDS.format(rows=missing)).rows,
            "has, unlike the journal,": [] if gaps.num_rows else questions.ask(_ISLANDS.format(rows=more)).rows,
        }
        twice = questions.ask(
            'SELECT node, "offset", count(*) FROM messages GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL'
        ).rows
    for verb, found in ranges.items():
        for node, begin, end, count in found[:MOST_NAMED]:
            text = f"table messages: {verb} {count:,} rows of node {node}, offsets {begin} to {end}"
            yield Finding(good=False, text=text)
        if len(found) > MOST_NAMED:
            text = f"table messages: {verb} rows at {len(found) - MOST_NAMED} more places"
            yield Finding(good=False, text=text)
    if twice:
        node, offset, count = twice[0]
        text = f"{len(twice):,} rows are there twice; offset {offset} of node {node} {count} times"
        yield Finding(good=False, text=f"table messages: {text}")
    if not twice and not any(ranges.values()):
        yield Finding(good=True, text=f"table messages: has each of the journal's {rows.num_rows:,} messages once")


def _gap(row: Mapping[str, Any]) -> str:
    """What a row of kind ``gap`` stands for."""
    told = json.loads(row["headers"])
    rows = f"{told['rows']} rows from offset {row['offset']} on" if told["rows"] else f"rows from {row['offset']} on"
    return f"{rows} can't be read: {told['segment']} at byte {told['position']}: {told['reason']}"


def _line(error: Exception) -> str:
    """An error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
