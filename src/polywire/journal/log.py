"""The writing end of a journal: batches of rows go in, in order, and are safe when ``append`` returns.

Everything here waits for the disk, so it belongs into a thread of its own. One writer has the journal at a time.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow.compute as pc

from polywire.journal.active import ActiveSegment
from polywire.journal.encoding import BatchEncoder, EncodedBatch
from polywire.journal.head import make_head
from polywire.journal.index import STATE_FLAG, Entry
from polywire.journal.lock import WriterLock
from polywire.journal.recovery import Recovered, RecoveryReport, recover
from polywire.registry import names

SEGMENT_OCTETS: Final = 128 << 20
FSYNC_MODES: Final = ("group", "always", "os")


class Log:
    """The one writer of the journal in a folder, which is made where it is missing.

    ``fsync`` is ``"os"`` where the operating system decides when data reaches the disk; with the other modes it is
    there before ``append`` returns. ``recovery`` reports what was found, and repaired, at start; with ``refuse_loss``,
    ``JournalLoss`` is raised and nothing changed where rows are lost that were safe.

    A segment is ended when it has ``segment_octets``, or when rows come ``segment_seconds`` (0: never) after its first
    ones; that is measured by the monotonic clock, so it does not matter when the wall clock is set.

    ``protocols`` are the names that rows' protocols are numbered by; by default those of all protocols there are. Each
    segment has the names in it.

    ``on_roll`` is told the first offset of each new segment when the one before it is complete, and before anything is
    written to the new one; what it raises comes out of ``append``, which can then be tried again without it being
    called a second time.
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

    def append(self, batch: Any, *, state: bool, times: tuple[int, int] | None = None) -> None:
        """Write the rows of a batch, whose offsets are consecutive. ``state``: the hub's state is made of some of them.

        ``times`` are the earliest and the latest of the rows, in microseconds, where that is known already.
        An ``OSError`` leaves the journal as it was, and the same batch, or another, can be tried again.
        """
        if batch.num_rows:
            self.write(self.encode(batch), state=state, times=times or _times(batch))

    def encode(self, batch: Any) -> EncodedBatch:
        """The first half of ``append``, which needs no disk; the second is to follow before the next batch is encoded.

        The two may run in different threads, one after the other.
        """
        rows = batch.num_rows
        offsets = batch.column(0)
        first = offsets[0].as_py()
        if first < self._next_offset or offsets[rows - 1].as_py() != first + rows - 1:
            raise ValueError(f"the rows' offsets are to be consecutive from {self._next_offset} on, not from {first}")
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
        """Go on with the newest segment if it is ours and has room, else begin one."""
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


def _times(batch: Any) -> tuple[int, int]:
    found = pc.min_max(batch.column(1).view("int64"))
    return found["min"].as_py(), found["max"].as_py()
