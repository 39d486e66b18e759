"""A journal whose disk does as a test says: waits, fails, works."""

import errno
import threading
from pathlib import Path

from polywire.journal.log import EncodedBatch, Log

SECONDS = 20.0


class FailingLog(Log):
    """Writes when ``go`` is set, and fails while ``fails`` says so. ``batches`` are the rows of each it has written."""

    def __init__(self, path: Path, *, fsync: str = "group") -> None:
        super().__init__(path, node="here", fsync=fsync)
        self.go = threading.Event()
        self.go.set()
        self.fails: int | None = None
        self.tries = 0
        self.tried = threading.Event()
        self.batches: list[int] = []

    def write(self, batch: EncodedBatch, *, state: bool, times: tuple[int, int]) -> None:
        """Write, wait or raise."""
        self.tries += 1
        self.tried.set()
        assert self.go.wait(SECONDS)
        if self.fails is not None:
            raise OSError(self.fails, "the disk fails")
        super().write(batch, state=state, times=times)
        self.batches.append(batch.rows)

    def break_down(self) -> None:
        """From now on nothing can be written."""
        self.fails = errno.EIO

    def mend(self) -> None:
        """And now it can."""
        self.fails = None
