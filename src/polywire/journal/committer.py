"""The thread that writes the journal: groups of rows come in, each is told when it is safe.

It makes batches of them and appends these to the log, one group after the other. Where that fails, it says so once and
tries the same batch again until it works or it is told to stop: rows are never skipped.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import final

from polywire.journal.batches import BatchMaker
from polywire.journal.columns import Columns
from polywire.journal.log import Log

RETRY_SECONDS = 1.0

log = logging.getLogger("polywire.journal")

Group = tuple[list[Columns], Callable[[], None]]


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
        self._maker = BatchMaker(journal.node)
        self._tell = tell
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        self._retry_seconds = retry_seconds
        self._groups: SimpleQueue[Group | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="polywire-journal", daemon=True)
        self._thread.start()

    def submit(self, columns: list[Columns], done: Callable[[], None]) -> None:
        """Write these; ``done`` is told when they are safe."""
        self._groups.put((columns, done))

    def stop(self) -> bool:
        """Write what was submitted, unless that fails, and end. Returns whether everything was written."""
        self._groups.put(None)
        self._stopping.set()
        self._thread.join()
        return not self._failing

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            columns, done = group
            for each in columns:
                if not self._write(each):
                    return
            self._tell(done)

    def _write(self, columns: Columns) -> bool:
        """Write one batch, however often that takes. False where it was told to stop before it could."""
        batch = None
        while True:
            try:
                if batch is None:
                    batch = self._maker.make(columns)
                times = (int(columns.earliest), int(columns.latest))
                self._journal.append(batch, state=columns.state, times=times)
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
