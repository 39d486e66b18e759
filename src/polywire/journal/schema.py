"""The columns of the journal, as every segment and every reader has them."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from polywire.journal.kinds import KINDS
from polywire.registry import names

VERSION: Final = "1"
VERSION_KEY: Final = b"polywire.journal"

Array: TypeAlias = "pa.Array[Any]"
"""A column of a batch. It is written as text because Arrow's classes take no parameters at run time."""

_code = pa.dictionary(pa.int8(), pa.utf8())

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("node", _code, nullable=False),
        pa.field("kind", _code, nullable=False),
        pa.field("protocol", _code),
        pa.field("connection", pa.int64(), nullable=False),
        pa.field("client", pa.utf8()),
        pa.field("channel", pa.utf8()),
        pa.field("correlation", pa.utf8()),
        pa.field("content_type", pa.utf8()),
        pa.field("headers", pa.utf8()),
        pa.field("attachments", pa.list_(pa.binary())),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("size", pa.int32(), nullable=False),
        pa.field("flags", pa.int32(), nullable=False),
    ],
    metadata={VERSION_KEY: VERSION},
)
"""As it is stored: what few values repeat is one byte a row."""

CODED: Final = ("node", "kind", "protocol")
"""The columns that are stored as codes."""

PLAIN_SCHEMA: Final = pa.schema(
    [pa.field(f.name, pa.utf8(), nullable=f.nullable) if f.name in CODED else f for f in SCHEMA]
).with_metadata(SCHEMA.metadata)
"""As it is read: the same columns, with codes replaced by text."""

KIND_VALUES: Final = pa.array(KINDS, pa.utf8())


def protocol_values(protocols: Sequence[str] | None = None) -> Array:
    """The dictionary of the column ``protocol`` in segments of a hub with these protocols, by default all there are."""
    return pa.array(names() if protocols is None else protocols, pa.utf8())


def node_values(node: str) -> Array:
    """The dictionary of the column ``node`` in a segment that this node writes."""
    return pa.array([node], pa.utf8())


def values(column: "Array | pa.ChunkedArray[Any]") -> list[Any]:
    """The values of a column. To the stubs each may be None, which few columns allow."""
    return column.to_pylist()
