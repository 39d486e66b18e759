"""What can be read of a segment, batch by batch, and which rows are lost.

Recovery surveys the newest segment at start, and readers do where the index has nothing to say. Where the index knows
where batches begin, it is trusted; otherwise each message says where the next one begins. After damage without an index
the next batch has to be searched for. A message's body can hold anything a client sent, a forged batch included, so a
find counts only if from there on one valid batch follows the other to the very end.

A hub numbers its rows without gaps, so every offset that no batch has is a row that was lost. A reader raises there,
skips the rows, or shows a row of kind ``gap`` in their place.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from polywire.journal.errors import CorruptBatch
from polywire.journal.format import (
    ALIGNMENT,
    END_OF_STREAM,
    MARKER,
    PLAIN_SCHEMA,
    BadMessage,
    Entry,
    IpcMessage,
    check_batch,
    check_known,
)
from polywire.journal.kinds import GAP, KINDS
from polywire.journal.query import Query


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of a segment without a valid batch; ``torn`` if they look like one that was cut off.

    ``rows`` is how many rows there were, if an index or a header says that.
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
    """Look at a segment's bytes from ``start`` on; ``entries`` are what an index says of them."""
    with memoryview(octets) as data:
        return _Surveyor(octets, data, first_offset).look(start, entries)


class _Surveyor:
    """One walk through the bytes, which knows the offset the next batch may have at least."""

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
            raise BadMessage("its rows repeat offsets of earlier rows")
        return batch

    def _at_mark(self, position: int, end: int) -> bool:
        return end == self._end and self._data[position:end] == END_OF_STREAM

    def _search(self, position: int, end: int) -> int:
        """Where, from ``position`` on, batches begin that continue to ``end``; ``end`` if there are none."""
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


class Rows(Protocol):
    """Consecutive rows: a batch, an entry of an index, or a row group."""

    @property
    def first_offset(self) -> int:
        """The offset of the first row."""

    @property
    def end_offset(self) -> int:
        """The offset after the last row."""


class Placed(Rows, Protocol):
    """The same with its place in the file."""

    @property
    def position(self) -> int:
        """The position of its first byte."""

    @property
    def end(self) -> int:
        """The position after it."""


def missing(first_offset: int, found: Iterable[Rows], end_offset: int) -> Iterator[tuple[int, int]]:
    """The ranges of offsets, first and end, that nothing of what was found has."""
    expected = first_offset
    for rows in found:
        if rows.first_offset > expected:
            yield expected, rows.first_offset
        expected = max(expected, rows.end_offset)
    if end_offset > expected:
        yield expected, end_offset


def lost_batches(
    name: str,
    first_offset: int,
    found: Sequence[Placed],
    end_offset: int,
    *,
    size: int,
    holes: Sequence[Hole] = (),
    known: Sequence[Entry] = (),
) -> Iterator[CorruptBatch]:
    """What is lost of an Arrow segment that should have the rows from ``first_offset`` up to ``end_offset``.

    ``found`` are the batches that are there, ``holes`` what can't be read, and ``known`` what its index lists.
    """
    for first, end in missing(first_offset, found, end_offset):
        start = max((batch.end for batch in found if batch.end_offset <= first), default=0)
        stop = min((batch.position for batch in found if batch.first_offset >= end), default=max(size, 1))
        hole = next((hole for hole in holes if start <= hole.position < stop), None)
        cut = next((entry for entry in known if entry.first_offset >= first and entry.end > size), None)
        if not size:
            position, reason = 0, "the file is empty"
        elif hole is not None:
            position, reason = hole.position, hole.reason
        elif cut is not None:
            position, reason = cut.position, f"the file ends at {size}, before the batch does"
        else:
            position, reason = start, "no file has these rows"
        yield CorruptBatch(name, position, reason, first_offset=first, rows=end - first)


def settle(damage: CorruptBatch, query: Query, *, ts: int = 0) -> Iterator[pa.RecordBatch]:
    """Raise the damage, or return its replacement; nothing if none of its rows were requested."""
    if not concerns(damage, query):
        return
    if query.on_corrupt == "raise":
        raise damage
    if query.on_corrupt == "gap":
        yield gap_row(damage, query, ts)


def concerns(damage: CorruptBatch, query: Query) -> bool:
    """Whether rows that are wanted can be among those that are lost."""
    if damage.rows == 0:
        return False
    first = damage.first_offset or 0
    return first < query.to_offset and (damage.rows is None or first + damage.rows > query.from_offset)


def gap_row(damage: CorruptBatch, query: Query, ts: int) -> pa.RecordBatch:
    """One row of kind ``gap``: the first offset that is lost, and in its headers how much and where."""
    headers = {
        "rows": damage.rows,
        "segment": damage.segment,
        "position": damage.position,
        "reason": damage.reason,
    }
    values = {
        "offset": max(damage.first_offset or 0, query.from_offset),
        "ts": ts,
        "node": "",
        "kind": KINDS[GAP],
        "connection": 0,
        "headers": msgspec.json.encode(headers).decode(),
        "body": b"",
        "size": 0,
        "flags": 0,
    }
    columns = [pa.array([values.get(name)], PLAIN_SCHEMA.field(name).type) for name in query.columns]
    return pa.RecordBatch.from_arrays(columns, schema=query.schema)
