"""The head of a segment: the schema and the dictionaries, all that is needed to decode any of its batches.

It is written once, and carries its own CRC in the schema's metadata, by the same rule as a batch does.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from polywire.journal.framing import (
    BLANK_CRC,
    CRC_DIGITS,
    DICTIONARY_TYPE,
    SCHEMA_TYPE,
    BadMessage,
    crc_of,
    digits_at,
    parse_digits,
    parse_message,
    put_crc,
)
from polywire.journal.schema import KIND_VALUES, SCHEMA, VERSION, VERSION_KEY, node_values, protocol_values

HEAD_KEY: Final = b"polywire.head"
MAX_HEAD: Final = 1 << 16
"""More than any head has; read at once to find where it ends."""

WRITE_OPTIONS: Final[Any] = ipc.IpcWriteOptions(compression="lz4", use_threads=False)

SEGMENT_SCHEMA: Final[Any] = SCHEMA.with_metadata({**SCHEMA.metadata, HEAD_KEY: BLANK_CRC})
"""The columns, with room for the CRC."""


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """The octets of a segment before its first batch, and the schema and node in them.

    ``damage`` is what is wrong with the octets in the file where they are not these.
    """

    octets: bytes
    schema: Any
    node: str
    damage: str = dataclasses.field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.octets)


def blank_head(node: str, protocols: Sequence[str] | None = None, kinds: int = len(KIND_VALUES)) -> bytes:
    """What Arrow writes before the first batch of a segment of this node, the digits of its CRC zeros.

    ``protocols`` are those the hub has, ``kinds`` is how many of the kinds were known when it was written.
    """
    octets = _empty_stream(node, protocols, kinds)
    return octets[: _end_of_head(memoryview(octets))]


def make_head(node: str, protocols: Sequence[str] | None = None, kinds: int = len(KIND_VALUES)) -> Head:
    """The head of a new segment, or of one that was begun when there were fewer ``kinds``."""
    octets = bytearray(blank_head(node, protocols, kinds))
    view = memoryview(octets)
    put_crc(view, parse_message(view, 0, len(view)).length)
    return read_head(view)


def read_head(data: memoryview) -> Head:
    """The head at the beginning of ``data``; ``BadMessage`` where there is none, or its CRC is wrong."""
    end = _end_of_head(data)
    schema_length = parse_message(data, 0, end).length
    digits = digits_at(data, schema_length)
    try:
        written = parse_digits(bytes(data[digits : digits + CRC_DIGITS]))
    except ValueError:
        raise BadMessage("the head of the segment has no CRC") from None
    if crc_of(data[:end], schema_length) != written:
        raise BadMessage("the CRC of the segment's head is not that of its octets")
    octets = bytes(data[:end])
    schema = ipc.open_stream(octets).schema
    version = (schema.metadata or {}).get(VERSION_KEY, b"").decode(errors="replace")
    if version != VERSION or not schema.equals(SCHEMA):
        raise BadMessage(f"its columns are of version {version or '?'}, this reader knows version {VERSION}")
    return Head(octets, schema, _node(octets))


def _end_of_head(data: memoryview) -> int:
    schema = parse_message(data, 0, len(data))
    if schema.type != SCHEMA_TYPE:
        raise BadMessage("the segment does not begin with a schema")
    end = schema.end
    for _ in range(sum(pa.types.is_dictionary(field.type) for field in SCHEMA)):
        message = parse_message(data, end, len(data))
        if message.type != DICTIONARY_TYPE:
            raise BadMessage("the segment's dictionaries are not behind its schema")
        end = message.end
    return end


def _empty_stream(node: str, protocols: Sequence[str] | None, kinds: int = len(KIND_VALUES)) -> bytes:
    """A head, and a batch without rows behind it."""
    values = {
        "node": node_values(node),
        "kind": KIND_VALUES.slice(0, kinds),
        "protocol": protocol_values(protocols),
    }
    columns = []
    for field in SCHEMA:
        if field.name in values:
            columns.append(pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), values[field.name]))
        else:
            columns.append(pa.array([], field.type))
    sink = pa.BufferOutputStream()
    writer = ipc.new_stream(sink, SEGMENT_SCHEMA, options=WRITE_OPTIONS)
    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


@functools.lru_cache(maxsize=16)  # all segments of a node begin with the same bytes, and a start reads each of them
def _node(head: bytes) -> str:
    """The one value of the dictionary of nodes. Arrow hands dictionaries out with a batch only, so it gets one."""
    node: str = ipc.open_stream(head + _empty_batch()).read_next_batch().column("node").dictionary[0].as_py()
    return node


@functools.cache
def _empty_batch() -> bytes:
    stream = _empty_stream("", ())
    return stream[_end_of_head(memoryview(stream)) :]
