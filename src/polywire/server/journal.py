"""The hub's journal: rows are collected in the hub's thread, written in another, and acknowledged here.

One group is written at a time; rows that arrive meanwhile form the next one. A group is written when an acknowledgement
waits for it, or after a short delay, so only acknowledgements wait for the disk.

While a client that uses little of the loop waits for a group, busy ones pause for a moment, and so does work that takes
long: the writing thread needs the interpreter's lock several times, and would wait for a slice of theirs each time.
Between two groups they get one slice.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Protocol

from polywire.hub.hub import Hub
from polywire.hub.recorder import Recorder
from polywire.hub.work import Work
from polywire.journal.committer import Committer
from polywire.journal.housekeeping import Hold
from polywire.journal.log import Log

GATHER_SECONDS = 0.05
"""How long rows may wait if no acknowledgement depends on them."""

MAX_PENDING = 32 * 1024 * 1024
"""Bytes that may wait for the disk; then no connection is read until half of them are written."""

MAX_PENDING_HEAVY = 4 * 1024 * 1024
MAX_PENDING_WAITED = 1536 * 1024
"""The same for connections that send more than others: while others are active, and while an acknowledgement waits."""

PAUSE_SECONDS = 0.01
"""How long busy connections and long work pause for a group at most: a slow disk must not stop them."""

SWITCH_SECONDS = 0.005
SWITCH_SECONDS_URGENT = 0.000005
"""How long a thread waits before it asks the event loop's thread to let go of the interpreter's lock.

