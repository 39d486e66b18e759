"""Housekeeping of a journal that is being written: closed segments are compacted, those no longer kept are deleted.

A thread does it, whenever it is told that a segment was closed, and now and then for the sake of age. Nothing that goes
wrong here touches the hub: it is logged, counted, and tried again the next time.
"""

import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from polywire.journal.compaction import DAMAGED, PART_SUFFIX, Compacted, compactable, remove_original
from polywire.journal.errors import JournalError
from polywire.journal.reader import Journal, open_journal
from polywire.journal.readers import NamedReaders
from polywire.journal.retention import KeepLimits, plan_retention
from polywire.journal.segments import ARROW, INDEX, PARQUET, STATE, parse_name, segment_name, sync_folder
from polywire.journal.snapshots import UNFINISHED

LOCK_NAME: Final = "housekeeping.lock"
"""Held while files are replaced or deleted, so that a command and a hub don't do it at once."""

PERIOD: Final = 600.0
"""Seconds after which age is looked at again, where nothing else happens."""

STATES_KEPT: Final = 2
"""Snapshots of the hub's state that are kept: with the older one it starts even if the newer one is damaged."""

_NICE_SIZES: Final = 1 << 20
log = logging.getLogger("polywire.journal")


class HousekeepingBusy(JournalError):  # noqa: N818 - what happened, as with JournalLocked
    """Another process is compacting or deleting in this journal."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: another process compacts or deletes here; try again when it is done")
        self.folder = folder


@dataclass(slots=True)
class Done:
    """What one round did."""

    compacted: list[Compacted] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Housekeeping:
    """The housekeeping of the journal in ``folder``. ``start`` it, ``kick`` it after each roll, ``stop`` it.

    ``before`` is called at the beginning of each round.
    ``rounds``, ``compacted``, ``deleted`` and ``failures`` count what happened since the start.
    """

    def __init__(
        self, folder: Path, limits: KeepLimits, *, compact: bool = True, before: Callable[[], None] | None = None
    ) -> None:
        self.rounds = 0
        self.compacted = 0
        self.deleted = 0
        self.failures = 0
        self._folder = folder
        self._limits = limits
        self._compact = compact
        self._before = before
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._damaged: set[str] = set()
        self._told = ""
        self._journal: Journal | None = None

    def start(self) -> None:
        """Begin, with a first round at once: the last hub may have been killed in the middle of one."""
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="polywire-housekeeping", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """There is something to do: a segment was closed. From any thread; it never waits."""
        self._wake.set()

    def stop(self) -> None:
        """End, leaving off a compaction that is under way; the next start does it again."""
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
                self._prepare(done)
                self._work(done)
        except HousekeepingBusy as error:
            log.info("%s", error)
        except Exception as error:
            # Whatever it is, the hub has to go on.
            log.warning("housekeeping of the journal failed", exc_info=True)
            done.failures.append(str(error))
        self.rounds += 1
        self.compacted += len(done.compacted)
        self.deleted += len(done.deleted)
        self.failures += len(done.failures)
        return done

    def _prepare(self, done: Done) -> None:
        """What is to be done before; if it fails, the rest is done all the same: it may be what makes room again."""
        if self._before is None:
            return
        try:
            self._before()
        except Exception as error:
            log.warning("the hub's state could not be written down; it is tried again", exc_info=True)
            done.failures.append(str(error))

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
                self._prepare(done)

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
            log.warning("%s was not compacted, and stays as it is: %s", path.name, result)

    def _compact_one(self, path: Path) -> Compacted | str:
        """Compact in a process of its own; what went wrong where it did."""
        command = [sys.executable, "-m", "polywire.journal.compaction", str(path)]
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
            answer, words = process.communicate()
        finally:
            os.close(ours)
            os.close(theirs)
            with self._guard:
                self._process = None
        if process.returncode == 0:
            return Compacted(**json.loads(answer))
        if process.returncode == DAMAGED:
            # It does not mend itself, and reading it again each time would be work for nothing.
            self._damaged.add(path.name)
        return words.strip().rpartition("\n")[2] or f"the process ended with {process.returncode}"

    def _retain(self, done: Done) -> None:
        if not self._limits.octets and not self._limits.seconds:
            remove_old_states(self._folder)
            return
        readers = list(NamedReaders(self._folder))
        for reader in readers:
            if reader.problem:
                log.warning("%s; until then everything is kept", reader.problem)
        if self._journal is None:
            self._journal = open_journal(self._folder)
        self._journal.refresh()
        plan = plan_retention(
            self._journal.segments(),
            self._limits,
            now=datetime.now(UTC),
            state_offset=state_offset(self._folder),
            readers=readers,
        )
        for segment in plan.delete:
            delete_segment(self._folder, segment.first_offset)
            done.deleted.append(segment.name)
        if plan.delete:
            sync_folder(self._folder)
            size = sum(segment.octets for segment in plan.delete) / _NICE_SIZES
            log.info(
                "deleted %d segments (%.1f MiB); the journal begins at %d now",
                len(plan.delete),
                size,
                plan.delete[-1].end_offset,
            )
        remove_old_states(self._folder)
        held = ", ".join(plan.held_by)
        if held != self._told:
            self._told = held
            if held:
                log.warning("the journal keeps more than its limits say: %s still needs it", held)


@contextlib.contextmanager
def housekeeping_lock(folder: Path) -> Iterator[None]:
    """Be the only one who replaces or deletes files of the journal, or ``HousekeepingBusy``."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
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
    newest_state = max(_state_offsets(folder), default=0)
    segments = [segment for segment in map(parse_name, names) if segment is not None]
    first = min((segment.first_offset for segment in segments), default=0)
    for name in names:
        part = name.endswith(PART_SUFFIX) and parse_name(name.removesuffix(PART_SUFFIX)) is not None
        # The index of a segment that is gone. Only of one before all others: the writer may be creating the newest.
        part = part or _offset_of(name, INDEX, first) < first
        # A snapshot that was not finished. Only one that is out of date: the hub may be writing the newest.
        part = part or _offset_of(name, UNFINISHED, newest_state) < newest_state
        if part:
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
    offsets = (_offset_of(path.name, STATE, -1) for path in folder.iterdir())
    return sorted(offset for offset in offsets if offset >= 0)


def _offset_of(name: str, wanted: str, other: int) -> int:
    """The offset a file with this suffix is named by, or ``other`` where the file is something else."""
    stem, _, suffix = name.partition(".")
    segment = parse_name(f"{stem}.{ARROW}") if suffix == wanted else None
    return other if segment is None else segment.first_offset
