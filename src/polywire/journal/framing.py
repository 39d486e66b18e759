"""Messages of an Arrow IPC stream, as octets: cut out, checked by their CRC, and found again after damage.

Arrow's own readers stop at the first thing that is wrong and don't notice a flipped bit in a body. Here nothing is
believed before its CRC is right, and nothing is read beyond the octets there are.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Final

MARKER: Final = b"\xff\xff\xff\xff"
END_OF_STREAM: Final = MARKER + bytes(4)
ALIGNMENT: Final = 8

SCHEMA_TYPE: Final = 1
DICTIONARY_TYPE: Final = 2
BATCH_TYPE: Final = 3

OFFSET_KEY: Final = "polywire.offset"
CRC_KEY: Final = "polywire.crc"
CRC_MARK: Final = b"crc32:"
CRC_DIGITS: Final = 8
BLANK_DIGITS: Final = b"0" * CRC_DIGITS
BLANK_CRC: Final = (CRC_MARK + BLANK_DIGITS).decode()

_FEWEST_OCTETS: Final = 16
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")


class BadMessage(Exception):  # noqa: N818 - never leaves this package
    """There is no whole, right message here; ``torn`` where it would reach beyond the octets there are.

    ``rows`` is how many rows its header speaks of, as far as that can be believed.
    """

    def __init__(self, reason: str, *, torn: bool = False, rows: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.torn = torn
        self.rows = rows


@dataclass(frozen=True, slots=True)
class IpcMessage:
    """One encapsulated message: where it stands, and what its header says of its rows."""

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
        raise BadMessage(f"only {left} octets are left", torn=True)
    if bytes(data[position : position + 4]) != MARKER:
        raise BadMessage("no message begins here")
    (metadata_length,) = _I32.unpack_from(data, position + 4)
    if metadata_length < ALIGNMENT or metadata_length % ALIGNMENT:
        raise BadMessage(f"its header can't have {metadata_length} octets")
    if 8 + metadata_length > left:
        raise BadMessage(f"its header of {metadata_length} octets is cut off", torn=True)
    header = bytes(data[position + 8 : position + 8 + metadata_length])
    try:
        message_type, body_length, rows, first_offset, crc = _read_header(header)
    except (struct.error, IndexError, ValueError) as error:
        raise BadMessage("its header is not one of Arrow") from error
    if body_length < 0 or body_length % ALIGNMENT or rows < 0 or first_offset < 0:
        raise BadMessage("its header names a size that can't be")
    length = 8 + metadata_length + body_length
    if length > left:
        raise BadMessage(f"it has {length} octets, of which {left} are there", torn=True, rows=rows)
    return IpcMessage(position, length, rows, first_offset, crc, message_type, 8 + metadata_length)


def check_batch(data: memoryview, position: int, end: int) -> IpcMessage:
    """The batch at ``position``, if it is whole and its CRC is right."""
    message = parse_message(data, position, end)
    if message.type != BATCH_TYPE:
        raise BadMessage(f"it is not a batch of rows but of type {message.type}")
    if crc_of(data[position : message.end], message.header_length) != message.crc:
        raise BadMessage("its CRC is not that of its octets", rows=message.rows)
    return message


def header_length(message: memoryview) -> int:
    """How many octets come before a message's body, by its own word."""
    return 8 + int(_I32.unpack_from(message, 4)[0])


def check_known(message: memoryview, crc: int) -> None:
    """That these octets are the batch that was written with this CRC: much less work than ``check_batch``."""
    if len(message) < _FEWEST_OCTETS:
        raise BadMessage(f"only {len(message)} octets are left", torn=True)
    head = header_length(message)
    if not _FEWEST_OCTETS <= head <= len(message):
        raise BadMessage(f"its header can't have {head - 8} octets")
    digits = digits_at(message, head)
    if message[digits : digits + CRC_DIGITS] != b"%08x" % crc or crc_of(message, head) != crc:
        raise BadMessage("its CRC is not that of its octets")


def crc_of(message: memoryview, header_length: int) -> int:
    """The CRC of all octets, its own digits read as zeros. They stand in the first ``header_length`` octets."""
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
    if set(custom) != {OFFSET_KEY.encode(), CRC_KEY.encode()}:
        raise ValueError("other metadata than a batch of the journal has")
    crc = custom[CRC_KEY.encode()]
    offset = custom[OFFSET_KEY.encode()]
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
        raise ValueError("more pairs than octets")
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
