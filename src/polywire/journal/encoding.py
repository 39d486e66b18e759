"""A batch of rows becomes the octets of a segment: one message, compressed, with its first offset and its CRC."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from polywire.journal.framing import BLANK_CRC, CRC_KEY, MARKER, OFFSET_KEY, header_length, put_crc
from polywire.journal.head import SEGMENT_SCHEMA, WRITE_OPTIONS, blank_head

FIRST_ROOM: Final = 1 << 20
LARGEST_KEPT_ROOM: Final = 32 << 20
"""The room to encode in is kept from batch to batch, but not where one huge batch needed far more."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The bytes to write, valid until the next batch is encoded, and which rows they hold."""

    octets: memoryview
    crc: int
    first_offset: int
    rows: int


class BatchEncoder:
    """Encodes the batches of one node."""

    def __init__(self, node: str, protocols: Sequence[str]) -> None:
        self._node: Final = node
        self._head: Final = blank_head(node, protocols)
        self._room = bytearray(FIRST_ROOM)

    def encode(self, batch: Any, first_offset: int) -> EncodedBatch:
        """The batch's message. Its dictionaries must be those of the segment's head."""
        # Arrow writes a head before every stream, so the batch gets one, which then tells whether it fits the segment.
        room = self._room_for(len(self._head) + int(ipc.get_record_batch_size(batch)))
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(room))
        writer = ipc.new_stream(sink, SEGMENT_SCHEMA, options=WRITE_OPTIONS)
        writer.write_batch(batch, custom_metadata={OFFSET_KEY: str(first_offset), CRC_KEY: BLANK_CRC})
        end = int(sink.tell())
        start = len(self._head)
        octets = memoryview(room)[start:end]
        if not room.startswith(self._head) or not room.startswith(MARKER, start):
            raise ValueError(f"the batch's dictionaries are not those of the segments of node {self._node!r}")
        return EncodedBatch(octets, put_crc(octets, header_length(octets)), first_offset, batch.num_rows)

    def _room_for(self, plain: int) -> bytearray:
        """Room for a message of this size before compression, which may grow a little where nothing can be saved."""
        needed = plain + plain // 64 + 65536
        if needed <= len(self._room):
            return self._room
        room = bytearray(needed)
        if needed <= LARGEST_KEPT_ROOM:
            self._room = room
        return room
