"""Batches of rows for tests, and segments in their other form."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import polywire.journal
from polywire.journal.format import KIND_VALUES, SCHEMA, node_values, protocol_values
from polywire.journal.kinds import KINDS
from polywire.journal.state import fold_keys, keys_of
from polywire.registry import names

NODE = "here"
START = 1_700_000_000_000_000
"""The time of offset 0, in microseconds; each further row is a second later."""
SECOND = 1_000_000


def fold(table: Any) -> Any:
    """Of a table with all columns, in order of offsets, the rows that still mean something."""
    return table.filter(pc.is_in(table["offset"], value_set=fold_keys(keys_of(table))["offset"].combine_chunks()))


def rows(first: int, count: int, *, node: str = NODE, body: bytes = b"", **columns: list[Any]) -> Any:
    """Rows with these offsets; ``columns`` replaces what is in some of them, texts in place of codes."""
    kinds = columns.pop("kind", ["publish"] * count)
    protocols = columns.pop("protocol", ["fmqp"] * count)
    offsets = range(first, first + count)
    bodies = columns.pop("body", [body or b"body %d" % offset for offset in offsets])
    defaults: dict[str, list[Any]] = {
        "offset": list(offsets),
        "ts": [START + offset * SECOND for offset in offsets],
        "connection": [7] * count,
        "channel": [f"a/{offset % 3}/b" for offset in offsets],
        "body": bodies,
        "size": [len(octets) for octets in bodies],
        "flags": [0] * count,
    }
    made = []
    for field in SCHEMA:
        if field.name == "node":
            made.append(_coded([0] * count, node_values(node)))
        elif field.name == "kind":
            made.append(_coded([KINDS.index(kind) for kind in kinds], KIND_VALUES))
        elif field.name == "protocol":
            made.append(
                _coded([None if name is None else names().index(name) for name in protocols], protocol_values())
            )
        else:
            made.append(pa.array(columns.get(field.name, defaults.get(field.name, [None] * count)), field.type))
    return pa.RecordBatch.from_arrays(made, schema=SCHEMA)


def compact(folder: Path, first_offset: int, row_group_size: int = 2, on_corrupt: str = "raise") -> None:
    """Put the closed segment as Parquet in its place."""
    journal = polywire.journal.open(folder)
    (segment,) = [found for found in journal.segments() if found.first_offset == first_offset]
    batches = journal.scan(from_offset=first_offset, to_offset=segment.end_offset, on_corrupt=on_corrupt)
    path = folder / segment.name
    table = pa.Table.from_batches(batches)
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=row_group_size, write_page_checksum=True)
    path.unlink()
    path.with_suffix(".index").unlink()


def _coded(codes: list[int | None] | list[int], values: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), values)
