"""Reading a journal: all its segments as one sequence of rows, from a directory or any place a URI leads to.

A reader needs no permission of the writer and never disturbs it. It sees what is safe, and nothing else. A range of
offsets can be cut into splits, which other processes read, also on other machines.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import fs

from polywire.journal.errors import CorruptBatch
from polywire.journal.format import PLAIN_SCHEMA, Entry
from polywire.journal.query import Query, from_microseconds, make_query, microseconds
from polywire.journal.segments import ArrowSegment, ParquetSegment, RowGroup, read_batches, read_groups
from polywire.journal.storage import INDEX, PARQUET, SegmentFile, Storage, choose_segments, find_storage, offset_of

Item = Entry | CorruptBatch | RowGroup


@dataclass(frozen=True, slots=True)
class Split:
    """Some batches of one segment: the rows from ``from_offset`` up to, but without, ``to_offset``. Can be pickled."""

    storage: Storage
    file: SegmentFile
    from_offset: int
    to_offset: int
    items: tuple[Item, ...]

    def read(self, columns: Iterable[str] | None = None, **wanted: Any) -> Iterator[pa.RecordBatch]:
        """The rows, as ``Journal.scan`` gives them; it takes the same arguments, offsets aside."""
        query = replace(make_query(columns=columns, **wanted), from_offset=self.from_offset, to_offset=self.to_offset)
        return (batch for batch in self._read(query) if batch.num_rows)

    def _read(self, query: Query) -> Iterator[pa.RecordBatch]:
        if self.file.format == PARQUET:
            items = [item for item in self.items if not isinstance(item, Entry)]
            return read_groups(self.storage, self.file, items, query)
        return self._read_arrow(query)

    def _read_arrow(self, query: Query) -> Iterator[pa.RecordBatch]:
        items = [item for item in self.items if not isinstance(item, RowGroup)]
        batches = read_batches(self.storage, self.file, items, query)
        try:
            first = next(batches, None)
        except FileNotFoundError:
            # Compacted meanwhile: the same rows under the same name, in the other form.
            compacted = SegmentFile(self.file.first_offset, PARQUET)
            yield from ParquetSegment(self.storage, compacted, 0, behind=None).read(query)
            return
        if first is not None:
            yield first
            yield from batches


def splits_of(segment: ArrowSegment | ParquetSegment, query: Query, rows_each: int) -> Iterator[Split]:
    """The segment's part of what is wanted, in splits of about so many rows."""
    part: list[Item] = []
    rows = 0
    for item in segment.wanted(query):
        part.append(item)
        rows += item.rows or 0
        if rows >= rows_each:
            yield _split(segment, query, part)
            part = []
            rows = 0
    if part:
        yield _split(segment, query, part)


def _split(segment: ArrowSegment | ParquetSegment, query: Query, part: list[Item]) -> Split:
    first = part[0].first_offset
    from_offset = max(query.from_offset, segment.first_offset if first is None else first)
    return Split(segment.storage, segment.file, from_offset, min(query.to_offset, _end_of(part[-1])), tuple(part))


def _end_of(item: Item) -> int:
    if isinstance(item, CorruptBatch):
        return (item.first_offset or 0) + (item.rows or 1)
    return item.end_offset


StoredSegment = ArrowSegment | ParquetSegment

