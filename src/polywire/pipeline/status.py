"""How far each query is: written by the process that runs it, read by ``polywire pipeline status`` and ``doctor``.

It is kept in small JSON files beside the tables, in the lake's directory ``_pipeline``, with the checkpoints.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from polywire.journal.errors import JournalError
from polywire.pipeline.delta import KEPT, PARTS, LakeTable
from polywire.pipeline.errors import PipelineError
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

    @property
    def lag(self) -> int:
        """Rows that were safe in the journal and not yet read, when this was written."""
        return sum(max(end - self.place.get(name, 0), 0) for name, end in self.latest.items())


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
        updated=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


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
    """Something that was looked at, and whether it is as it should be."""

    good: bool
    text: str


MESSAGE_KINDS: Final = ("publish", "enqueue", "request", "reply", "error")
"""Rows of the journal that are rows of ``messages``."""

MOST_GAPS: Final = 10
"""Gaps that are named."""


def examined(
    lake: str | Storage,
    token: str | None = None,
    options: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
) -> list[Finding]:
    """Compare the journal and the lake: what should be there, and what is."""
    storage = Storage.parse(lake, options)
    notes = Notes(storage, checkpoint=checkpoint)
    statuses = read_statuses(notes)
    if not statuses:
        raise PipelineError(f"{storage}: no query ever ran here; 'polywire pipeline run' starts some")
    found = []
    for status in statuses:
        lag = lag_now(status, token)
        behind = "its journal can't be read from here" if lag is None else f"{lag.rows:,} rows behind the journal"
        found.append(Finding(good=lag is not None, text=f"query {status.query}: {status.state}, {behind}"))
        found += [_examined_table(storage, name, status) for name in status.tables]
        if "messages" in status.tables and lag is not None:
            found += _examined_messages(storage, status, token)
    return found


def _examined_table(storage: Storage, name: str, status: Status) -> Finding:
    """Whether all files of a table are there, and none is of a batch the query has not come to."""
    written = LakeTable(storage.below(f"{PARTS}/{name}"), name)
    if written.version() < 0:
        written = LakeTable(storage.below(name), name)
    done, _ = written.committed(status.query)
    files, root = written.storage.open()
    listed = written.files()
    sizes = files.get_file_info([f"{root}/{file.path}" for file in listed])
    lost = [file.path for file, info in zip(listed, sizes, strict=True) if info.size != file.size]
    if lost:
        return Finding(
            good=False, text=f"table {name}: {len(lost)} files are missing or cut off, the first one is {lost[0]}"
        )
    if status.batch >= 0 and done > status.batch + 1:
        return Finding(
            good=False,
            text=f"table {name}: has batch {done}, but the query is at {status.batch}: its checkpoint is old",
        )
    rows = sum(file.rows for file in listed)
    return Finding(good=True, text=f"table {name}: {len(listed):,} files, {rows:,} rows, batch {done}")


def _examined_messages(storage: Storage, status: Status, token: str | None) -> Iterator[Finding]:
    """Whether each message of the journal that the query has read is in the table, once."""
    if "messages" not in tables_in(storage):
        return
    questions = Questions(storage)
    kept = LakeTable(storage.below("messages"), "messages").committed(KEPT)[0]
    first = datetime.fromordinal(kept + 1).replace(tzinfo=UTC) if kept > 0 else None
    batches = [
        batch
        for name, opened in Journals(status.journals, token).current().items()
        for batch in opened.scan(
            ["node", "offset"],
            to_offset=status.place.get(name, 0),
            kinds=MESSAGE_KINDS,
            from_time=first,
            on_corrupt="skip",
        )
    ]
    if not batches:
        return
    questions.register("journal_rows", pa.Table.from_batches(batches))
    gaps = questions.ask(
        'SELECT node, min("offset"), max("offset"), count(*) FROM (SELECT *, "offset" - row_number() OVER '
        '(PARTITION BY node ORDER BY "offset") AS island FROM journal_rows ANTI JOIN messages USING (node, "offset")) '
        "GROUP BY node, island ORDER BY ALL"
    ).rows
    twice = questions.ask(
        'SELECT node, "offset", count(*) FROM messages GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL'
    ).rows
    questions.close()
    for node, begin, end, rows in gaps[:MOST_GAPS]:
        yield Finding(good=False, text=f"table messages: lacks {rows:,} rows of node {node}, offsets {begin} to {end}")
    if len(gaps) > MOST_GAPS:
        yield Finding(good=False, text=f"table messages: lacks rows at {len(gaps) - MOST_GAPS} more places")
    if twice:
        node, offset, rows = twice[0]
        yield Finding(
            good=False,
            text=f"table messages: {len(twice):,} rows are there twice; offset {offset} of node {node} {rows} times",
        )
    if not gaps and not twice:
        checked = sum(batch.num_rows for batch in batches)
        yield Finding(good=True, text=f"table messages: has each of the journal's {checked:,} messages once")
