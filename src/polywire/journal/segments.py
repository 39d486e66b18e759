"""Segments for readers: what is in each, and its rows, from Arrow as it was written or from Parquet once compacted.

While a writer is at work in a segment, only what the index lists is safe, so nothing else exists for readers. For any
other Arrow segment the index is only a help, and what it does not list is looked for in the segment itself. Row groups
of a compacted segment are found by their statistics.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ipc

from polywire.journal.damage import Hole, Survey, concerns, lost_batches, missing, settle, survey
from polywire.journal.errors import CorruptBatch
from polywire.journal.format import (
    END_OF_STREAM,
    ENTRY_OCTETS,
    MAGIC,
    MAX_HEAD,
    SCHEMA,
    STATE_FLAG,
    BadMessage,
    Entry,
    Head,
    IpcMessage,
    check_known,
    find_head,
    read_index,
    unpack_entries,
)
from polywire.journal.query import Query, microseconds
from polywire.journal.storage import INDEX, SegmentFile, Storage, segment_name

RUN_OCTETS: Final = 2 << 20
"""What is read at once, unless a single batch is larger."""


def runs_of(items: Iterable[Entry | CorruptBatch]) -> Iterator[list[Entry] | CorruptBatch]:
    """Put together what can be read at once."""
    run: list[Entry] = []
    for item in items:
        if isinstance(item, CorruptBatch):
            if run:
                yield run
            run = []
            yield item
            continue
        if run and (run[-1].end != item.position or item.end - run[0].position > RUN_OCTETS):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def read_at(file: pa.NativeFile, size: int, position: int) -> bytes:
    """So many bytes of a file, from a position on."""
    octets: bytes = file.read_at(size, position)  # type: ignore[call-arg] # the stubs know no position
    return octets


def load_head(file: pa.NativeFile, name: str) -> Head:
    """The head of a segment that is open; ``CorruptBatch`` where it can be neither read nor made again."""
    try:
        return find_head(memoryview(read_at(file, min(MAX_HEAD, file.size()), 0)))
    except BadMessage as error:
        raise CorruptBatch(name, 0, f"no batch can be decoded: {error.reason}") from error


def load_index(storage: Storage, first_offset: int) -> list[Entry] | None:
    """The entries of a segment's index; None where there is none, or a bad one."""
    try:
        with storage.open(segment_name(first_offset, INDEX)) as file:
            return read_index(file.read())
    except FileNotFoundError:
        return None


def decode(head: Head, octets: bytes | memoryview, columns: list[str]) -> pa.Table:
    """The rows of the batches in these bytes, whose CRCs are right, with these columns as they are stored."""
    return _decode(pa.py_buffer(b"".join((head.octets, octets))), columns)


