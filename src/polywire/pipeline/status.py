"""How far each query is: written by the process that runs it, read by ``polywire pipeline status``.

It is kept in small JSON files beside the tables, in the lake's directory ``_pipeline``, with the checkpoints.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Final

from pyarrow import fs

from polywire.journal.errors import JournalError
from polywire.pipeline.errors import PipelineError
from polywire.pipeline.journals import TICK, Journals
from polywire.pipeline.staging import open_location

FOLDER: Final = "_pipeline"
_SUFFIX: Final = ".json"


class Notes:
    """The notes of a lake, on a disk or any storage ``pyarrow.fs`` knows."""

    def __init__(self, lake: str) -> None:
        self._location = f"{lake.rstrip('/')}/{FOLDER}"

    def checkpoint(self, query: str) -> str:
        """Where Spark keeps how far a query is."""
        return f"{self._location}/checkpoints/{query}"

    def read(self, name: str) -> dict[str, Any] | None:
        """A note, or None where there is none."""
        files, root = open_location(self._location)
        try:
            with files.open_input_stream(f"{root}/{name}{_SUFFIX}") as stream:
                found = json.loads(stream.read())
        except FileNotFoundError:
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, note: dict[str, Any]) -> None:
        """Write a note atomically: readers find the complete old or new one."""
        files, root = open_location(self._location)
        path = f"{root}/{name}{_SUFFIX}"
        files.create_dir(str(PurePosixPath(path).parent), recursive=True)
        fresh = f"{path}.{uuid.uuid4().hex}"
        with files.open_output_stream(fresh) as stream:
            stream.write(json.dumps(note, indent=1).encode())
        files.move(fresh, path)

    def names(self, folder: str) -> Iterator[str]:
        """The notes in a directory, in order."""
        files, root = open_location(self._location)
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
