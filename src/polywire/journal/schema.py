"""The columns of the journal, as every segment and every reader has them."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from polywire.journal.kinds import KINDS
from polywire.registry import names

VERSION: Final = "1"
VERSION_KEY: Final = b"polywire.journal"

_code = pa.dictionary(pa.int8(), pa.utf8())

SCHEMA: Final[Any] = pa.schema(
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

PLAIN_SCHEMA: Final[Any] = pa.schema(
    [pa.field(f.name, pa.utf8(), nullable=f.nullable) if f.name in CODED else f for f in SCHEMA],
    metadata=SCHEMA.metadata,
)
"""As it is read: the same columns, with codes replaced by text."""

KIND_VALUES: Final[Any] = pa.array(KINDS, pa.utf8())


def protocol_values(protocols: Sequence[str] | None = None) -> Any:
    """The dictionary of the column ``protocol`` in segments of a hub with these protocols, by default all there are."""
    return pa.array(names() if protocols is None else protocols, pa.utf8())


def node_values(node: str) -> Any:
    """The dictionary of the column ``node`` in a segment that this node writes."""
    return pa.array([node], pa.utf8())
