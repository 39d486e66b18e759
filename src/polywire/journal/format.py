"""The columns of the journal, and the bytes of a segment and of its index.

A segment is an Arrow IPC stream: a head (the schema and the dictionaries, all that is needed to decode any batch), then
one message per batch. Head and batches each carry a CRC, by the same rule. Arrow's own readers stop at the first thing
that is wrong and don't notice a flipped bit in a body. Here nothing is trusted before its CRC is right, and nothing is
read beyond the bytes there are.

The index beside a segment has one entry of fixed size for each batch, so that readers need not walk the segment. An
entry is appended only when its batch is on disk. A reader of a segment that is still being written therefore trusts
the index, and never sees what a crash could take back. An index can always be rebuilt from its segment.
"""

import functools
import itertools
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
from pyarrow import ipc

from polywire.journal.kinds import EARLIER_KINDS, KINDS
from polywire.registry import built_in_names, names

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

_POSTED: "Final[list[pa.Field[Any]]]" = [
    pa.field("channel", pa.utf8(), nullable=False),
    pa.field("body", pa.binary(), nullable=False),
    pa.field("headers", pa.utf8()),
    pa.field("content_type", pa.utf8()),
    pa.field("retain", pa.bool_(), nullable=False),
    pa.field("queue", pa.bool_(), nullable=False),
]

POSTED_SCHEMA: Final = pa.schema(_POSTED)
"""Rows as ``POST /publish`` takes them: ``headers`` is a JSON object."""

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


MARKER: Final = b"\xff\xff\xff\xff"
END_OF_STREAM: Final = MARKER + bytes(4)
ALIGNMENT: Final = 8

SCHEMA_TYPE: Final = 1
DICTIONARY_TYPE: Final = 2
BATCH_TYPE: Final = 3

OFFSET_KEY: Final = b"polywire.offset"
CRC_KEY: Final = b"polywire.crc"
CRC_MARK: Final = b"crc32:"
CRC_DIGITS: Final = 8
BLANK_DIGITS: Final = b"0" * CRC_DIGITS
BLANK_CRC: Final = CRC_MARK + BLANK_DIGITS

_FEWEST_OCTETS: Final = 16
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")


