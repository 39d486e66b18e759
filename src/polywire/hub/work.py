"""Work that takes long, done in slices, so that nobody else waits for it.

All clients share one event loop. What a single request causes may be large: thousands of subscriptions to end, last
wills to publish, retained messages to send. Such work is a ``Job``, done step by step: the first steps at once, so that
small jobs are done when ``start`` returns, the others in slices with a turn of the loop in between. Owners, which are
clients as a rule, take turns step by step; the jobs of one owner are done in their order. What busy connections have
sent is handled in the same way (``server/endpoint.py``), with the hosts they come from as owners.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

DONE: Final = 0
MORE: Final = 1
WAIT: Final = 2
TURN: Final = 3

BUDGET: Final = 1_000_000
ALONE: Final = 20_000_000
"""Nanoseconds of work in one turn of the loop, after which the current step is the last.

``ALONE`` is for times when only busy connections are there: nobody is kept waiting then, and longer slices cost less.
"""

QUIET: Final = 20_000_000
"""Nanoseconds without a light client until busy ones count as alone."""

NOTICED: Final = 500_000
"""Nanoseconds used without a job up to which they are added up over several turns, which saves a call in each."""

FIRST_STEPS: Final = 32
FIRST_BUDGET: Final = 100_000
PROMPT: Final = 5_000_000
"""Steps that are done at once when a job starts, and nanoseconds after which the step at hand is the last of them.

``PROMPT`` is for what clients can't cause, and an operator wants to be done at once.
"""


@final
class Light:
    """When something was last done for a client that uses little of the loop, by the clock of ``Work``."""

    def __init__(self) -> None:
        self.at: i64 = -QUIET

    def is_near(self, now: i64) -> bool:
        """Whether that was a moment ago, so that there may soon be more to do."""
        return now - self.at < QUIET


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """Something done in steps, each of which takes a fraction of a millisecond."""

    def step(self) -> int:
        """Do a little: ``DONE``, ``MORE``, ``TURN`` to let its owner's other jobs go on first, or ``WAIT``.

        One that waits is called again after ``Work.wake``.
        """
        raise NotImplementedError


@final
class Turns(Job):
    """A job whose steps are calls of a function."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._take: Final = step

    def step(self) -> int:
        """Call it."""
        return self._take()


@final
class Work:
    """The jobs that are not done. ``on_idle`` is called with each owner whose last job is done.

    ``eager``: the first steps of a job are done when it starts. ``light`` tells whether other clients need the loop.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        eager: bool = True,
        light: Light | None = None,
    ) -> None:
        self._soon: Final = soon
        self._clock: Final = clock
        self._eager: Final = eager
        self.light: Final = light or Light()
        self._jobs: Final[dict[object, deque[Job]]] = {}
        self._turns: Final[deque[object]] = deque()  # the owners whose jobs can go on
        self._waiting: Final[set[object]] = set()  # the others
        self._scheduled = False
        self.count = 0
        """How many jobs are not done."""
        self._charged: i64 = 0  # nanoseconds of this turn, and a few of those before it
        self._counting = False
        self.paused = False
        self.on_idle: Callable[[object], None] | None = None
        self.slices: i64 = 0
        self.longest: i64 = 0
        """Nanoseconds of the longest slice."""

    def __len__(self) -> int:
        """How many owners have jobs."""
        return len(self._jobs)

    def idle(self) -> bool:
        """Whether there is nothing to do, but for jobs that wait for something."""
        return not self._turns

    def busy(self, owner: object) -> bool:
        """Whether this owner has jobs that are not done."""
        return self.count != 0 and owner in self._jobs

    def start(self, owner: object, job: Job, budget: i64 = FIRST_BUDGET) -> None:
        """Begin a job at once, unless its owner has others; do the rest of it in slices.

        ``budget`` is how many nanoseconds its first steps may take.
        """
        self.count += 1
        jobs = self._jobs.get(owner)
        if jobs is not None:
            jobs.append(job)
            return
        jobs = deque([job])
        self._jobs[owner] = jobs
        try:
            if self._eager:
                end = self._clock() + budget
                for _ in range(FIRST_STEPS):
                    if self._step(owner, jobs) != MORE or self._clock() > end:
                        break
        finally:
            self._take_turns(owner, jobs)

    def wake(self, owner: object) -> None:
        """Go on with a job that waits."""
        if owner in self._waiting:
            self._waiting.discard(owner)
            self._turns.append(owner)
            self._schedule()

    def pause(self) -> None:
        """Do nothing more for now. What starts waits, unless this is ``eager``."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        if self._turns:
            self._schedule()

    def has_time(self) -> bool:
        """Whether no job waits, and this turn of the loop has time for something to be done without one."""
        return not self._jobs and not self.paused and self._charged < self._budget(self._clock())

    def charge(self, spent: i64) -> None:
        """So many nanoseconds were used in this turn without a job."""
        self._charged += spent
        if self._charged > NOTICED and not self._counting:
            self._counting = True
            self._soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._charged = 0
        self._counting = False

    def run(self) -> None:
        """Do one slice."""
        self._scheduled = True
        self.slices += 1
        begun = self._clock()
        spent = 0
        budget = self._budget(begun)
        try:
            while self._turns and spent < budget and not self.paused:
                owner = self._turns.popleft()
                jobs = self._jobs[owner]
                try:
                    self._step(owner, jobs)
                finally:
                    self._take_turns(owner, jobs)
                spent = self._clock() - begun
        finally:
            self.longest = max(self.longest, spent)
            self._scheduled = False
            if self._turns:
                self._schedule()

    def _budget(self, now: i64) -> i64:
        return BUDGET if self.light.is_near(now) else ALONE

    def finish(self) -> None:
        """Do everything that does not wait, however long that takes: for a hub that has no clients yet."""
        self.paused = False
        while self._turns:
            self.run()

    def _step(self, owner: object, jobs: deque[Job]) -> int:
        """One step of an owner's first job. ``DONE`` where the owner has no job any more."""
        state = DONE
        try:
            state = jobs[0].step()
        finally:  # a job that fails is over; those behind it are not
            if state == WAIT:
                self._waiting.add(owner)
            elif state == TURN:
                jobs.rotate(-1)
                state = MORE
            elif state == DONE:
                jobs.popleft()
                self.count -= 1
                if jobs:
                    state = MORE
                else:
                    del self._jobs[owner]
                    if self.on_idle is not None:
                        self.on_idle(owner)
        return state

    def _take_turns(self, owner: object, jobs: deque[Job]) -> None:
        """Go on with the owner of these jobs when the others had their turn, if any of them is left."""
        if self._jobs.get(owner) is jobs and owner not in self._waiting:
            self._turns.append(owner)
        if self._turns:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self.paused:
            self._scheduled = True
            self._soon(self.run)
