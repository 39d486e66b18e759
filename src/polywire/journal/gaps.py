"""Rows that are lost: which they are, and what a reader does there: stop, skip them, or show a row in their place.

A hub numbers its rows without gaps, so every offset that no batch has is a row that was lost.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from polywire.journal.errors import CorruptBatch
from polywire.journal.index import Entry
from polywire.journal.kinds import GAP, KINDS
from polywire.journal.query import Query
from polywire.journal.schema import PLAIN_SCHEMA
from polywire.journal.survey import Hole


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
        """Where it begins."""

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


def settle(damage: CorruptBatch, query: Query, *, ts: int = 0) -> Iterator[Any]:
    """Raise the damage, or give what stands in its place; nothing where none of its rows were wanted."""
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


def gap_row(damage: CorruptBatch, query: Query, ts: int) -> Any:
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