The loop lets go of the lock and takes it back for each event. Each time, a thread that waits wakes up too late, and
starts to wait again; by default for 5 ms, in which a busy loop has many events. So the journal's thread took 100 ms
for a commit of 1 ms. With a time that is shorter than most events it gets its turn, but asking so often takes time
itself: it is for groups whose acknowledgement a client waits for that uses little of the loop.
"""

STRETCH = 512
ROW = 64
"""What a run of similar rows, and each row, costs on top of its bytes, in bytes that take as long to write."""

log = logging.getLogger("polywire.journal")

Waiter = tuple[Callable[[], None], Callable[[], None]]


class Pausable(Protocol):
    """A connection that need not be read."""

    def pause_reading(self) -> None:
        """Read nothing."""

    def resume_reading(self) -> None:
        """Read on."""


class Journaling:
    """Ties a hub to the log it is recorded in. ``strict``: nothing at all is taken while the log can't be written.

    ``turns`` is the backlog of busy connections; it pauses while too much waits for the disk.
    """

    def __init__(
        self, hub: Hub, turns: Work, journal: Log, loop: asyncio.AbstractEventLoop, *, fsync: str, strict: bool
    ) -> None:
        self._hub = hub
        self._turns = turns
        self._heavy = (turns, hub.work)
        self._loop = loop
        self._always = fsync == "always"
        self._waiters: list[Waiter] = []
        self._on_their_way: list[Waiter] = []
        self._busy = False
        self._urgent = False  # a light client waits for the next group
        self._timer: asyncio.Handle | None = None
        self._hurried = False  # the timer is for this turn of the loop
        self._held: list[Pausable] = []
        self._pause: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()  # a group was written, or could not be
        self.journal = journal
        self.commits = 0
        self.rows = 0
        self.recorder = Recorder(journal.next_offset, hub.clock, self._rows_came)
        self.hold: Callable[[int], Hold] = Hold
        """Keeps rows from an offset on in the journal, however small that is to be."""
        self._committer = Committer(journal, loop.call_soon_threadsafe, self._failed, self._recovered)
        hub.recorder = self.recorder
        hub.services.recorder = self.recorder
        hub.when_safe = self._when_safe
        hub.strict = strict
        for queue in hub.queues.values():
            queue.on_ack = self.recorder.dequeued
            queue.on_return = self.recorder.returned
        self.recorder.started()

    @property
    def failed(self) -> bool:
        """Whether the log can't be written at the moment."""
        return self.recorder.failed

    def hold_if_full(self, connection: Pausable) -> None:
        """Read no more from a connection while too much waits for the disk."""
        recorder = self.recorder
        pending = recorder.pending() + STRETCH * len(recorder.columns.kinds) + ROW * recorder.rows()
        if self._waiters or self._on_their_way:
            is_enough = pending > MAX_PENDING_WAITED
        else:
            is_enough = pending > MAX_PENDING_HEAVY and self._turns.light.is_near(self._hub.monotonic())
        too_much = pending > MAX_PENDING
        if recorder.failed or not (is_enough or too_much):
            return
        self._turns.pause()
        if not self._busy and not self._hurried:
            self._send_off(0)
        if too_much:
            connection.pause_reading()
            self._held.append(connection)

    async def close(self) -> None:
        """Write what there is, and let go of the log."""
        if self._timer is not None:
            self._timer.cancel()
        while not self.recorder.failed and (self._busy or self.recorder.pending() > 0):
            if not self._busy:
                self._commit()
            self._moved.clear()
            await self._moved.wait()
        if self._pause is not None:
            self._pause.cancel()
        sys.setswitchinterval(SWITCH_SECONDS)
        written = await self._loop.run_in_executor(None, self._committer.stop)
        if not written or self.recorder.pending() > 0:
            log.error("the journal in %s could not be written completely", self.journal.path)
        self.journal.close()

    def _rows_came(self) -> None:
        if self._timer is None and not self._busy:
            self._send_off(GATHER_SECONDS if not self._always else 0)

    def _when_safe(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        if self.recorder.failed:
            failed()
        elif not self._busy and self.recorder.pending() == 0:
            done()
        else:
            self._waiters.append((done, failed))
            if not self._urgent and not self._hub.flusher.is_busy:
                self._urgent = True
                if self._busy:  # the group before it has to be written first
                    self._hurry()
            if self._always:
                self.recorder.part()
            if not self._busy and len(self._waiters) == 1:
                self._send_off(0)

    def _send_off(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._hurried = not seconds
        self._timer = self._loop.call_later(seconds, self._flush) if seconds else self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._hurried = False
        if not self._busy:
            self._commit()

    def _commit(self) -> None:
        columns = self.recorder.take()
        waiters, self._waiters = self._waiters, []
        if not columns:
            self._acknowledge(waiters)
            return
        self._busy = True
        self._on_their_way = waiters
        if self._urgent:
            self._urgent = False
            self._hurry()
        else:
            sys.setswitchinterval(SWITCH_SECONDS)
        self._committer.submit(columns, partial(self._written, sum(int(each.rows) for each in columns)))

    def _written(self, rows: int) -> None:
        self._busy = False
        self.commits += 1
        self.rows += rows
        waiters, self._on_their_way = self._on_their_way, []
        self._acknowledge(waiters)
        self._let_heavy_go_on()
        pending = self.recorder.pending()
        if self._waiters or self._turns.paused or pending > MAX_PENDING // 8:
            is_urgent = self._urgent
            self._commit()
            if not is_urgent:  # the next group may be collected while this one is written
                self._let_heavy_go_on()
        elif pending > 0 and self._timer is None:
            self._send_off(GATHER_SECONDS)
        if self._held and self.recorder.pending() < MAX_PENDING // 2:
            self._release()
        self._moved.set()

    def _hurry(self) -> None:
        """Let the writing thread have the interpreter's lock whenever it wants it."""
        sys.setswitchinterval(SWITCH_SECONDS_URGENT)
        for each in self._heavy:
            if each.count:
                each.pause()
                if self._pause is None:
                    self._pause = self._loop.call_later(PAUSE_SECONDS, self._let_heavy_go_on)

    def _let_heavy_go_on(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for each in self._heavy:
            if each.paused and (each is not self._turns or self.recorder.pending() < MAX_PENDING_WAITED // 2):
                each.resume()
                if self._urgent:  # the next group begins at once, and with it their next pause
                    each.run()

    def _acknowledge(self, waiters: list[Waiter]) -> None:
        for done, _ in waiters:
            try:
                done()
            except Exception:
                log.exception("an acknowledgement failed")

    def _release(self) -> None:
        held, self._held = self._held, []
        for connection in held:
            connection.resume_reading()

    def _failed(self) -> None:
        """Fail everything that waits; the group being written is retried."""
        self.recorder.failed = True
        waiters = self._on_their_way + self._waiters
        self._on_their_way, self._waiters = [], []
        for _, failed in waiters:
            try:
                failed()
            except Exception:
                log.exception("a refusal failed")
        self._release()
        for each in self._heavy:
            each.resume()
        self._moved.set()

    def _recovered(self) -> None:
        self.recorder.failed = False
