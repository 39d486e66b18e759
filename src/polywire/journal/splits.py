"""A range of offsets cut into parts that can be read apart, by other processes and on other machines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from polywire.journal.arrow_segment import ArrowSegment, read_batches
from polywire.journal.errors import CorruptBatch
from polywire.journal.index import Entry
from polywire.journal.parquet import ParquetSegment, RowGroup, read_groups
from polywire.journal.query import Query, make_query
from polywire.journal.segments import PARQUET, SegmentFile
from polywire.journal.storage import Storage

Item = Entry | CorruptBatch | RowGroup


@dataclass(frozen=True, slots=True)
class Split:
    """Some batches of one segment: the rows from ``from_offset`` up to, but without, ``to_offset``. Can be pickled."""

    storage: Storage
    file: SegmentFile
    from_offset: int
    to_offset: int
    items: tuple[Item, ...]

    def read(self, columns: Iterable[str] | None = None, **wanted: Any) -> Iterator[Any]:
        """The rows, as ``Journal.scan`` gives them; it takes the same arguments, offsets aside."""
        query = replace(make_query(columns=columns, **wanted), from_offset=self.from_offset, to_offset=self.to_offset)
        return (batch for batch in self._read(query) if batch.num_rows)

    def _read(self, query: Query) -> Iterator[Any]:
        if self.file.format == PARQUET:
            items = [item for item in self.items if not isinstance(item, Entry)]
            return read_groups(self.storage, self.file, items, query)
        return self._read_arrow(query)

    def _read_arrow(self, query: Query) -> Iterator[Any]:
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
