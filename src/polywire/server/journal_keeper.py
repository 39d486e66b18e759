"""A running hub's journal, from its opening to its end: recovered, read back, written, snapshot, kept small."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

from polywire.hub.hub import Hub
from polywire.journal.errors import JournalLoss
from polywire.journal.housekeeping import Housekeeping, KeepLimits, segment_seconds
from polywire.journal.log import Log
from polywire.journal.recovery import RecoveryReport
from polywire.journal.snapshots import State, state_of
from polywire.server.config.schema import Journal
from polywire.server.gate import Gate
from polywire.server.journaling import Journaling
from polywire.server.parts import undelivered_from
from polywire.server.restoring import deliver_parts, publish_wills, restore

SNAPSHOT_AFTER = 50_000
"""Rows of state that a start may have to look at before it leaves a snapshot for the next one."""

log = logging.getLogger("polywire.journal")


class JournalKeeper:
    """Opens the journal, puts back into the hub what it remembers, and records from then on."""

    def __init__(self, config: Journal, hub: Hub, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        node = config.node or socket.gethostname()
        self._gate = gate
        journal = Log(
            config.path,
            node=node,
            fsync=config.fsync,
            segment_octets=config.segment_size,
            segment_seconds=segment_seconds(config.keep_time),
            refuse_loss=config.on_loss == "refuse",
        )
        _report(journal.recovery)
        try:
            state = _state(config, journal)
        except BaseException:
            journal.close()
            raise
        limits = KeepLimits(config.keep_size, config.keep_time, for_readers=config.keep_for_readers)
        self._housekeeping = Housekeeping(config.path, limits, compact=config.compact)
        journal.on_roll = self._housekeeping.segment_begun
        strict = config.on_failure == "refuse"
        self._journaling = Journaling(hub, gate.turns, journal, loop, fsync=config.fsync, strict=strict)
        self._journaling.hold = self._housekeeping.hold
        wills: list[dict[str, Any]] = []
        counts = restore(hub, _rows(state), gate.limits, wills)
        gate.renew_stored()
        gate.journaling = self._journaling
        words = "journal %s, %d rows; put back: %d retained messages, %d in queues, %d MQTT sessions"
        log.info(words, config.path, journal.next_offset, *counts)
        referred = [first for first in (state.first_reference(), *undelivered_from(hub)) if first is not None]
        delivered = deliver_parts(hub, config.path)
        if referred:
            self._housekeeping.hold(min(referred), self._journaling.recorder.next_offset())
        if delivered:
            log.info("%d messages of parts that were published last are now stored for MQTT sessions", delivered)
        publish_wills(hub, wills, gate.rules)
        if wills:
            log.warning("the last hub was killed: %d last wills of its clients are published now", len(wills))
        if state.lost:  # the next start need not tell of it, nor refuse for it
            self._housekeeping.need_snapshot(state.offset)
        elif state.folded > SNAPSHOT_AFTER:
            self._housekeeping.segment_begun(state.offset)
        self._housekeeping.start()

    async def close(self) -> None:
        """Write what is left and let go of the journal."""
        self._gate.journaling = None
        await asyncio.to_thread(self._housekeeping.stop)
        await self._journaling.close()


def _state(config: Journal, journal: Log) -> State:
    state = state_of(config.path, to_offset=journal.next_offset)
    if state.lost and config.on_loss == "refuse":
        raise JournalLoss(str(config.path), "; ".join(state.lost))
    for lost in state.lost:
        log.error("the hub's state may be incomplete: %s", lost)
    return state


def _rows(state: State) -> Iterator[dict[str, Any]]:
    for batch in state.batches():
        yield from batch.to_pylist()


def _report(recovery: RecoveryReport) -> None:
    """Log what the last writer left that was not right."""
    if recovery.lost:
        words = "the journal has lost rows: %s; their offsets are not used again; 'polywire journal verify' lists them"
        log.error(words, recovery)
    elif recovery.damage:
        log.error("the journal is damaged: %s; 'polywire journal verify' shows all of it", recovery)
    elif recovery.octets:
        log.warning("the last hub was cut off while it wrote rows that it had not acknowledged: %s", recovery)
