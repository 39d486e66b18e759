"""The writing end of a journal: batches of rows go in, in order, and are safe when ``append`` returns.

A batch is encoded as one compressed message and written at the end of the active segment. Once that is on disk, its
entry goes into the index; this order is what recovery and readers rely on. If something fails on the way, both files
are as they were before, and the same batch can be tried again.

Everything here waits for the disk, so it belongs in a thread of its own. A journal has one writer at a time.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from polywire.journal.format import (
    BLANK_CRC,
    CRC_KEY,
    END_OF_STREAM,
    ENTRY_OCTETS,
    MAGIC,
    MARKER,
    OFFSET_KEY,
    SEGMENT_SCHEMA,
    STATE_FLAG,
    WRITE_OPTIONS,
    Entry,
    Head,
    blank_head,
    header_length,
    make_head,
    pack_entry,
    put_crc,
)
from polywire.journal.recovery import Recovered, RecoveryReport, recover
from polywire.journal.storage import ARROW, FILE_MODE, INDEX, WriterLock, segment_name, sync_data, sync_folder, write_at
from polywire.registry import names

FIRST_ROOM: Final = 1 << 20
LARGEST_KEPT_ROOM: Final = 32 << 20
"""The buffer for encoding is kept from batch to batch, unless one huge batch needed far more."""


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

    def encode(self, batch: pa.RecordBatch, first_offset: int) -> EncodedBatch:
        """The batch's message. Its dictionaries must be those of the segment's head."""
        # Arrow writes a head before every stream, so the batch gets one, which then shows whether it fits the segment.
        room = self._room_for(len(self._head) + int(ipc.get_record_batch_size(batch)))
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(room))
        writer = ipc.new_stream(sink, SEGMENT_SCHEMA, options=WRITE_OPTIONS)
        writer.write_batch(batch, custom_metadata={OFFSET_KEY: str(first_offset).encode(), CRC_KEY: BLANK_CRC})
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


class ActiveSegment:
    """The two open files. ``sync`` is whether a batch has to be on the disk before it counts as written."""

    def __init__(
        self, folder: Path, first_offset: int, data: int, index: int, *, size: int, entries: list[Entry], sync: bool
    ) -> None:
        self.name: Final = segment_name(first_offset, ARROW)
        self.first_offset: Final = first_offset
        self.size = size
        self.begun: float | None = time.monotonic() - _age(entries[0]) if entries else None
        """When its first batch was written, by the monotonic clock; None where it has no batch yet."""
        self.ended = False
        self._folder: Final = folder
        self._data: Final = data
        self._index: Final = index
        self._index_size = len(MAGIC) + len(entries) * ENTRY_OCTETS
        self._sync: Final = sync
        self._leftovers = False

    @classmethod
    def create(cls, folder: Path, first_offset: int, head: Head, *, sync: bool) -> Self:
        """A new segment without batches; one that is there under this name has none either, and is replaced."""
        opened: list[int] = []
        try:
            for suffix in (ARROW, INDEX):
                path = folder / segment_name(first_offset, suffix)
                opened.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE))
            write_at(opened[0], memoryview(head.octets), 0)
            write_at(opened[1], memoryview(MAGIC), 0)
            os.fsync(opened[0])
            sync_folder(folder)
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            for suffix in (INDEX, ARROW):
                with contextlib.suppress(OSError):
                    (folder / segment_name(first_offset, suffix)).unlink()
            raise
        return cls(folder, first_offset, *opened, size=len(head), entries=[], sync=sync)

    @classmethod
    def resume(cls, folder: Path, first_offset: int, *, size: int, entries: list[Entry], sync: bool) -> Self:
        """Go on behind the last good batch of a segment that recovery has put in order."""
        data = os.open(folder / segment_name(first_offset, ARROW), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(data)  # what a killed writer had not made safe counts from now on
            index = os.open(folder / segment_name(first_offset, INDEX), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            os.close(data)
            raise
        return cls(folder, first_offset, data, index, size=size, entries=entries, sync=sync)

    def append(self, octets: memoryview, entry: Entry) -> None:
        """Write a batch, make it safe, and only then let readers know."""
        self._clear()
        self._leftovers = True
        try:
            write_at(self._data, octets, self.size)
            if self._sync:
                sync_data(self._data)
            write_at(self._index, memoryview(pack_entry(entry)), self._index_size)
        except OSError:
            with contextlib.suppress(OSError):
                self._clear()
            raise
        self._leftovers = False
        self.size += len(octets)
        self._index_size += ENTRY_OCTETS
        if self.begun is None:
            self.begun = time.monotonic()

    def end(self) -> None:
        """Mark the end of the stream: no batch follows."""
        if self.ended:
            return
        self._clear()
        self._leftovers = True
        try:
            write_at(self._data, memoryview(END_OF_STREAM), self.size)
            os.fsync(self._data)
        except OSError:
            with contextlib.suppress(OSError):
                self._clear()
            raise
        self._leftovers = False
        self.ended = True

    def close(self) -> None:
        """Close the files, whatever is in them."""
        with contextlib.suppress(OSError):
            self._clear()
        try:
            os.fsync(self._data)
        finally:
            os.close(self._data)
            os.close(self._index)

    def _clear(self) -> None:
        """Cut off what a failed attempt left, and fail as long as that can't be done."""
        if self._leftovers:
            os.ftruncate(self._index, self._index_size)
            os.ftruncate(self._data, self.size)
            self._leftovers = False


def _age(entry: Entry) -> float:
    """How many seconds ago an earlier writer wrote a batch, as far as the clocks agree."""
    return max(0.0, time.time() - entry.min_ts / 1_000_000)