class BadMessage(Exception):  # noqa: N818 - never leaves this package
    """There is no whole, right message here; ``torn`` where it would reach beyond the bytes there are.

    ``rows`` is how many rows its header speaks of, as far as that can be believed.
    """

    def __init__(self, reason: str, *, torn: bool = False, rows: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.torn = torn
        self.rows = rows


@dataclass(frozen=True, slots=True)
class IpcMessage:
    """One encapsulated message: its position, and what its header says about its rows."""

    position: int
    length: int
    rows: int = 0
    first_offset: int = 0
    crc: int = 0
    type: int = BATCH_TYPE
    header_length: int = 0

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.position + self.length

    @property
    def end_offset(self) -> int:
        """The offset behind its last row."""
        return self.first_offset + self.rows


def parse_message(data: memoryview, position: int, end: int) -> IpcMessage:
    """What the message at ``position`` says of itself; its CRC is not checked."""
    left = end - position
    if left < _FEWEST_OCTETS:
        raise BadMessage(f"only {left} bytes are left", torn=True)
    if bytes(data[position : position + 4]) != MARKER:
        raise BadMessage("no message begins here")
    (metadata_length,) = _I32.unpack_from(data, position + 4)
    if metadata_length < ALIGNMENT or metadata_length % ALIGNMENT:
        raise BadMessage(f"its header can't have {metadata_length} bytes")
    if 8 + metadata_length > left:
        raise BadMessage(f"its header of {metadata_length} bytes is cut off", torn=True)
    header = bytes(data[position + 8 : position + 8 + metadata_length])
    try:
        message_type, body_length, rows, first_offset, crc = _read_header(header)
    except (struct.error, IndexError, ValueError) as error:
        raise BadMessage("its header is not one of Arrow") from error
    if body_length < 0 or body_length % ALIGNMENT or rows < 0 or first_offset < 0:
        raise BadMessage("its header has an impossible size")
    length = 8 + metadata_length + body_length
    if length > left:
        raise BadMessage(f"it has {length} bytes, of which {left} are there", torn=True, rows=rows)
    return IpcMessage(position, length, rows, first_offset, crc, message_type, 8 + metadata_length)


def check_batch(data: memoryview, position: int, end: int) -> IpcMessage:
    """The batch at ``position``, if it is whole and its CRC is right."""
    message = parse_message(data, position, end)
    if message.type != BATCH_TYPE:
        raise BadMessage(f"it is not a batch of rows but of type {message.type}")
    if crc_of(data[position : message.end], message.header_length) != message.crc:
        raise BadMessage("its CRC does not match", rows=message.rows)
    return message


def header_length(message: memoryview) -> int:
    """How many bytes come before a message's body, by its own word."""
    return 8 + int(_I32.unpack_from(message, 4)[0])


def check_known(message: memoryview, crc: int) -> None:
    """That these bytes are the batch that was written with this CRC: much less work than ``check_batch``."""
    if len(message) < _FEWEST_OCTETS:
        raise BadMessage(f"only {len(message)} bytes are left", torn=True)
    head = header_length(message)
    if not _FEWEST_OCTETS <= head <= len(message):
        raise BadMessage(f"its header can't have {head - 8} bytes")
    digits = digits_at(message, head)
    if message[digits : digits + CRC_DIGITS] != b"%08x" % crc or crc_of(message, head) != crc:
        raise BadMessage("its CRC does not match")


def crc_of(message: memoryview, header_length: int) -> int:
    """The CRC of all bytes, its own digits read as zeros. They are in the first ``header_length`` bytes."""
    digits = digits_at(message, header_length)
    crc = zlib.crc32(message[:digits])
    crc = zlib.crc32(BLANK_DIGITS, crc)
    return zlib.crc32(message[digits + CRC_DIGITS :], crc)


def put_crc(message: memoryview, header_length: int) -> int:
    """Write the CRC over its blank digits, and return it."""
    digits = digits_at(message, header_length)
    crc = crc_of(message, header_length)
    message[digits : digits + CRC_DIGITS] = b"%08x" % crc
    return crc


def digits_at(message: memoryview, header_length: int) -> int:
    """Where the digits of the CRC begin."""
    found = bytes(message[:header_length]).find(CRC_MARK)
    if found < 0 or found + len(CRC_MARK) + CRC_DIGITS > header_length:
        raise BadMessage("it has no CRC")
    return found + len(CRC_MARK)


def parse_digits(digits: bytes) -> int:
    """The CRC that these digits write; only the way we write them, so that no two texts mean the same."""
    crc = int(digits, 16)
    if b"%08x" % crc != digits:
        raise ValueError("not eight hexadecimal digits")
    return crc


def _read_header(header: bytes) -> tuple[int, int, int, int, int]:
    """Type, length of the body, rows, first offset and CRC out of the flatbuffer of a message."""
    (table,) = _U32.unpack_from(header, 0)
    message_type = header[_field(header, table, 1)]
    body_length = _number(header, table, 3)
    if message_type != BATCH_TYPE:
        return message_type, body_length, 0, 0, 0
    batch = _follow(header, _field(header, table, 2))
    rows = _number(header, batch, 0)
    custom = dict(_pairs(header, _follow(header, _field(header, table, 4))))
    if set(custom) != {OFFSET_KEY, CRC_KEY}:
        raise ValueError("other metadata than a batch of the journal has")
    crc = custom[CRC_KEY]
    offset = custom[OFFSET_KEY]
    if not crc.startswith(CRC_MARK) or not offset.isdigit():
        raise ValueError("metadata of another form")
    return message_type, body_length, rows, int(offset), parse_digits(crc.removeprefix(CRC_MARK))


def _vtable(header: bytes, table: int, index: int) -> int:
    """Where field ``index`` is, seen from its table; 0 where it has its default."""
    (back,) = _I32.unpack_from(header, table)
    vtable = table - back
    if vtable < 0:
        raise ValueError("a table outside the header")
    (size,) = _U16.unpack_from(header, vtable)
    entry = 4 + 2 * index
    return int(_U16.unpack_from(header, vtable + entry)[0]) if entry + 2 <= size else 0


def _field(header: bytes, table: int, index: int) -> int:
    """Where field ``index`` of the table is, which has to be there."""
    found = _vtable(header, table, index)
    if not found:
        raise ValueError(f"field {index} is missing")
    return table + found


def _number(header: bytes, table: int, index: int) -> int:
    """The 64-bit number in field ``index``; where it is left out, it is 0."""
    found = _vtable(header, table, index)
    return int(_I64.unpack_from(header, table + found)[0]) if found else 0


def _follow(header: bytes, position: int) -> int:
    return position + int(_U32.unpack_from(header, position)[0])


def _pairs(header: bytes, vector: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of custom metadata."""
    (count,) = _U32.unpack_from(header, vector)
    if count > len(header):
        raise ValueError("more pairs than bytes")
    found = []
    for index in range(count):
        pair = _follow(header, vector + 4 + 4 * index)
        found.append((_text(header, pair, 0), _text(header, pair, 1)))
    return found


def _text(header: bytes, table: int, index: int) -> bytes:
    start = _follow(header, _field(header, table, index))
    (size,) = _U32.unpack_from(header, start)
    if start + 4 + size > len(header):
        raise ValueError("a text outside the header")
    return header[start + 4 : start + 4 + size]


HEAD_KEY: Final = b"polywire.head"
MAX_HEAD: Final = 1 << 16
"""More than any head has; read at once to find where it ends."""

WRITE_OPTIONS: Final = ipc.IpcWriteOptions(compression="lz4", use_threads=False)

SEGMENT_SCHEMA: Final = SCHEMA.with_metadata({**SCHEMA.metadata, HEAD_KEY: BLANK_CRC})
"""The columns, with room for the CRC."""


@dataclass(frozen=True, slots=True)
class Head:
    """The bytes of a segment before its first batch, and the schema and node in them.

    ``damage`` is what is wrong with the bytes in the file where they are not these.
    """

    octets: bytes
    schema: pa.Schema
    node: str
    damage: str = field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.octets)


def blank_head(node: str, protocols: Sequence[str] | None = None, kinds: int = len(KIND_VALUES)) -> bytes:
    """What Arrow writes before the first batch of a segment of this node, the digits of its CRC zeros.

    ``protocols`` are those the hub has, ``kinds`` is how many of the kinds were known when it was written.
    """
    octets = _empty_stream(node, protocols, kinds)
    return octets[: _end_of_head(memoryview(octets))]


def make_head(node: str, protocols: Sequence[str] | None = None, kinds: int = len(KIND_VALUES)) -> Head:
    """The head of a new segment, or of one that was started when there were fewer ``kinds``."""
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
        raise BadMessage("the CRC of the segment's head does not match")
    octets = bytes(data[:end])
    schema = ipc.open_stream(octets).schema
    version = (schema.metadata or {}).get(VERSION_KEY, b"").decode(errors="replace")
    if version != VERSION or not schema.equals(SCHEMA):
        raise BadMessage(f"its columns have version {version or '?'}, this reader supports version {VERSION}")
    return Head(octets, schema, _node(octets))


def _end_of_head(data: memoryview) -> int:
    schema = parse_message(data, 0, len(data))
    if schema.type != SCHEMA_TYPE:
        raise BadMessage("the segment does not begin with a schema")
    end = schema.end
    for _ in range(sum(pa.types.is_dictionary(column.type) for column in SCHEMA)):
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
    for column in SCHEMA:
        if column.name in values:
            columns.append(pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), values[column.name]))
        else:
            columns.append(pa.array([], column.type))
    sink = pa.BufferOutputStream()
    writer = ipc.new_stream(sink, SEGMENT_SCHEMA, options=WRITE_OPTIONS)
    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


@functools.lru_cache(maxsize=16)  # all segments of a node begin with the same bytes, and a start reads each of them
def _node(head: bytes) -> str:
    """The one value of the dictionary of nodes. Arrow hands dictionaries out with a batch only, so it gets one."""
    column = ipc.open_stream(head + _empty_batch()).read_next_batch().column("node")
    node: str = cast("pa.DictionaryArray[Any, Any]", column).dictionary[0].as_py()
    return node


@functools.cache
def _empty_batch() -> bytes:
    stream = _empty_stream("", ())
    return stream[_end_of_head(memoryview(stream)) :]


LONGEST_NAME: Final = 64
"""In bytes; hosts have no longer names."""

FIRST_PROTOCOLS: Final = 7
"""How many names of protocols the first segments had."""

_NOT_COMPRESSED: Final = 1 << 31


def find_head(data: memoryview) -> Head:
    """The head at the beginning of ``data``, rebuilt if it is damaged; ``BadMessage`` where that is not possible.

    The only things in a head that differ between segments are the node's name, how many kinds of rows there were, and
    which protocols the hub had. So heads are made for the names that may have been there, with polywire's own protocols
    and with those installed here, and one is taken if the damaged head proves it: its CRC is the one that was written,
    or it differs in nothing but one digit of that. A head that is damaged in more than one place may stay lost.
    """
    try:
        return read_head(data)
    except BadMessage as error:
        kinds = (len(KINDS), *EARLIER_KINDS)
        for name, protocols, count in itertools.product(_names(data), _protocols(), kinds):
            made = make_head(name, protocols, count)
            if _proves(data, made):
                return replace(made, damage=error.reason)
        raise


def write_head(segment: Path, head: Head) -> None:
    """Write a head that was rebuilt over the damaged one."""
    with segment.open("r+b") as file:
        file.write(head.octets)
        file.flush()
        os.fsync(file.fileno())


def _proves(damaged: memoryview, made: Head) -> bool:
    octets = made.octets
    if len(damaged) < len(octets):
        return False
    at = digits_at(memoryview(octets), parse_message(memoryview(octets), 0, len(octets)).length)
    behind = at + CRC_DIGITS
    wrong = sum(one != other for one, other in zip(damaged[at:behind], octets[at:behind], strict=True))
    if wrong == 1:
        return damaged[:at] == octets[:at] and damaged[behind : len(octets)] == octets[behind:]
    return not wrong


def _names(data: memoryview) -> Iterator[str]:
    """Names that may have been there: unchanged, with one bit changed, with its length changed."""
    at = _name_position()
    if len(data) < at:
        return
    length = _U32.unpack_from(data, at - _U32.size)[0] & ~_NOT_COMPRESSED
    if length <= LONGEST_NAME:
        found = bytes(data[at : at + length])
        yield from _decoded(found)
        for bit in range(8 * len(found)):
            changed = bytearray(found)
            changed[bit // 8] ^= 1 << bit % 8
            yield from _decoded(changed)
    for other in range(1, LONGEST_NAME + 1):
        if other != length:
            yield from _decoded(bytes(data[at : at + other]))


def _protocols() -> set[tuple[str, ...]]:
    """The lists of protocols that hubs may have had: those here, and polywire's own, of which there were fewer once."""
    own = built_in_names()
    return {names(), *(own[:count] for count in range(FIRST_PROTOCOLS, len(own) + 1))}


def _decoded(octets: bytes | bytearray) -> Iterator[str]:
    try:
        yield octets.decode()
    except UnicodeDecodeError:
        return


@functools.cache
def _name_position() -> int:
    """The position of the name in a head: where two heads differ last."""
    one, other = (make_head(name, ()).octets for name in "ab")
    return max(at for at in range(len(one)) if one[at] != other[at])


MAGIC: Final = b"PWIX\x01\0\0\0"
ENTRY_OCTETS: Final = 64
STATE_FLAG: Final = 1
"""The batch holds rows that the hub's state is made of."""

_ENTRY: Final = struct.Struct("<QIIQQqqI8x")


class Entry(NamedTuple):
    """One batch: its rows, position and times."""

    first_offset: int
    rows: int
    flags: int
    position: int
    length: int
    min_ts: int
    max_ts: int
    crc: int

    @property
    def end(self) -> int:
        """The position behind the batch."""
        return self.position + self.length

    @property
    def end_offset(self) -> int:
        """The offset behind its last row."""
        return self.first_offset + self.rows

    @property
    def holds_state(self) -> bool:
        """Whether rows of the hub's state are in it."""
        return bool(self.flags & STATE_FLAG)


def pack_entry(entry: Entry) -> bytes:
    """The entry's bytes."""
    packed = _ENTRY.pack(*entry)
    return packed + _U32.pack(zlib.crc32(packed))


def unpack_entries(octets: bytes | memoryview) -> list[Entry]:
    """The entries in the bytes behind the magic.

    One that is cut off or damaged is left out, and so is one that is not behind the others: an index is a help, never
    the truth.
    """
    entries: list[Entry] = []
    view = memoryview(octets)
    end = end_offset = 0
    for at in range(0, len(view) - ENTRY_OCTETS + 1, ENTRY_OCTETS):
        packed = view[at : at + _ENTRY.size]
        if zlib.crc32(packed) != _U32.unpack_from(view, at + _ENTRY.size)[0]:
            continue
        entry = Entry._make(_ENTRY.unpack(packed))
        if entry.position >= end and entry.first_offset >= end_offset and entry.rows:
            entries.append(entry)
            end = entry.end
            end_offset = entry.end_offset
    return entries


def read_index(octets: bytes | memoryview) -> list[Entry] | None:
    """The entries of a whole index file; None where it is none."""
    if bytes(octets[: len(MAGIC)]) != MAGIC:
        return None
    return unpack_entries(octets[len(MAGIC) :])


def index_octets(entries: list[Entry]) -> bytes:
    """A whole index file."""
    return MAGIC + b"".join(map(pack_entry, entries))