T = TypeVar("T")
TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a journal. ``closed``: no row will be added to it."""

    name: str
    format: str
    first_offset: int
    end_offset: int
    rows: int
    octets: int
    min_time: datetime | None
    max_time: datetime | None
    closed: bool


class Journal:
    """A journal as it was when it was opened, or last refreshed."""

    schema: Final = PLAIN_SCHEMA
    """All columns, as ``scan`` gives them."""

    def __init__(self, storage: Storage) -> None:
        self.storage: Final = storage
        self._files: list[SegmentFile] = []
        self._sizes: dict[str, int] = {}
        self._loaded: dict[SegmentFile, StoredSegment] = {}
        self.refresh()

    def refresh(self) -> None:
        """See what has been added and removed since."""
        self._sizes = self.storage.sizes()
        self._files = choose_segments(list(self._sizes))
        self._loaded = {file: segment for file, segment in self._loaded.items() if self._is_current(segment)}

    @property
    def exists(self) -> bool:
        """Whether there is anything of a journal here: a segment, or the index of one."""
        return bool(self._files) or any(offset_of(name, INDEX) is not None for name in self._sizes)

    @property
    def first_offset(self) -> int:
        """The offset of the first row that is still there."""
        return self._files[0].first_offset if self._files else 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last row that is safe."""
        return self._steadily(lambda: self._load(self._files[-1]).end_offset if self._files else 0)

    def segments(self) -> list[Segment]:
        """All segments, in order."""
        return self._steadily(lambda: [_describe(self._load(file)) for file in self._files])

    def offset_at(self, time: datetime | int) -> int:
        """The first offset whose row is of this time or later; the end where there is none."""
        query = Query(columns=("offset",), from_ts=microseconds(time), on_corrupt="skip")
        for batch in self._read(query):
            if batch.num_rows:
                return int(batch.column(0)[0].as_py())
        return self.end_offset

    def scan(
        self,
        columns: Iterable[str] | None = None,
        *,
        from_offset: int | None = None,
        to_offset: int | None = None,
        from_time: datetime | int | None = None,
        to_time: datetime | int | None = None,
        channels: str | Iterable[str] | None = None,
        kinds: str | Iterable[str] | None = None,
        protocols: str | Iterable[str] | None = None,
        state_only: bool = False,
        on_corrupt: str = "raise",
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are wanted, in order, as record batches that are never empty.

        Offsets and times end before ``to_offset`` and ``to_time``. ``channels`` are patterns. A batch that can't be
        read raises ``CorruptBatch``, is skipped, or becomes a row of kind ``gap``. ``state_only`` leaves out batches
        that the hub's state does not depend on, as far as an index says that: compacted segments have none.
        """
        query = make_query(
            columns=columns,
            from_offset=from_offset,
            to_offset=to_offset,
            from_time=from_time,
            to_time=to_time,
            channels=channels,
            kinds=kinds,
            protocols=protocols,
            state_only=state_only,
            on_corrupt=on_corrupt,
        )
        return (batch for batch in self._read(query) if batch.num_rows)

    def follow(
        self,
        columns: Iterable[str] | None = None,
        *,
        from_offset: int | None = None,
        poll: float = 0.2,
        stop: threading.Event | None = None,
        **wanted: Any,
    ) -> Iterator[pa.RecordBatch]:
        """The same from ``from_offset`` on, or from now on, and then what is added, until ``stop`` is set.

        It looks every ``poll`` seconds whether there is more, and takes the other arguments of ``scan``.
        """
        query = make_query(columns=columns, **wanted)
        waiting = stop or threading.Event()
        position = self.end_offset if from_offset is None else from_offset
        while not waiting.is_set():
            self.refresh()
            end = self.end_offset
            if end <= position:
                waiting.wait(poll)
                continue
            for batch in self._read(replace(query, from_offset=position, to_offset=end)):
                if batch.num_rows:
                    yield batch
            position = end

    def splits(
        self, from_offset: int | None = None, to_offset: int | None = None, rows_each: int = 1 << 20
    ) -> list[Split]:
        """The range of offsets in parts of about so many rows, to be read elsewhere."""
        end = self.end_offset
        query = make_query(from_offset=from_offset, to_offset=end if to_offset is None else min(to_offset, end))

        def cut() -> list[Split]:
            found: list[Split] = []
            for file in self._files_from(query.from_offset, query.to_offset):
                found.extend(splits_of(self._load(file), query, rows_each))
            return found

        return self._steadily(cut)

    def _read(self, query: Query) -> Iterator[pa.RecordBatch]:
        """The batches of all segments. What is compacted on the way is read in its new form, what is removed is not."""
        position = query.from_offset
        while position < query.to_offset:
            file = next(iter(self._files_from(position, query.to_offset)), None)
            if file is None:
                return
            batches = self._steadily_begun(file, replace(query, from_offset=position))
            if batches is None:
                continue
            yield from batches
            behind = self._behind(file)
            if behind is None:
                return
            position = behind

    def _steadily_begun(self, file: SegmentFile, query: Query) -> Iterator[pa.RecordBatch] | None:
        """The file's batches, the first of them already read; None if it is gone and another file must be read."""
        try:
            batches = self._load(file).read(query)
            first = next(batches, None)
        except FileNotFoundError:
            self.refresh()
            if file in self._files:
                raise
            return None
        return iter(()) if first is None else chain((first,), batches)

    def _files_from(self, position: int, end: int) -> list[SegmentFile]:
        """The files that can have rows from ``position`` up to ``end``."""
        found = []
        for file, behind in zip_longest(self._files, self._files[1:]):
            if (behind is None or behind.first_offset > position) and file.first_offset < end:
                found.append(file)
        return found

    def _behind(self, file: SegmentFile) -> int | None:
        """Where the next segment begins; None where there is none."""
        return next((found.first_offset for found in self._files if found.first_offset > file.first_offset), None)

    def _load(self, file: SegmentFile) -> StoredSegment:
        segment = self._loaded.get(file)
        if segment is None:
            size = self._sizes[file.name]
            kind = ParquetSegment if file.format == PARQUET else ArrowSegment
            segment = kind(self.storage, file, size, behind=self._behind(file))
            self._loaded[file] = segment
        return segment

    def _is_current(self, segment: StoredSegment) -> bool:
        """Whether what was loaded of a segment is still right; the newest is brought up to date."""
        if segment.file not in self._files:
            return False
        if isinstance(segment, ParquetSegment):
            return True
        if segment.newest:
            return segment.file == self._files[-1] and segment.extend()
        return self._sizes[segment.name] == segment.size

    def _steadily(self, look: Callable[[], T]) -> T:
        """Look again when a file goes away while it is looked at: it was compacted, or removed."""
        for _ in range(TRIES):
            try:
                return look()
            except FileNotFoundError:
                self.refresh()
        return look()


def open_journal(place: str | Path, *, filesystem: fs.FileSystem | None = None, token: str | None = None) -> Journal:
    """The journal in this directory, under this URI, of the hub at this address, or in a ``pyarrow.fs`` file system.

    ``token`` is what a hub that has logins wants to see.
    """
    return Journal(find_storage(place, filesystem, token))


def _describe(segment: StoredSegment) -> Segment:
    times = segment.times
    return Segment(
        name=segment.name,
        format=segment.file.format,
        first_offset=segment.first_offset,
        end_offset=segment.end_offset,
        rows=segment.rows,
        octets=segment.octets,
        min_time=None if times is None else from_microseconds(times[0]),
        max_time=None if times is None else from_microseconds(times[1]),
        closed=isinstance(segment, ParquetSegment) or not segment.newest or segment.ended,
    )
