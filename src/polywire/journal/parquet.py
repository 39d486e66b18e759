"""A segment that was compacted, for readers: the same rows as Parquet, found by the statistics of its row groups."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polywire.journal.errors import CorruptBatch
from polywire.journal.gaps import concerns, missing, settle
from polywire.journal.query import Query, microseconds
from polywire.journal.schema import SCHEMA
from polywire.journal.segments import SegmentFile
from polywire.journal.storage import Storage

BATCH_ROWS: Final = 65536
_OFFSET: Final = SCHEMA.names.index("offset")
_TS: Final = SCHEMA.names.index("ts")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: which rows, of what time, and where it stands."""

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
        for group in self.groups:
            if query.may_hold(group.first_offset, group.end_offset, group.min_ts, group.max_ts):
                found.append(group)
        return sorted(found, key=lambda item: item.first_offset or 0)

    def read(self, query: Query) -> Iterator[Any]:
        """The rows that are wanted."""
        return read_groups(self.storage, self.file, self.wanted(query), query)


def read_groups(
    storage: Storage, segment: SegmentFile, items: Sequence[RowGroup | CorruptBatch], query: Query
) -> Iterator[Any]:
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


def row_groups(metadata: Any) -> list[RowGroup]:
    """The row groups, from what stands in the file's foot."""
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        offsets = group.column(_OFFSET).statistics
        times = group.column(_TS).statistics
        if not group.num_rows:
            continue
        position = group.column(0).dictionary_page_offset or group.column(0).data_page_offset
        found.append(
            RowGroup(
                number,
                offsets.min,
                offsets.max + 1,
                group.num_rows,
                microseconds(times.min),
                microseconds(times.max),
                position,
            )
        )
    return found


def parquet_end_offset(path: Path) -> int:
    """The offset behind the last row of a compacted segment; 0 where it has none."""
    groups = row_groups(pq.read_metadata(path))
    return groups[-1].end_offset if groups else 0


def _read_group(file: Any, group: RowGroup, query: Query) -> Iterator[Any]:
    cut = group.first_offset < query.from_offset or group.end_offset > query.to_offset
    columns = query.needed
    if cut or not columns:
        columns = [*columns, *(["offset"] if "offset" not in columns else [])]
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group.number], columns=columns):
        rows = batch
        if cut:
            offsets = rows.column("offset")
            wanted = pc.and_(
                pc.greater_equal(offsets, query.from_offset), pc.less(offsets, min(query.to_offset, group.end_offset))
            )
            rows = rows.filter(wanted)
        yield query.choose(rows)


def _is_damage(error: Exception) -> bool:
    """Whether the file is wrong, and not the way to it. Arrow's own errors about contents have no number."""
    return not isinstance(error, OSError) or error.errno is None
