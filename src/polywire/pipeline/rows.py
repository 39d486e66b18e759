"""Rows to publish: which columns a DataFrame needs for it, and their one form in a staged file and on the wire."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from polywire.pipeline.errors import SinkError

SCHEMA: Final[Any] = pa.schema(
    [
        pa.field("channel", pa.utf8(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("headers", pa.utf8()),
        pa.field("content_type", pa.utf8()),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("queue", pa.bool_(), nullable=False),
    ]
)
"""What the hub gets: ``headers`` is a JSON object."""

ACCEPTED: Final = {
    "channel": ("string",),
    "body": ("binary", "string"),
    "headers": ("map<string,string>", "string"),
    "content_type": ("string",),
    "retain": ("boolean",),
    "queue": ("boolean",),
}
"""The columns a DataFrame may have, and their types as Spark writes them."""

NEEDED: Final = ("channel", "body")

PART_ROWS: Final = 10_000
PART_OCTETS: Final = 4 << 20
"""A part is one request to the hub and one step of its log; a single larger message is a part of its own."""


def check_columns(types: dict[str, str]) -> None:
    """Whether a DataFrame with these columns and types can be published."""
    for name in NEEDED:
        if name not in types:
            raise SinkError(f"the DataFrame has no column {name!r}; it needs {' and '.join(NEEDED)}")
    for name, found in types.items():
        allowed = ACCEPTED.get(name)
        if allowed is None:
            raise SinkError(f"column {name!r} can't be published: select {', '.join(ACCEPTED)} only")
        if found not in allowed:
            raise SinkError(f"column {name!r} is {found}; it must be {' or '.join(allowed)}")


def normalised(batch: Any) -> Any:
    """A batch as Spark gives it, with the columns the hub gets."""
    rows = batch.num_rows
    channel = batch.column("channel").cast(pa.utf8())
    if channel.null_count or pc.any(pc.equal(channel, "")).as_py():
        raise SinkError("a row has no channel: filter such rows out, or give them one")
    columns = [
        channel,
        pc.fill_null(batch.column("body").cast(pa.binary()), b""),
        _headers(batch.column("headers")) if "headers" in batch.schema.names else pa.nulls(rows, pa.utf8()),
        _optional(batch, "content_type", pa.utf8()),
        pc.fill_null(_optional(batch, "retain", pa.bool_()), fill_value=False),
        pc.fill_null(_optional(batch, "queue", pa.bool_()), fill_value=False),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def in_parts(batch: Any) -> Iterator[Any]:
    """The batch cut into parts that are small enough for one request each."""
    lengths = pc.binary_length(batch.column("body")).to_pylist()
    start = octets = 0
    for row, length in enumerate(lengths):
        if row > start and (row - start >= PART_ROWS or octets + length > PART_OCTETS):
            yield batch.slice(start, row - start)
            start, octets = row, 0
        octets += length
    if start < batch.num_rows:
        yield batch.slice(start)


def _optional(batch: Any, name: str, kind: Any) -> Any:
    return batch.column(name).cast(kind) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)


def _headers(column: Any) -> Any:
    """A JSON object a row: of a map, or the text itself once it has been read as one."""
    if pa.types.is_map(column.type):
        found = [None if pairs is None else json.dumps(dict(pairs), ensure_ascii=False) for pairs in column.to_pylist()]
        return pa.array(found, pa.utf8())
    for text in pc.unique(column.drop_null()).to_pylist():
        try:
            good = isinstance(json.loads(text), dict)
        except ValueError:
            good = False
        if not good:
            raise SinkError(f"headers are not a JSON object: {text[:80]!r}")
    return column.cast(pa.utf8())
