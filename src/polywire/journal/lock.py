"""One writer for each journal: a lock that the operating system takes back when its holder dies, however it dies."""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from polywire.journal.errors import JournalLocked
from polywire.journal.segments import LOCK_NAME

TRIES: Final = 10
PAUSE: Final = 0.01
"""Readers that look whether there is a writer hold the lock for a moment: the writer tries again."""


class Holder(msgspec.Struct):
    """What the holder of a lock writes into its file, for people to read."""

    pid: int | None = None
    node: str | None = None


class WriterLock:
    """Held from its making to ``release``; ``JournalLocked`` where another writer has it."""

    def __init__(self, folder: Path, node: str) -> None:
        self._descriptor: Final = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if not _take(self._descriptor):
            holder = _read_holder(self._descriptor)
            os.close(self._descriptor)
            raise JournalLocked(str(folder), pid=holder.pid, node=holder.node)
        with contextlib.suppress(OSError):  # the flock is what counts, so a full disk does not matter here
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(Holder(os.getpid(), node)) + b"\n", 0)

    def release(self) -> None:
        """Let others write."""
        os.close(self._descriptor)


def writer_alive(folder: Path) -> bool:
    """Whether somebody writes the journal in this folder now."""
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
    for _ in range(TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE)
        else:
            return True
    return False


def _read_holder(descriptor: int) -> Holder:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        return Holder()
