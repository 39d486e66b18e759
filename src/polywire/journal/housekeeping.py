"""Housekeeping of a journal that is being written: snapshots of the hub's state, compaction and retention.

A thread does it whenever a segment was closed, and from time to time because rows get old. What takes long is done in
separate processes. Errors here never affect the hub: they are logged, counted, and the work is retried the next time.

Retention deletes whole segments, the oldest first, as long as a limit is exceeded; never the newest one, never what the
hub needs to recover after a crash, and never what a named reader still needs, unless the limits say so. Rows carry
the time of the wall clock, and a clock can be wrong: ``AgeClock`` keeps a clock that was set forward from making all
rows old at once.
"""

import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from polywire.journal.compaction import DAMAGED, HURRY, PART_SUFFIX, Compacted, compactable, remove_original
from polywire.journal.errors import JournalError
from polywire.journal.reader import Journal, Segment, open_journal
from polywire.journal.readers import NamedReader, NamedReaders
from polywire.journal.snapshots import UNFINISHED, Saved, due
from polywire.journal.storage import (
    ARROW,
    FILE_MODE,
    INDEX,
    PARQUET,
    STATE,
    offset_of,
    parse_name,
    segment_name,
    sync_folder,
)

JUMP_SECONDS: Final = 3600.0
"""A clock that is further ahead than this of where it should be has jumped."""

BELIEVED_SECONDS: Final = 86400.0
"""How long a clock has to stay there before ages are measured by it."""

log = logging.getLogger("polywire.journal")


class Kept(Protocol):
    """What is asked of a segment."""

    @property
    def first_offset(self) -> int:
        """The offset of its first row."""

    @property
    def end_offset(self) -> int:
        """The offset behind its last row."""

    @property
    def octets(self) -> int:
        """Its size on disk."""

    @property
    def max_time(self) -> datetime | None:
        """When its last row was written; None where it has none."""

    @property
    def closed(self) -> bool:
        """Whether nothing more is written to it."""


Segment_co = TypeVar("Segment_co", bound=Kept, covariant=True)


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """How much is kept: bytes and seconds (0: no limit), and whether named readers are waited for."""

    octets: int = 0
    seconds: float = 0.0
    for_readers: bool = True


@dataclass(frozen=True, slots=True)
class Plan(Generic[Segment_co]):
    """``delete`` are the segments to delete, the oldest first. ``held_by`` says what kept more from being deleted.

    It names readers, or ``state``: there is no snapshot of the hub's state after that segment yet. ``overdue`` is
    whether what is held is too old to be kept, and ``over`` how many bytes the journal is over its limit once that is
    done.
    """

    delete: tuple[Segment_co, ...] = ()
    held_by: tuple[str, ...] = ()
    overdue: bool = False
    over: int = 0


HELD_BY_STATE = "state"


def plan_retention(
    segments: Sequence[Segment_co],
    limits: KeepLimits,
    *,
    now: datetime,
    state_offset: int,
    readers: Iterable[NamedReader] = (),
    other_octets: int = 0,
) -> Plan[Segment_co]:
    """What to delete of ``segments``, which are in order. The hub needs what is from ``state_offset`` on to start.

    ``other_octets`` is what the journal has on the disk besides them.
    """
    needs = {HELD_BY_STATE: state_offset}
    if limits.for_readers:
        needs.update((f"reader {reader.name}", reader.offset) for reader in readers)
    oldest = now - timedelta(seconds=limits.seconds)
    octets = other_octets + sum(segment.octets for segment in segments)
    times = _times(segments, now)
    delete: list[Segment_co] = []
    held: tuple[str, ...] = ()
    overdue = False
    for segment, last in zip(segments[:-1], times, strict=False):  # the newest tells the next writer where to continue
        too_large = limits.octets > 0 and octets > limits.octets
        too_old = limits.seconds > 0 and last is not None and last < oldest
        if not segment.closed or not (too_large or too_old):
            break
        held = tuple(name for name, offset in needs.items() if offset < segment.end_offset)
        if held:
            overdue = too_old
            break
        delete.append(segment)
        octets -= segment.octets
    over = max(0, octets - limits.octets) if limits.octets > 0 else 0
    return Plan(tuple(delete), held, overdue, over)


