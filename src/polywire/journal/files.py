"""The files in a journal's directory: their names, how they are made durable, and the lock of the one writer.

The operating system releases the lock when its holder dies, however it dies.
"""

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from polywire.journal.errors import JournalLocked

ARROW: Final = "arrow"
PARQUET: Final = "parquet"
INDEX: Final = "index"
STATE: Final = "state"
LOCK_NAME: Final = "lock"

FILE_MODE: Final = 0o640
"""Files hold the bodies of messages: only the hub's user and group may read them."""

LOCK_TRIES: Final = 10
LOCK_PAUSE: Final = 0.01
"""Readers that check whether there is a writer hold the lock for a moment: the writer tries again."""

_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, order=True)
class SegmentFile:
    """A file that holds rows: named by the offset of its first one, Arrow or, once compacted, Parquet."""

    first_offset: int
    format: str

    @property
    def name(self) -> str:
        """The file's name."""
        return segment_name(self.first_offset, self.format)


def segment_name(first_offset: int, suffix: str) -> str:
    """The name of a segment's file, or of one beside it."""
    return f"{first_offset:0{_DIGITS}d}.{suffix}"


def parse_name(name: str) -> SegmentFile | None:
    """The segment that a file of this name is, or None where it is something else."""
    stem, _, suffix = name.partition(".")
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()) or suffix not in {ARROW, PARQUET}:
        return None
    return SegmentFile(int(stem), suffix)


def offset_of(name: str, suffix: str) -> int | None:
    """The offset that a file with this suffix is named by; None for any other file."""
    stem, _, found = name.partition(".")
    segment = parse_name(f"{stem}.{ARROW}") if found == suffix else None
    return None if segment is None else segment.first_offset


def choose_segments(names: list[str]) -> list[SegmentFile]:
    """The segments among these files, in order. One that is there in both forms counts as Parquet.

    A compacted segment is whole before it gets its name, and the other form goes after that, so at every moment each
    segment is there once.
    """
    found: dict[int, SegmentFile] = {}
    for name in names:
        segment = parse_name(name)
        if segment is not None and (segment.format == PARQUET or segment.first_offset not in found):
            found[segment.first_offset] = segment
    return sorted(found.values())


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in the directory survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_data(descriptor: int) -> None:
    """Flush the file's data and size to disk; its times may wait, if the system supports that."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def write_at(descriptor: int, octets: memoryview, position: int) -> None:
    """Write all of it, however often the system takes only a part."""
    while octets:
        written = os.pwrite(descriptor, octets, position)
        octets = octets[written:]
        position += written


class Holder(msgspec.Struct):
    """What the holder of a lock writes into its file, for people to read."""

    pid: int | None = None
    node: str | None = None


class WriterLock:
    """Held from its making to ``release``; ``JournalLocked`` where another writer has it."""

    def __init__(self, folder: Path, node: str) -> None:
        self._descriptor: Final = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        if not _take(self._descriptor):
            holder = _read_holder(self._descriptor)
            os.close(self._descriptor)
            raise JournalLocked(str(folder), pid=holder.pid, node=holder.node)
        with contextlib.suppress(OSError):  # the flock is what counts, so a full disk does not matter here
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(Holder(os.getpid(), node)) + b"\n", 0)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def writer_alive(folder: Path) -> bool:
    """Whether a hub is writing the journal in this directory."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
        else:
            return True
    return False


def _read_holder(descriptor: int) -> Holder:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        return Holder()
