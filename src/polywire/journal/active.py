"""The segment that is being written: octets at its end, then safe on the disk, then an entry in its index.

The order is what everything else relies on. When something fails on the way, both files are as they were before, and
the same batch can be tried again.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Final, Self

from polywire.journal.framing import END_OF_STREAM
from polywire.journal.head import Head
from polywire.journal.index import ENTRY_OCTETS, MAGIC, Entry, pack_entry
from polywire.journal.segments import ARROW, INDEX, segment_name, sync_folder

FILE_MODE: Final = 0o640
"""Bodies of messages are in it: nobody but the hub's user and group may read it."""


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


def sync_data(descriptor: int) -> None:
    """Have the file's data, and its size, on the disk; its times may wait, where the system can tell them apart."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def write_at(descriptor: int, octets: memoryview, position: int) -> None:
    """Write all of it, however often the system takes only a part."""
    while octets:
        written = os.pwrite(descriptor, octets, position)
        octets = octets[written:]
        position += written
