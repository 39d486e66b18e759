"""Batches that stand one behind the other in a segment, read at once: checked, decoded and joined.

A group commit under little load has few rows, and a disk or a network likes large reads; so small batches are read
together and come out as one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from polywire.journal.errors import CorruptBatch
from polywire.journal.framing import BadMessage, check_known
from polywire.journal.gaps import settle
from polywire.journal.head import MAX_HEAD, Head
from polywire.journal.index import Entry
from polywire.journal.lost_head import find_head
from polywire.journal.query import Query
from polywire.journal.schema import SCHEMA

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


def load_head(file: Any, name: str) -> Head:
    """The head of a segment that is open; ``CorruptBatch`` where it can be neither read nor made again."""
    try:
        return find_head(memoryview(file.read_at(min(MAX_HEAD, file.size()), 0)))
    except BadMessage as error:
        raise CorruptBatch(name, 0, f"no batch can be decoded: {error.reason}") from error


def decode(head: Head, octets: bytes | memoryview, columns: list[str]) -> Any:
    """The rows of the batches in these octets, whose CRCs are right, with these columns as they are stored."""
    return _decode(pa.py_buffer(b"".join((head.octets, octets))), columns)


class RunReader:
    """Reads runs of one open segment."""

    def __init__(self, file: Any, name: str, head: Head, query: Query) -> None:
        self._file: Final = file
        self._name: Final = name
        self._head: Final = head
        self._query: Final = query
        self._needed: Final = query.needed

    def read(self, items: Iterable[Entry | CorruptBatch]) -> Iterator[Any]:
        """What is wanted of these batches, in order; what can't be read as the query says."""
        for run in runs_of(items):
            yield from settle(run, self._query) if isinstance(run, CorruptBatch) else self._read_run(run)

    def _read_run(self, run: list[Entry]) -> Iterator[Any]:
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

    def _part(self, buffer: Any, view: memoryview, first: Entry, part: Sequence[Entry]) -> Any:
        """The rows of this part of a run, decoded."""
        before = len(self._head)
        end = before + part[-1].end - first.position
        if part[0] is first:
            return _decode(buffer.slice(0, end), self._needed)
        return decode(self._head, view[before + part[0].position - first.position : end], self._needed)

    def _rows(self, entries: Sequence[Entry], table: Any) -> Iterator[Any]:
        """Cut off what is before and behind the offsets that are wanted: of the first batch, and of the last."""
        skip = max(0, self._query.from_offset - entries[0].first_offset)
        drop = max(0, entries[-1].end_offset - self._query.to_offset)
        for batch in table.slice(skip, table.num_rows - skip - drop).combine_chunks().to_batches():
            yield self._query.choose(batch)


def _decode(stream: Any, columns: list[str]) -> Any:
    if not columns:  # to Arrow no columns means all, and rows can't be counted without one
        columns = SCHEMA.names[:1]
    fields = [SCHEMA.names.index(name) for name in columns]
    return ipc.open_stream(stream, options=ipc.IpcReadOptions(included_fields=fields, use_threads=False)).read_all()


def _corrupt(name: str, entry: Entry, reason: str) -> CorruptBatch:
    return CorruptBatch(name, entry.position, reason, first_offset=entry.first_offset, rows=entry.rows)
