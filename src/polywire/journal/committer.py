"""The thread that writes the journal: groups of rows come in, each is told when it is safe.

It makes batches of them and appends these to the log, one group after the other. Where that fails, it says so once and
tries the same batch again until it works or it is told to stop: rows are never skipped.

Unless a group is large, its batch is made before it goes to the thread, and encoded too if it is small. That takes many
short calls into Arrow, each of which lets go of the interpreter's lock. After each of them the thread would have to
wait for the lock whenever the event loop is busy.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, final

from polywire.journal.batches import BatchMaker
from polywire.journal.columns import Columns
from polywire.journal.encoding import EncodedBatch
from polywire.journal.log import Log

RETRY_SECONDS = 1.0

SMALL_GROUP = 256 * 1024
LARGE_GROUP = 2 * 1024 * 1024
"""Bytes of a group up to which it is encoded at once, and up to which its batch is made at once."""

log = logging.getLogger("polywire.journal")

Group = tuple[list[Columns], Any, Callable[[], None]]
"""Columns, what was made of them already, and what to call when they are written."""


@final
class Committer:
    """Writes to ``journal``. ``tell`` runs a function in the thread that submits.

    ``on_failure`` and ``on_recovery`` are run there when writing begins to fail and when it works again.
    """

    def __init__(
        self,
        journal: Log,
        tell: Callable[[Callable[[], None]], object],
        on_failure: Callable[[], None],
        on_recovery: Callable[[], None],
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._journal = journal
        self._maker = BatchMaker(journal.node, journal.protocols)
        self._tell = tell
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        self._retry_seconds = retry_seconds
        self._groups: SimpleQueue[Group | None] = SimpleQueue()
        self._submitted = 0  # groups that are not written yet
        self._stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="polywire-journal", daemon=True)
        self._thread.start()

    def submit(self, columns: list[Columns], done: Callable[[], None]) -> None:
        """Write these; ``done`` is called when they are on disk."""
        prepared = None
        # There is room for one encoded batch, so the thread must not be using it.
        if not self._submitted and len(columns) == 1 and columns[0].octets() <= LARGE_GROUP:
            with contextlib.suppress(Exception):  # the thread tries it again, and reports what is wrong
                prepared = self._maker.make(columns[0])
                if columns[0].octets() <= SMALL_GROUP:
                    prepared = self._journal.encode(prepared)
        self._submitted += 1
        self._groups.put((columns, prepared, done))

    def stop(self) -> bool:
        """Write what was submitted, unless that fails, and end. Returns whether everything was written."""
        self._groups.put(None)
        self._stopping.set()
        self._thread.join()
        return not self._failing

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            columns, prepared, done = group
            for each in columns:
                if not self._write(each, prepared):
                    return
            self._tell(partial(self._written, done))

    def _written(self, done: Callable[[], None]) -> None:
        self._submitted -= 1
        done()

    def _write(self, columns: Columns, batch: Any) -> bool:
        """Write one batch, however often that takes. False where it was told to stop before it could.

        ``batch`` is what was made of the columns: nothing, a record batch, or an encoded one.
        """
        times = (int(columns.earliest), int(columns.latest))
        while True:
            try:
                if batch is None:
                    batch = self._maker.make(columns)
                if not isinstance(batch, EncodedBatch):
                    batch = self._journal.encode(batch)
                self._journal.write(batch, state=columns.state, times=times)
            except Exception as error:  # noqa: BLE001 - whatever it is, rows must not be skipped
                if not self._failing:
                    self._failing = True
                    words = "the journal in %s can't be written: %s; nothing is acknowledged until it can"
                    log.error(words, self._journal.path, error)  # noqa: TRY400 - the words say it all
                    self._tell(self._on_failure)
                if self._stopping.wait(self._retry_seconds):
                    return False
            else:
                if self._failing:
                    self._failing = False
                    log.warning("the journal in %s can be written again", self._journal.path)
                    self._tell(self._on_recovery)
                return True
