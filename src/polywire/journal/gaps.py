"""What a reader does where a batch can't be read: stop, step over it, or show a row that stands for what is lost."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from polywire.journal.errors import CorruptBatch
from polywire.journal.kinds import GAP, KINDS
from polywire.journal.query import Query
from polywire.journal.schema import PLAIN_SCHEMA


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
