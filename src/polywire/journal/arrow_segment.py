"""A segment as it was written, for readers: what is in it, and its rows.

While a writer is at work in it, only what the index names is safe, so nothing else exists for readers. Of any other
segment the index is just a help, and what it does not know is looked for in the segment itself.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from polywire.journal.entries import entries_of
from polywire.journal.errors import CorruptBatch
from polywire.journal.framing import END_OF_STREAM
from polywire.journal.gaps import concerns, lost_batches, settle
from polywire.journal.index import ENTRY_OCTETS, MAGIC, Entry, read_index, unpack_entries
from polywire.journal.query import Query
from polywire.journal.runs import RunReader, load_head
from polywire.journal.segments import INDEX, SegmentFile, segment_name
from polywire.journal.storage import Storage
from polywire.journal.survey import Hole, survey


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
        """How many octets of it are safe."""
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

    def read(self, query: Query) -> Iterator[Any]:
        """The rows that are wanted."""
        return read_batches(self.storage, self.file, list(self.wanted(query)), query)

    def extend(self) -> bool:
        """Take what has become safe since, if the index just goes on; else this has to be loaded anew."""
        if not (self._from_index and self.storage.being_written()):
            return False
        at = len(MAGIC) + len(self.entries) * ENTRY_OCTETS
        try:
            with self.storage.open(segment_name(self.first_offset, INDEX)) as file:
                size = file.size()
                added = unpack_entries(file.read_at(size - at, at)) if size > at else []
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
        known = self._read_index()
        if self.newest and self.storage.being_written():
            self.entries = known or []
            self._from_index = True
            self._find_lost([], [], self.entries[-1].end if self.entries else 0)
            return
        if not (known and self._complete(known)):
            self._measure()
        if known and self._complete(known):
            self.entries = known
            self.ended = known[-1].end < self.size
            self._find_lost([], known, self.size)
        else:
            self._look(known or [])

    def _measure(self) -> None:
        """A list of files is not of one moment: where a segment stands behind this one, it is longer than listed."""
        if not self.newest:
            with self.storage.open(self.name) as file:
                self.size = file.size()

    def _read_index(self) -> list[Entry] | None:
        try:
            with self.storage.open(segment_name(self.first_offset, INDEX)) as file:
                return read_index(file.read())
        except FileNotFoundError:
            return None

    def _complete(self, known: list[Entry]) -> bool:
        """Whether the index knows everything there is, from the first batch to the end, without a hole."""
        if known[0].first_offset != self.first_offset:
            return False
        if known[-1].end not in {self.size, self.size - len(END_OF_STREAM)}:
            return False
        return all(before.end == after.position for before, after in pairwise(known))

    def _look(self, known: list[Entry]) -> None:
        """Look at the segment itself, up to the size it had before it was known that nobody writes it."""
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


def read_batches(storage: Storage, file: SegmentFile, items: list[Entry | CorruptBatch], query: Query) -> Iterator[Any]:
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