SEGMENT_OCTETS: Final = 128 << 20
FSYNC_MODES: Final = ("group", "always", "os")


class Log:
    """The only writer of the journal in a directory, which is created if missing.

    ``fsync`` is ``"os"`` where the operating system decides when data reaches the disk; with the other modes it is
    there before ``append`` returns. ``recovery`` reports what was found, and repaired, at start; with ``refuse_loss``,
    ``JournalLoss`` is raised and nothing is changed if rows that were on disk are lost.

    A segment is ended when it has ``segment_octets``, or when rows come ``segment_seconds`` (0: never) after its first
    ones; that is measured by the monotonic clock, so it does not matter when the wall clock is set.

    ``protocols`` are the names that rows' protocols are numbered by; by default those of all protocols there are. Each
    segment has the names in it.

    ``on_roll`` is called with the first offset of each new segment when the one before it is complete, and before
    anything is written to the new one; what it raises comes out of ``append``, which can then be tried again without it
    being called a second time.
    """

    def __init__(
        self,
        path: Path,
        *,
        node: str,
        fsync: str = "group",
        segment_octets: int = SEGMENT_OCTETS,
        segment_seconds: float = 0.0,
        refuse_loss: bool = False,
        protocols: Sequence[str] | None = None,
    ) -> None:
        if fsync not in FSYNC_MODES:
            raise ValueError(f"fsync is one of {', '.join(FSYNC_MODES)}, not {fsync!r}")
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.path: Final = path
        self.node: Final = node
        self.on_roll: Callable[[int], None] | None = None
        self._sync: Final = fsync != "os"
        self._segment_octets: Final = segment_octets
        self._segment_seconds: Final = segment_seconds
        self.protocols: Final = names() if protocols is None else tuple(protocols)
        self._encoder: Final = BatchEncoder(node, self.protocols)
        self._head: Final = make_head(node, self.protocols)
        self._lock: Final = WriterLock(path, node)
        self._closed = False
        try:
            recovered = recover(path, refuse_loss=refuse_loss)
            self._next_offset = recovered.next_offset
            self.recovery: RecoveryReport = recovered.report
            self._active = self._begin(recovered)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_offset(self) -> int:
        """The least offset that the next row may have."""
        return self._next_offset

    @property
    def segment_offset(self) -> int:
        """The first offset of the segment that is being written."""
        return self._active.first_offset

    def append(self, batch: pa.RecordBatch, *, state: bool, times: tuple[int, int] | None = None) -> None:
        """Write the rows of a batch, whose offsets are consecutive. ``state``: the hub's state is made of some of them.

        ``times`` are the earliest and the latest of the rows, in microseconds, where that is known already.
        An ``OSError`` leaves the journal as it was, and the same batch, or another, can be tried again.
        """
        if batch.num_rows:
            self.write(self.encode(batch), state=state, times=times or _times(batch))

    def encode(self, batch: pa.RecordBatch) -> EncodedBatch:
        """The first half of ``append``, which needs no disk; the second is to follow before the next batch is encoded.

        The two may run in different threads, one after the other.
        """
        rows = batch.num_rows
        offsets = batch.column(0)
        first = offsets[0].as_py()
        if first < self._next_offset or offsets[rows - 1].as_py() != first + rows - 1:
            raise ValueError(f"offsets must be consecutive from {self._next_offset} on, not from {first}")
        return self._encoder.encode(batch, first)

    def write(self, batch: EncodedBatch, *, state: bool, times: tuple[int, int]) -> None:
        """The second half of ``append``. It can be tried again after an ``OSError``."""
        if self._active.ended or self._full():
            self._roll(batch.first_offset)
        entry = Entry(
            batch.first_offset,
            batch.rows,
            STATE_FLAG if state else 0,
            self._active.size,
            len(batch.octets),
            *times,
            batch.crc,
        )
        self._active.append(batch.octets, entry)
        self._next_offset = batch.first_offset + batch.rows

    def roll(self) -> bool:
        """End the active segment, so that it can be compacted or removed. Returns whether there was anything in it."""
        if self._active.begun is None:
            return False
        self._roll(self._next_offset)
        return True

    def close(self) -> None:
        """Stop writing; the active segment can be continued by the next writer."""
        if not self._closed:
            self._closed = True
            try:
                self._active.close()
            finally:
                self._lock.release()

    def _begin(self, recovered: Recovered) -> ActiveSegment:
        """Continue the newest segment if it is ours and has room, else begin one."""
        first_offset = recovered.first_offset
        if (
            first_offset is not None
            and recovered.head is not None
            and (recovered.entries or recovered.head == self._head)
        ):
            active = ActiveSegment.resume(
                self.path, first_offset, size=recovered.size, entries=recovered.entries, sync=self._sync
            )
            active.ended = recovered.ended
            if not active.ended and recovered.head == self._head and not recovered.report.lost:
                return active
            active.end()
            active.close()
        return ActiveSegment.create(self.path, self._next_offset, self._head, sync=self._sync)

    def _full(self) -> bool:
        """Whether the next rows belong in another segment."""
        begun = self._active.begun
        if begun is None:
            return False
        age = time.monotonic() - begun
        return self._active.size >= self._segment_octets or 0 < self._segment_seconds <= age

    def _roll(self, first_offset: int) -> None:
        self._active.end()
        created = ActiveSegment.create(self.path, first_offset, self._head, sync=self._sync)
        self._active.close()
        self._active = created
        self._next_offset = first_offset
        if self.on_roll is not None:
            self.on_roll(first_offset)


def _times(batch: pa.RecordBatch) -> tuple[int, int]:
    found = pc.min_max(batch.column(1).view("int64"))
    return found["min"].as_py(), found["max"].as_py()
