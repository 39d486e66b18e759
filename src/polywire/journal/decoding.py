"""Octets of a segment become rows: only the columns that are wanted are decompressed."""

from typing import Any, Final

from pyarrow import ipc

from polywire.journal.head import Head
from polywire.journal.schema import SCHEMA

TS_COLUMN: Final = SCHEMA.names.index("ts")
"""Stands for nothing but itself in the index: the times of a batch."""


def decode(head: Head, octets: bytes | memoryview, columns: list[int]) -> list[Any]:
    """The batches in these octets, whose CRCs were right, with these columns as they are stored."""
    options = ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    return list(ipc.open_stream(b"".join((head.octets, octets)), options=options))


def decode_buffer(buffer: Any, columns: list[int]) -> list[Any]:
    """The same for a buffer that begins with a head."""
    return list(ipc.open_stream(buffer, options=ipc.IpcReadOptions(included_fields=columns, use_threads=False)))