class RunReader:
    """Reads runs of one open segment: batches that follow each other are read at once, checked, decoded and joined.

    A group commit under little load has few rows, and disks and networks like large reads.
    """

    def __init__(self, file: pa.NativeFile, name: str, head: Head, query: Query) -> None:
        self._file: Final = file
        self._name: Final = name
        self._head: Final = head
        self._query: Final = query
        self._needed: Final = query.needed

    def read(self, items: Iterable[Entry | CorruptBatch]) -> Iterator[pa.RecordBatch]:
        """What is wanted of these batches, in order; what can't be read as the query says."""
        for run in runs_of(items):
            yield from settle(run, self._query) if isinstance(run, CorruptBatch) else self._read_run(run)

    def _read_run(self, run: list[Entry]) -> Iterator[pa.RecordBatch]:
        start = run[0].position
        before = len(self._head)
        buffer = pa.allocate_buffer(before + run[-1].end - start)
        view = memoryview(buffer).cast("B")
        view[:before] = self._head.octets
        self._file.seek(start)
        got = before + int(self._file.readinto(view[before:]))
        good = 0
        for index, entry in enumerate(run):
            at = before + entry.position - start
            try:
                check_known(view[at : min(at + entry.length, got)], entry.crc)
            except BadMessage as error:
                if index > good:
                    yield from self._rows(run[good:index], self._part(buffer, view, run[0], run[good:index]))
                good = index + 1
                yield from settle(_corrupt(self._name, entry, error.reason), self._query, ts=entry.min_ts)
        if good < len(run):
            yield from self._rows(run[good:], self._part(buffer, view, run[0], run[good:]))

    def _part(self, buffer: pa.Buffer, view: memoryview, first: Entry, part: Sequence[Entry]) -> pa.Table:
        """The rows of this part of a run, decoded."""
        before = len(self._head)
        end = before + part[-1].end - first.position
        if part[0] is first:
            return _decode(buffer.slice(0, end), self._needed)
        return decode(self._head, view[before + part[0].position - first.position : end], self._needed)

    def _rows(self, entries: Sequence[Entry], table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Cut off what is before and behind the offsets that are wanted: of the first batch, and of the last."""
        skip = max(0, self._query.from_offset - entries[0].first_offset)
        drop = max(0, entries[-1].end_offset - self._query.to_offset)
        for batch in table.slice(skip, table.num_rows - skip - drop).combine_chunks().to_batches():
            yield self._query.choose(batch)


def _decode(stream: pa.Buffer, columns: list[str]) -> pa.Table:
    if not columns:  # to Arrow no columns means all, and rows can't be counted without one
        columns = SCHEMA.names[:1]
    fields = [SCHEMA.names.index(name) for name in columns]
    return ipc.open_stream(stream, options=ipc.IpcReadOptions(included_fields=fields, use_threads=False)).read_all()


def _corrupt(name: str, entry: Entry, reason: str) -> CorruptBatch:
    return CorruptBatch(name, entry.position, reason, first_offset=entry.first_offset, rows=entry.rows)


def entries_of(found: Survey, known: list[Entry], head: Head, octets: bytes | mmap.mmap) -> list[Entry]:
    """An entry for each batch: the one that an index had, or one made from the batch."""
    by_position = {entry.position: entry for entry in known}
    entries = []
    for batch in found.batches:
        entry = by_position.get(batch.position)
        if entry is None or entry.crc != batch.crc:
            entry = make_entry(batch, head, octets[batch.position : batch.end])
        entries.append(entry)
    return entries


def make_entry(batch: IpcMessage, head: Head, octets: bytes) -> Entry:
    """The entry of a batch that only its bytes are known of; whether it holds state is not, so it may."""
    rows = decode(head, octets, ["ts"])
    times = pc.min_max(rows.column(0).cast("int64"))
    earliest, latest = times["min"].as_py(), times["max"].as_py()
    return Entry(batch.first_offset, batch.rows, STATE_FLAG, batch.position, batch.length, earliest, latest, batch.crc)


class ArrowSegment:
    """One segment in Arrow's form, as it was when it was last looked at.

    ``behind`` is the first offset of the segment behind it; the newest has none.
    """

    def __init__(self, storage: Storage, file: SegmentFile, size: int, *, behind: int | None) -> None:
        self.file: Final = file
        self.name: Final = file.name
        self.first_offset: Final = file.first_offset
        self.newest: Final = behind is None
        self.size = size
        self.storage: Final = storage
        self._behind: Final = behind
        self.damage: list[CorruptBatch] = []
        self.entries: list[Entry] = []
        self.ended = False
        self._from_index = False
        self._load()

    @property
    def end_offset(self) -> int:
        """The offset after its last row, whether that can be read or is lost."""
        return max(self._end_of_rows, *((lost.first_offset or 0) + (lost.rows or 0) for lost in self.damage[-1:]), 0)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(entry.rows for entry in self.entries)

    @property
    def octets(self) -> int:
        """How many bytes of it are safe."""
        if self.newest and not self.ended:
            return self.entries[-1].end if self.entries else 0
        return self.size

    @property
    def times(self) -> tuple[int, int] | None:
        """The earliest and the latest time of its rows."""
        if not self.entries:
            return None
        return min(entry.min_ts for entry in self.entries), max(entry.max_ts for entry in self.entries)

    def wanted(self, query: Query) -> Iterator[Entry | CorruptBatch]:
        """The batches that may hold rows that are wanted, and the damage among them, in order."""
        damage = [found for found in self.damage if concerns(found, query)]
        for entry in self.entries:
            while damage and damage[0].position <= entry.position:
                yield damage.pop(0)
            if query.may_hold(entry.first_offset, entry.end_offset, entry.min_ts, entry.max_ts) and (
                entry.holds_state or not query.state_only
            ):
                yield entry
        yield from damage

    def read(self, query: Query) -> Iterator[pa.RecordBatch]:
        """The rows that are wanted."""
        return read_batches(self.storage, self.file, list(self.wanted(query)), query)

    def extend(self) -> bool:
        """Add what was flushed since, if the index only grew; else this must be loaded again."""
        if not (self._from_index and self.storage.being_written()):
            return False
        at = len(MAGIC) + len(self.entries) * ENTRY_OCTETS
        try:
            with self.storage.open(segment_name(self.first_offset, INDEX)) as file:
                size = file.size()
                added = unpack_entries(read_at(file, size - at, at)) if size > at else []
        except FileNotFoundError:
            return False
        if added and self.entries and added[0].position != self.entries[-1].end:
            return False
        if added:
            seen = [*self.entries[-1:], *added]
            self.damage += lost_batches(self.name, self._end_of_rows, seen, 0, size=added[-1].end)
        self.entries += added
        return True

    @property
    def _end_of_rows(self) -> int:
        return self.entries[-1].end_offset if self.entries else self.first_offset

    def _load(self) -> None:
        known = load_index(self.storage, self.first_offset)
        if self.newest and self.storage.being_written():
            self.entries = known or []
            self._from_index = True
            self._find_lost([], [], self.entries[-1].end if self.entries else 0)
            return
        if not (known and self._complete(known)):
            self._measure(known or [])
        if known and self._complete(known):
            self.entries = known
            self.ended = known[-1].end < self.size
            self._find_lost([], known, self.size)
        else:
            self._look(known or [])

    def _measure(self, known: list[Entry]) -> None:
        """A list of files is not of one moment.

        A segment may be longer than listed if there is one after it, or if its index knows of more: its writer has
        added that since, and has ended.
        """
        if not self.newest or (known and known[-1].end > self.size):
            with self.storage.open(self.name) as file:
                self.size = file.size()

    def _complete(self, known: list[Entry]) -> bool:
        """Whether the index knows everything there is, from the first batch to the end, without a hole."""
        if known[0].first_offset != self.first_offset:
            return False
        if known[-1].end not in {self.size, self.size - len(END_OF_STREAM)}:
            return False
        return all(before.end == after.position for before, after in pairwise(known))

    def _look(self, known: list[Entry]) -> None:
        """Read the segment itself, up to the size it had before it was known to be closed."""
        with self.storage.open(self.name) as file:
            octets = file.read(self.size)
            try:
                head = load_head(file, self.name)
            except CorruptBatch as error:
                found = survey(octets, 0, known, first_offset=self.first_offset)
                end_offset = found.batches[-1].end_offset if found.batches else self.first_offset
                self._find_lost([Hole(0, self.size, error.reason)], known, self.size, end_offset)
                return
        found = survey(octets, len(head), known, first_offset=self.first_offset)
        self.entries = entries_of(found, known, head, octets)
        self.ended = found.ended
        self._find_lost(found.holes, known, self.size)

    def _find_lost(self, holes: list[Hole], known: list[Entry], size: int, end_offset: int = 0) -> None:
        """What should be here and is not: all rows up to the next segment, or in the newest what its index lists.

        What a crash left at the end of the newest segment is not in its index: no reader was ever shown it.
        """
        proven = self._behind
        if proven is None:
            proven = max([end_offset, *(entry.end_offset for entry in known[-1:])])
        self.damage = list(
            lost_batches(self.name, self.first_offset, self.entries, proven, size=size, holes=holes, known=known)
        )


def read_batches(
    storage: Storage, file: SegmentFile, items: list[Entry | CorruptBatch], query: Query
) -> Iterator[pa.RecordBatch]:
    """What is wanted of these batches of a segment, in order."""
    entries = [item for item in items if isinstance(item, Entry)]
    if not entries:  # nothing need be decoded to say that nothing can be
        for item in items:
            if isinstance(item, CorruptBatch):
                yield from settle(item, query)
        return
    with storage.open(file.name) as opened:
        try:
            head = load_head(opened, file.name)
        except CorruptBatch as error:
            first = entries[0].first_offset
            rows = entries[-1].end_offset - first
            lost = CorruptBatch(file.name, 0, error.reason, first_offset=first, rows=rows)
            yield from settle(lost, query, ts=entries[0].min_ts)
            return
        yield from RunReader(opened, file.name, head, query).read(items)


BATCH_ROWS: Final = 65536
_OFFSET: Final = SCHEMA.names.index("offset")
_TS: Final = SCHEMA.names.index("ts")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: its rows, times and position."""

    number: int
    first_offset: int
    end_offset: int
    rows: int
    min_ts: int
    max_ts: int
    position: int


class ParquetSegment:
    """One compacted segment; ``behind`` is the first offset of the one behind it."""

    ended: Final = True

    def __init__(self, storage: Storage, file: SegmentFile, size: int, *, behind: int | None) -> None:
        self.file: Final = file
        self.name: Final = file.name
        self.first_offset: Final = file.first_offset
        self.size: Final = size
        self.octets: Final = size
        self.damage: list[CorruptBatch] = []
        self.groups: list[RowGroup] = []
        self.storage: Final = storage
        with storage.open(self.name) as opened:
            try:
                self.groups = row_groups(pq.read_metadata(opened))
            except (pa.ArrowException, OSError) as error:
                if not _is_damage(error):
                    raise
                reason = f"it can't be opened: {error}"
                rows = None if behind is None else behind - self.first_offset
                self.damage = [CorruptBatch(self.name, 0, reason, first_offset=self.first_offset, rows=rows)]
            else:
                self.damage = list(lost_rows(self.name, self.first_offset, self.groups, behind))

    @property
    def end_offset(self) -> int:
        """The offset after its last row, whether that can be read or is lost."""
        last = self.groups[-1].end_offset if self.groups else self.first_offset
        return max(last, *((lost.first_offset or 0) + (lost.rows or 0) for lost in self.damage[-1:]), 0)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(group.rows for group in self.groups)

    @property
    def times(self) -> tuple[int, int] | None:
        """The earliest and the latest time of its rows."""
        if not self.groups:
            return None
        return min(group.min_ts for group in self.groups), max(group.max_ts for group in self.groups)

    def wanted(self, query: Query) -> list[RowGroup | CorruptBatch]:
        """The row groups that may hold rows that are wanted, and the damage."""
        found: list[RowGroup | CorruptBatch] = [damage for damage in self.damage if concerns(damage, query)]
        found += [
            group
            for group in self.groups
            if query.may_hold(group.first_offset, group.end_offset, group.min_ts, group.max_ts)
        ]
        return sorted(found, key=lambda item: item.first_offset or 0)

    def read(self, query: Query) -> Iterator[pa.RecordBatch]:
        """The rows that are wanted."""
        return read_groups(self.storage, self.file, self.wanted(query), query)


def read_groups(
    storage: Storage, segment: SegmentFile, items: Sequence[RowGroup | CorruptBatch], query: Query
) -> Iterator[pa.RecordBatch]:
    """What is wanted of these row groups of a compacted segment."""
    name = segment.name
    if not any(isinstance(item, RowGroup) for item in items):
        for item in items:
            if isinstance(item, CorruptBatch):
                yield from settle(item, query)
        return
    with storage.open(name) as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
        for group in items:
            if isinstance(group, CorruptBatch):
                yield from settle(group, query)
                continue
            try:
                yield from _read_group(file, group, query)
            except (pa.ArrowException, OSError) as error:
                if not _is_damage(error):
                    raise
                damage = CorruptBatch(
                    name, group.position, str(error), first_offset=group.first_offset, rows=group.rows
                )
                yield from settle(damage, query, ts=group.min_ts)


def lost_rows(name: str, first_offset: int, groups: Sequence[RowGroup], behind: int | None) -> Iterator[CorruptBatch]:
    """The rows that a compacted segment should have and has not; ``behind`` is where the next segment begins."""
    for first, end in missing(first_offset, groups, behind or 0):
        position = max((group.position for group in groups if group.end_offset <= first), default=0)
        yield CorruptBatch(name, position, "no file has these rows", first_offset=first, rows=end - first)


def row_groups(metadata: pq.FileMetaData) -> list[RowGroup]:
    """The row groups, from the file's footer."""
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        first, last = _bounds(group, _OFFSET)
        earliest, latest = _bounds(group, _TS)
        position = group.column(0).dictionary_page_offset or group.column(0).data_page_offset
        found.append(
            RowGroup(
                number,
                first,
                last + 1,
                group.num_rows,
                microseconds(earliest),
                microseconds(latest),
                position,
            )
        )
    return found


def _bounds(group: pq.RowGroupMetaData, column: int) -> tuple[Any, Any]:
    """The least and the greatest value of a column."""
    statistics = group.column(column).statistics
    if statistics is None:
        raise pa.ArrowInvalid(f"column {SCHEMA.names[column]!r} has no statistics")
    return statistics.min, statistics.max


def parquet_end_offset(path: Path) -> int:
    """The offset behind the last row of a compacted segment; 0 where it has none."""
    groups = row_groups(pq.read_metadata(path))
    return groups[-1].end_offset if groups else 0


def _read_group(file: pq.ParquetFile, group: RowGroup, query: Query) -> Iterator[pa.RecordBatch]:
    cut = group.first_offset < query.from_offset or group.end_offset > query.to_offset
    columns = query.needed
    if cut or not columns:
        columns = [*columns, *(["offset"] if "offset" not in columns else [])]
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group.number], columns=columns):
        rows = batch
        if cut:
            offsets = rows.column("offset")
            end = min(query.to_offset, group.end_offset)
            wanted = pc.and_(pc.greater_equal(offsets, pa.scalar(query.from_offset)), pc.less(offsets, pa.scalar(end)))
            rows = rows.filter(wanted)
        yield query.choose(rows)


def _is_damage(error: Exception) -> bool:
    """Whether the file is wrong, and not the way to it. Arrow's own errors about contents have no number."""
    return not isinstance(error, OSError) or error.errno is None
