"""The index beside a segment: one entry of fixed size for each batch, so that readers need not walk the segment.

An entry is appended only when its batch is safe. Whoever reads a segment that is still being written therefore believes
the index, and never sees what a crash could take back. An index can always be made anew from its segment.
"""

import struct
import zlib
from typing import Final, NamedTuple

MAGIC: Final = b"PWIX\x01\0\0\0"
ENTRY_OCTETS: Final = 64
STATE_FLAG: Final = 1
"""The batch holds rows that the hub's state is made of."""

_ENTRY: Final = struct.Struct("<QIIQQqqI8x")
_CRC: Final = struct.Struct("<I")


class Entry(NamedTuple):
    """One batch: which rows, where they stand, of what time."""

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
    """The entry's octets."""
    packed = _ENTRY.pack(*entry)
    return packed + _CRC.pack(zlib.crc32(packed))


def unpack_entries(octets: bytes | memoryview) -> list[Entry]:
    """The entries in the octets behind the magic.

    One that is cut off or damaged is left out, and so is one that is not behind the others: an index is a help, never
    the truth.
    """
    entries: list[Entry] = []
    view = memoryview(octets)
    end = end_offset = 0
    for at in range(0, len(view) - ENTRY_OCTETS + 1, ENTRY_OCTETS):
        packed = view[at : at + _ENTRY.size]
        if zlib.crc32(packed) != _CRC.unpack_from(view, at + _ENTRY.size)[0]:
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
