"""A running hub's journal, from its opening to its end: recovered, read back, written, snapshot, kept small."""

import asyncio
import logging
import socket

from polywire.hub.hub import Hub
from polywire.journal.housekeeping import Housekeeping
from polywire.journal.log import Log
from polywire.journal.recovery import RecoveryReport
from polywire.journal.retention import KeepLimits
from polywire.journal.snapshots import save, state_of
from polywire.server.config.schema import Journal
from polywire.server.gate import Gate
from polywire.server.journaling import Journaling
from polywire.server.restoring import restore

SNAPSHOT_AFTER = 50_000
"""Rows of state that a start may have to look at before it leaves a snapshot for the next one."""

FILES_OF_KEEP_TIME = 10
"""Into how many files at least the rows of ``keep_time`` go."""

LEAST_SEGMENT_SECONDS = 60.0

log = logging.getLogger("polywire.journal")


class JournalKeeper:
    """Opens the journal, puts back into the hub what it remembers, and records from then on."""

    def __init__(self, config: Journal, hub: Hub, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        node = config.node or socket.gethostname()
        self._folder = config.path
        self._gate = gate
        self._rolled: int | None = None
        journal = Log(
            config.path,
            node=node,
            fsync=config.fsync,
            segment_octets=config.segment_size,
            segment_seconds=segment_seconds(config.keep_time),
        )
        _tell(journal.recovery)
        try:
            state = state_of(config.path, to_offset=journal.next_offset)
            if state.folded > SNAPSHOT_AFTER:
                save(config.path, state)
        except BaseException:
            journal.close()
            raise
        limits = KeepLimits(config.keep_size, config.keep_time, for_readers=config.keep_for_readers)
        self._housekeeping = Housekeeping(config.path, limits, compact=config.compact, before=self._snapshot)
        journal.on_roll = self._segment_closed
        self._journaling = Journaling(hub, journal, loop, fsync=config.fsync, strict=config.on_failure == "refuse")
        counts = restore(hub, state.rows.to_pylist(), gate.limits)
        gate.journaling = self._journaling
        words = "journal %s, %d rows; put back: %d retained messages, %d in queues, %d MQTT sessions"
        log.info(words, config.path, journal.next_offset, *counts)
        self._housekeeping.start()

    async def close(self) -> None:
        """Write what is left and let go of the journal."""
        self._gate.journaling = None
        await asyncio.to_thread(self._housekeeping.stop)
        await self._journaling.close()

    def _segment_closed(self, first_offset: int) -> None:
        """In the committer's thread: the rows before this offset will not change any more."""
        self._rolled = first_offset
        self._housekeeping.kick()

    def _snapshot(self) -> None:
        """In the housekeeper's thread: write the state down, so that what is before it need not be read at a start."""
        rolled = self._rolled
        if rolled is not None:
            save(self._folder, state_of(self._folder, to_offset=rolled))
            if self._rolled == rolled:
                self._rolled = None


def segment_seconds(keep_time: float) -> float:
    """How long rows go into one file. Whole files are deleted, so that is how much too old some rows may become."""
    return max(keep_time / FILES_OF_KEEP_TIME, LEAST_SEGMENT_SECONDS) if keep_time else 0.0


def _tell(recovery: RecoveryReport) -> None:
    """Say what the last writer left that was not right."""
    if recovery.safe_rows or recovery.damage:
        log.error("the journal is damaged: %s; 'polywire journal verify' shows all of it", recovery)
    elif recovery.octets:
        log.warning("the last hub was cut off while it wrote, and nobody was told that this is safe: %s", recovery)