def _times(segments: Sequence[Kept], now: datetime) -> list[datetime | None]:
    """When the last row of each segment was written, as far as that can be believed; None for not yet known.

    A segment without rows, or with rows of the future, which a clock that was ahead has left, is as old as the one
    after it.
    """
    times: list[datetime | None] = []
    found: datetime | None = None
    for segment in reversed(segments):
        if segment.max_time is not None and segment.max_time <= now:
            found = segment.max_time
        times.append(found)
    return times[::-1]


class AgeClock:
    """The time by which rows' ages are measured: the wall clock's, unless that has jumped forward.

    ``newest`` is the time of the newest row when the hub starts. A clock that is more than ``JUMP_SECONDS`` ahead of
    where it should be, by the monotonic clock, is believed once it has been so for ``BELIEVED_SECONDS``: until then
    there is time to set it right, and nothing is deleted for its age that would not have been before.
    """

    def __init__(
        self,
        newest: datetime | None,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead = (wall() if newest is None else newest.timestamp()) - monotonic()
        self._jumped: float | None = None
        self._level = logging.INFO  # at a start it just means that the hub was away for a while

    def now(self) -> datetime:
        """The time by which ages are measured."""
        wall, monotonic = self._wall(), self._monotonic()
        jump = wall - monotonic - self._ahead
        if jump > JUMP_SECONDS:
            if self._jumped is None:
                self._jumped = monotonic
                words = "the clock has jumped ahead by %.0f s; keep_time uses it after another %.0f s"
                log.log(self._level, words, jump, BELIEVED_SECONDS)
            self._level = logging.WARNING
            if monotonic - self._jumped < BELIEVED_SECONDS:
                return datetime.fromtimestamp(monotonic + self._ahead, UTC)
        self._jumped = None
        self._level = logging.WARNING
        self._ahead = wall - monotonic
        return datetime.fromtimestamp(wall, UTC)


LOCK_NAME: Final = "housekeeping.lock"
"""Held while files are replaced or deleted, so that a command and a hub don't do it at once."""

PERIOD: Final = 600.0
"""Seconds after which age is looked at again, where nothing else happens."""

MODEST_SECONDS: Final = 30.0
"""How long a process at idle priority may take. Then it is restarted at normal
priority: on a machine that is always busy the journal would grow without end."""

HURRY_SECONDS: Final = 300.0
"""For how long after that others do so from their start."""

MOST_HOLDS: Final = 1000
"""Holds beyond this number are joined, so that they protect a little more than they have to."""

STATES_KEPT: Final = 2
"""Snapshots of the hub's state that are kept: with the older one it starts even if the newer one is damaged."""

FILES_OF_KEEP_TIME: Final = 10
"""Into how many files at least the rows of ``keep_time`` go."""

LEAST_SEGMENT_SECONDS: Final = 60.0

_WORK: Final = (
    "import runpy, sys; from polywire.process import leave_out_pandas; leave_out_pandas(); "
    "runpy.run_module(sys.argv.pop(1), {}, '__main__', alter_sys=True)"
)
"""What a process runs that works for the hub: a module, and its arguments."""

_NICE_SIZES: Final = 1 << 20


class HousekeepingBusy(JournalError):  # noqa: N818 - what happened, as with JournalLocked
    """Another process is compacting or deleting in this journal."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: another process is compacting or deleting here; try again when it has finished")
        self.folder = folder


@dataclass(slots=True)
class Done:
    """What one round did."""

    saved: list[Saved] = field(default_factory=list)
    compacted: list[Compacted] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Hold:
    """Rows from ``first`` on that later ones refer to, those up to ``end``; None as long as more may follow."""

    first: int
    end: int | None = None


def joined(holds: list[Hold]) -> list[Hold]:
    """About half as many that protect the same rows: those that have ended, two by two. The others change yet."""
    ended = [hold for hold in holds if hold.end is not None]
    pairs = [ended[at : at + 2] for at in range(0, len(ended), 2)]
    both = [Hold(min(each.first for each in pair), max(each.end or 0 for each in pair)) for pair in pairs]
    return [*(hold for hold in holds if hold.end is None), *both]


class Housekeeping:
    """The housekeeping of the journal in ``folder``. ``start`` it, notify it of each new segment, ``stop`` it.

    ``rounds``, ``compacted``, ``deleted`` and ``failures`` count what happened since the start.
    """

    def __init__(self, folder: Path, limits: KeepLimits, *, compact: bool = True) -> None:
        self.rounds = 0
        self.compacted = 0
        self.deleted = 0
        self.failures = 0
        self._folder = folder
        self._limits = limits
        self._compact = compact
        self._state_wanted: int | None = None
        self._state_needed = False
        self._forced: float | None = None
        self._clock: AgeClock | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._code = 0
        self._damaged: set[str] = set()
        self._told = ""
        self._journal: Journal | None = None
        self._holds: list[Hold] = []
        self._holding = threading.Lock()
        self._hurry_until = 0.0

    def start(self) -> None:
        """Begin, with a first round at once: the last hub may have been killed in the middle of one."""
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="polywire-housekeeping", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """There is something to do. From any thread; it never waits."""
        self._wake.set()

    def segment_begun(self, first_offset: int) -> None:
        """The rows before this offset will not change any more. From any thread; it never waits."""
        self._state_wanted = first_offset
        self._wake.set()

    def hold(self, first: int, end: int | None = None) -> Hold:
        """Delete nothing from this offset on until both snapshots that are kept are behind the hold's ``end``.

        A delivery may refer to a message far before it. A snapshot gets the message's body from its row, which must
        not be deleted before. From any thread; it never waits.
        """
        hold = Hold(first, end)
        with self._holding:
            if len(self._holds) >= MOST_HOLDS:
                self._holds = joined(self._holds)
            self._holds.append(hold)
        return hold

    def need_snapshot(self, offset: int) -> None:
        """Write the hub's state just before this offset down, whether that is due or not."""
        self._state_needed = True
        self.segment_begun(offset)

    def stop(self) -> None:
        """End, leaving off a compaction that is in flight; the next start does it again."""
        self._stopping.set()
        self._wake.set()
        with self._guard:
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def round(self) -> Done:
        """Do everything there is to do now, in this thread."""
        done = Done()
        try:
            with housekeeping_lock(self._folder):
                clear_leftovers(self._folder)
                self._snapshot(done)
                self._work(done)
        except HousekeepingBusy as error:
            log.info("%s", error)
        except Exception as error:
            # Whatever it is, the hub must keep running.
            log.warning("housekeeping of the journal failed", exc_info=True)
            done.failures.append(str(error))
        self.rounds += 1
        self.compacted += len(done.compacted)
        self.deleted += len(done.deleted)
        self.failures += len(done.failures)
        return done

    def _snapshot(self, done: Done) -> None:
        """Write a snapshot of the hub's state, so that older rows need not be read at startup and may be deleted.

        If that fails, the rest is done anyway: it may free disk space.
        """
        offset = self._state_wanted
        if offset is None or not (self._state_needed or due(self._folder, offset)):
            return
        answer = self._run_apart("polywire.journal.snapshots", str(self._folder), str(offset))
        if isinstance(answer, str):
            if not self._stopping.is_set():
                log.warning("writing a snapshot of the hub's state failed and will be retried: %s", answer)
                done.failures.append(answer)
            return
        saved = Saved(**answer)
        done.saved.append(saved)
        self._state_needed = False
        if self._state_wanted == offset:
            self._state_wanted = None
        for lost in saved.lost:
            log.error("the hub's state in %s may be incomplete: %s", saved.name, lost)
        size = saved.octets / _NICE_SIZES
        log.info("wrote a snapshot of the hub's state to %s: %.1f MiB in %.1f s", saved.name, size, saved.seconds)

    def _run(self) -> None:
        period = PERIOD if self._limits.seconds else None
        while True:
            self._wake.wait(period)
            self._wake.clear()
            if self._stopping.is_set():
                return
            self.round()

    def _work(self, done: Done) -> None:
        """Compact one segment after the other, the oldest first, and delete in between.

        A busy hub closes segments faster than they are compacted. What goes anyway is then not compacted first, and
        the limits are kept meanwhile.
        """
        tried: set[str] = set()
        while not self._stopping.is_set():
            waiting = [path for path in self._compactable() if path.name not in tried]
            if len(waiting) != 1:
                self._retain(done)
                waiting = [path for path in waiting if path.exists()]
            if not waiting:
                return
            tried.add(waiting[0].name)
            self._compact_next(waiting[0], done)
            if self._wake.is_set() and not self._stopping.is_set():
                self._wake.clear()
                self._snapshot(done)

    def _compactable(self) -> list[Path]:
        return [path for path in compactable(self._folder) if path.name not in self._damaged] if self._compact else []

    def _compact_next(self, path: Path, done: Done) -> None:
        result = self._compact_one(path)
        if isinstance(result, Compacted):
            done.compacted.append(result)
            log.info(
                "compacted %s: %d rows, %.1f MiB became %.1f, in %.1f s",
                path.name,
                result.rows,
                result.octets_before / _NICE_SIZES,
                result.octets / _NICE_SIZES,
                result.seconds,
            )
        elif not self._stopping.is_set():
            done.failures.append(result)
            log.warning("%s was not compacted and is left unchanged: %s", path.name, result)

    def _compact_one(self, path: Path) -> Compacted | str:
        """Compact in a process of its own; what went wrong where it did."""
        answer = self._run_apart("polywire.journal.compaction", str(path))
        if not isinstance(answer, str):
            return Compacted(**answer)
        if self._code == DAMAGED:
            # It does not repair itself, so reading it again each time would be useless.
            self._damaged.add(path.name)
        return answer

    def _run_apart(self, *words: str) -> dict[str, Any] | str:
        """Run a module with arguments in a process of its own. Its answer, or what went wrong."""
        hurry = time.monotonic() < self._hurry_until
        if not hurry:
            try:
                return self._attempt(*words, seconds=MODEST_SECONDS)
            except subprocess.TimeoutExpired:
                self._hurry_until = time.monotonic() + HURRY_SECONDS
        return self._attempt(*words, HURRY)

    def _attempt(self, *words: str, seconds: float | None = None) -> dict[str, Any] | str:
        """Run it, for so long at most. ``TimeoutExpired`` where it took longer, and has been ended."""
        command = [sys.executable, "-c", _WORK, *words]
        ours, theirs = os.pipe()
        try:
            with self._guard:
                if self._stopping.is_set():
                    return "stopped"
                self._process = process = subprocess.Popen(  # noqa: S603 - our own module
                    command,
                    stdin=ours,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for the hub, which drains first
                )
            try:
                answer, said = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise
        finally:
            os.close(ours)
            os.close(theirs)
            with self._guard:
                self._process = None
        self._code = process.returncode
        if process.returncode == 0:
            found: dict[str, Any] = json.loads(answer)
            return found
        return said.strip().rpartition("\n")[2] or f"the process ended with {process.returncode}"

    def _retain(self, done: Done) -> None:
        remove_old_states(self._folder)
        if not self._limits.octets and not self._limits.seconds:
            return
        readers = list(NamedReaders(self._folder))
        for reader in readers:
            if reader.problem:
                log.warning("%s; until then everything is kept", reader.problem)
        if self._journal is None:
            self._journal = open_journal(self._folder)
        self._journal.refresh()
        segments = self._journal.segments()
        sizes = self._journal.storage.sizes()
        plan = plan_retention(
            [replace(each, octets=each.octets + sizes.get(_index_name(each), 0)) for each in segments],
            self._limits,
            now=self._now(segments),
            state_offset=self._needed_from(),
            readers=readers,
            other_octets=sum(size for name, size in sizes.items() if _is_beside(name)),
        )
        for segment in plan.delete:
            delete_segment(self._folder, segment.first_offset)
            done.deleted.append(segment.name)
        if plan.delete:
            sync_folder(self._folder)
            size = sum(segment.octets for segment in plan.delete) / _NICE_SIZES
            log.info(
                "deleted %d segments (%.1f MiB); the journal now starts at offset %d",
                len(plan.delete),
                size,
                plan.delete[-1].end_offset,
            )
        if plan.overdue and HELD_BY_STATE in plan.held_by:
            self._force_snapshot()
        held = ", ".join(plan.held_by)
        if held != self._told:
            self._told = held
            if held:
                log.warning("the journal keeps more than its limits allow: %s still needs it", held)

    def _needed_from(self) -> int:
        """From where on rows are needed, to start the hub or to write its state down the next time."""
        offset = state_offset(self._folder)
        with self._holding:
            self._holds = [hold for hold in self._holds if hold.end is None or hold.end > offset]
            return min([offset, *(hold.first for hold in self._holds)])

    def _now(self, segments: list[Segment]) -> datetime:
        """The time that rows' ages are measured by."""
        if not self._limits.seconds:
            return datetime.now(UTC)
        if self._clock is None:
            self._clock = AgeClock(max((each.max_time for each in segments if each.max_time is not None), default=None))
        return self._clock.now()

    def _force_snapshot(self) -> None:
        """Rows are too old and only the lack of a snapshot holds them: write one although it is not due.

        Not more often than files are closed for their age, so that a large state is not written all the time.
        """
        now = time.monotonic()
        if self._state_wanted is not None and (
            self._forced is None or now - self._forced >= segment_seconds(self._limits.seconds)
        ):
            self._forced = now
            self._state_needed = True
            self._wake.set()


def segment_seconds(keep_time: float) -> float:
    """How long rows go into one file. Whole files are deleted, so that is how much too old some rows may become."""
    return max(keep_time / FILES_OF_KEEP_TIME, LEAST_SEGMENT_SECONDS) if keep_time else 0.0


@contextlib.contextmanager
def housekeeping_lock(folder: Path) -> Iterator[None]:
    """Be the only one who replaces or deletes files of the journal, or ``HousekeepingBusy``."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HousekeepingBusy(folder) from None
        yield
    finally:
        os.close(descriptor)


def clear_leftovers(folder: Path) -> None:
    """Remove what a compaction or deletion that was killed has left; only under the lock."""
    names = [path.name for path in folder.iterdir()]
    segments = [segment for segment in map(parse_name, names) if segment is not None]
    first = min((segment.first_offset for segment in segments), default=0)
    for name in names:
        part = name.endswith(PART_SUFFIX) and parse_name(name.removesuffix(PART_SUFFIX)) is not None
        # The index of a segment that is gone. Only of one before all others: the writer may be creating the newest.
        index = offset_of(name, INDEX)
        part = part or (index is not None and index < first)
        if part or offset_of(name, UNFINISHED) is not None:
            (folder / name).unlink(missing_ok=True)
    for segment in segments:
        if segment.format == PARQUET:
            remove_original(folder / segment.name)


def state_offset(folder: Path) -> int:
    """From where on rows are needed to start the hub, whichever of the snapshots that are kept can be read."""
    offsets = _state_offsets(folder)
    return offsets[-STATES_KEPT] if len(offsets) >= STATES_KEPT else 0


def remove_old_states(folder: Path) -> None:
    """Remove the snapshots that later ones have replaced."""
    for offset in _state_offsets(folder)[:-STATES_KEPT]:
        (folder / segment_name(offset, STATE)).unlink(missing_ok=True)


def delete_segment(folder: Path, first_offset: int) -> None:
    """Delete a segment and everything beside it: first the rows, so that nothing is left that looks whole."""
    for suffix in (PARQUET, ARROW, INDEX, STATE):
        (folder / segment_name(first_offset, suffix)).unlink(missing_ok=True)
    for path in folder.glob(segment_name(first_offset, "torn-*")):
        path.unlink(missing_ok=True)


def _state_offsets(folder: Path) -> list[int]:
    return sorted(offset for path in folder.iterdir() if (offset := offset_of(path.name, STATE)) is not None)


def _index_name(segment: Segment) -> str:
    return segment_name(segment.first_offset, INDEX)


def _is_beside(name: str) -> bool:
    """Whether this is a file of the journal that belongs to no segment: a snapshot, or what recovery has kept."""
    stem, _, suffix = name.partition(".")
    return stem.isdigit() and (suffix == STATE or suffix.startswith("torn-"))
