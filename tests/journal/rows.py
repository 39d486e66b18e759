"""Batches of rows for tests."""

from typing import Any

import pyarrow as pa

from polywire.journal.kinds import KINDS, PROTOCOLS
from polywire.journal.schema import KIND_VALUES, PROTOCOL_VALUES, SCHEMA, node_values

NODE = "here"
START = 1_700_000_000_000_000
"""The time of offset 0, in microseconds; each further row is a second later."""
SECOND = 1_000_000


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
                _coded([None if name is None else PROTOCOLS.index(name) for name in protocols], PROTOCOL_VALUES)
            )
        else:
            made.append(pa.array(columns.get(field.name, defaults.get(field.name, [None] * count)), field.type))
    return pa.RecordBatch.from_arrays(made, schema=SCHEMA)


def _coded(codes: list[int | None] | list[int], values: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), values)
