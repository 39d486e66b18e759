"""What is in a segment, batch by batch: the good ones, and the stretches that can't be read.

Recovery does this at start, and readers where the index has nothing to say. Where the index knows where batches stand,
that is believed; else each message says where the next one begins.

After damage without an index the next batch has to be searched for. A message's body can hold whatever a client sent,
a forged batch included, so a find counts only if from it on one right batch follows the other to the very end.
"""

import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from polywire.journal.framing import ALIGNMENT, END_OF_STREAM, MARKER, BadMessage, IpcMessage, check_batch, check_known
from polywire.journal.index import Entry


@dataclass(frozen=True, slots=True)
class Hole:
    """Octets of a segment that hold no right batch; ``torn`` where they look like one that was cut off.

    ``rows`` is how many rows there were, where an index or a header tells.
    """

    position: int
    end: int
    reason: str
    torn: bool = False
    rows: int | None = None


@dataclass(slots=True)
class Survey:
    """What was found from one position to another, in order."""

    batches: list[IpcMessage] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    ended: bool = False
    """Whether the mark for the end of the stream is there, and nothing behind it."""


def survey(octets: bytes | mmap.mmap, start: int, entries: Iterable[Entry] = (), *, first_offset: int = 0) -> Survey:
    """Look at a segment's octets from ``start`` on; ``entries`` are what an index says of them."""
    with memoryview(octets) as data:
        return _Surveyor(octets, data, first_offset).look(start, entries)


class _Surveyor:
    """One walk through the octets, which knows the offset the next batch may have at least."""

    def __init__(self, octets: bytes | mmap.mmap, data: memoryview, first_offset: int) -> None:
        self._octets: Final = octets
        self._data: Final = data
        self._end: Final = len(data)
        self._next_offset = first_offset
        self._found: Final = Survey()

    def look(self, start: int, entries: Iterable[Entry]) -> Survey:
        position = start
        for entry in entries:
            if entry.position < position or entry.end > self._end:
                continue
            self._walk(position, entry.position)
            try:
                check_known(self._data[entry.position : entry.end], entry.crc)
            except BadMessage as error:
                self._found.holes.append(Hole(entry.position, entry.end, error.reason, rows=entry.rows))
            else:
                self._take(IpcMessage(entry.position, entry.length, entry.rows, entry.first_offset, entry.crc))
            position = entry.end
        self._walk(position, self._end)
        return self._found

    def _walk(self, position: int, end: int) -> None:
        """Go from message to message up to ``end``, which is the file's end or where the index knows a batch."""
        while position < end and not self._at_mark(position, end):
            try:
                batch = self._check(position, end)
            except BadMessage as error:
                behind = self._search(position + ALIGNMENT, end)
                torn = error.torn and behind == self._end
                self._found.holes.append(Hole(position, behind, error.reason, torn, error.rows))
                position = behind
            else:
                self._take(batch)
                position = batch.end
        if position < end:
            self._found.ended = True

    def _take(self, batch: IpcMessage) -> None:
        self._found.batches.append(batch)
        self._next_offset = batch.end_offset

    def _check(self, position: int, end: int, next_offset: int | None = None) -> IpcMessage:
        batch = check_batch(self._data, position, end)
        if batch.first_offset < (self._next_offset if next_offset is None else next_offset):
            raise BadMessage("its rows have offsets that others before it have")
        return batch

    def _at_mark(self, position: int, end: int) -> bool:
        return end == self._end and self._data[position:end] == END_OF_STREAM

    def _search(self, position: int, end: int) -> int:
        """Where, from ``position`` on, batches begin that go on to ``end``; ``end`` where there are none."""
        while True:
            position = self._octets.find(MARKER, position, end)
            if position < 0:
                return end
            stop = self._run(position, end) if position % ALIGNMENT == 0 else position
            if stop == end:
                return position
            # No batch of a run that breaks off can begin one that does not.
            position = max(stop, position + 1)

    def _run(self, position: int, end: int) -> int:
        """Where the batches that begin at ``position`` break off."""
        next_offset = self._next_offset
        while position < end:
            if self._at_mark(position, end):
                return end
            try:
                batch = self._check(position, end, next_offset)
            except BadMessage:
                return position
            position = batch.end
            next_offset = batch.end_offset
        return position
