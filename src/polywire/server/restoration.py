"""A running hub's journal, from its opening to its end: recovered, restored into the hub, written, compacted.

The restored state includes which parts of which query the pipeline published, and by whom. A part takes two steps.
First its messages and a note go to the journal as one batch, so that either all of it is there or nothing. Then the
messages are delivered, which may leave rows of its own for sessions that are kept; a second note, after those rows,
marks this as done. A hub that finds only the first note at startup repeats the second step.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, final

from polywire.fabric.fabric import HEARD_PREFIX, heard_of
from polywire.fabric.queues import REQUESTS_PREFIX, requests_done
from polywire.hub.access import AccessRules
from polywire.hub.client import Client, Counters
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.outbox import Nowhere, Outbox
from polywire.hub.peer import Limits
from polywire.hub.queues import Delivery
from polywire.hub.recorder import Recorder, message_of, will_of
from polywire.journal.errors import JournalLoss
from polywire.journal.housekeeping import Housekeeping, KeepLimits, segment_seconds
from polywire.journal.kinds import NO_PROTOCOL
from polywire.journal.log import Log
from polywire.journal.reader import open_journal
from polywire.journal.recovery import RecoveryReport
from polywire.journal.snapshots import State, state_of
from polywire.journal.state import KeptSession, Row, to_json
from polywire.journal.state import restore as read_state
from polywire.protocols.fmqp.frames import forwarded
from polywire.protocols.mqtt.frames import Publish, Pubrel
from polywire.protocols.mqtt.kept import Snapshot, sessions_of
from polywire.registry import by_name
from polywire.server.config.schema import Journal
from polywire.server.gate import Gate
from polywire.server.journal import Journaling

SHARED: Final = "ingest"
"""Where the hub keeps the queries, in ``Hub.shared``."""

PREFIX: Final = "sink:"
"""Begins the names under which the journal has them."""

ROWS: Final = "rows"
USER: Final = "user"


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of which batch of which query."""

    query: str
    batch: int
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """Its position among the parts of its query."""
        return self.batch, self.number


@dataclass(slots=True)
class Progress:
    """How far a query has got. ``user`` owns it; None for one of a journal that knew no owners.

    ``undelivered`` are the offsets, from and to, of the messages of its last part that may not be delivered yet.
    """

    place: tuple[int, int]
    user: str | None
    undelivered: tuple[int, int] | None = None


def queries(hub: Hub) -> dict[str, Progress]:
    """All queries by name."""
    return cast("dict[str, Progress]", hub.shared.setdefault(SHARED, {}))


def note(recorder: Recorder, part: Part, user: str, *, rows: int = 0) -> None:
    """Record that a part is there: all of it, or that its messages are the ``rows`` before this one."""
    known: dict[str, object] = {USER: user} if not rows else {USER: user, ROWS: rows}
    recorder.applied(PREFIX + part.query, f"{part.batch}:{part.number}", to_json(known))


def restore_query(hub: Hub, kept: KeptSession) -> None:
    """Take over what the journal remembers."""
    batch, _, number = kept.user.partition(":")
    progress = Progress((int(batch), int(number)), kept.about.get(USER))
    if ROWS in kept.about:
        progress.undelivered = (kept.offset - kept.about[ROWS], kept.offset)
    queries(hub)[kept.name.removeprefix(PREFIX)] = progress


def undelivered_from(hub: Hub) -> list[int]:
    """Where the messages begin of each part that is to be delivered again."""
    return [progress.undelivered[0] for progress in queries(hub).values() if progress.undelivered is not None]


def undelivered(hub: Hub) -> Iterable[tuple[Part, Progress]]:
    """The queries whose last part is to be delivered again."""
    for query, progress in queries(hub).items():
        if progress.undelivered is not None:
            yield Part(query, *progress.place), progress


@final
class _Memory:
    """Puts messages back into a hub, and collects its last wills."""

    def __init__(self, hub: Hub, wills: list[Row]) -> None:
        self.retained = 0
        self.queued = 0
        self._hub = hub
        self._wills = wills
        self._waiting: dict[int, Delivery] = {}  # by the offset

    def retain(self, row: Row) -> None:
        self._hub.retained.keep(message_of(row))
        self.retained += 1

    def enqueue(self, row: Row) -> None:
        queue = self._hub.queue(row["channel"][len(QUEUE_PREFIX) :])
        self._waiting[row["offset"]] = queue.enter(message_of(row))
        self.queued += 1

    def redeliver(self, offset: int, deliveries: int) -> None:
        delivery = self._waiting.get(offset)
        if delivery is not None:
            delivery.attempts = deliveries

    def will(self, row: Row) -> None:
        self._wills.append(row)


def restore(hub: Hub, rows: Iterable[Row], limits: Limits, wills: list[Row]) -> tuple[int, int, int]:
    """Put retained messages, queues and MQTT sessions back. Returns how many messages of each, and sessions.

    ``rows`` are those of ``polywire.journal.state``, in the order of their offsets. Those of last wills are added to
    ``wills``, for ``publish_wills`` when everything else is back.
    """
    memory = _Memory(hub, wills)
    found = []
    for kept in read_state(rows, memory):
        if kept.protocol is None and kept.name.startswith(PREFIX):
            restore_query(hub, kept)
        elif kept.protocol is None and kept.name.startswith(REQUESTS_PREFIX):
            requests_done(hub)[kept.name.removeprefix(REQUESTS_PREFIX)] = (
                int(kept.user),
                kept.about.get("refused", []),
            )
        elif kept.protocol is None and kept.name.startswith(HEARD_PREFIX):
            heard_of(hub)[kept.name.removeprefix(HEARD_PREFIX)] = int(kept.user)
        elif kept.protocol == "mqtt":
            found.append(_snapshot(kept))
    book = sessions_of(hub, by_name("mqtt").code)
    for snapshot in sorted(found, key=lambda each: each.away_since or math.inf):  # the order in which they get too old
        book.restore(snapshot, limits)
    return memory.retained, memory.queued, len(found)


def deliver_parts(hub: Hub, folder: Path) -> int:
    """Give the kept sessions what they were not given of parts that were published last. Returns how many messages.

    Only those sessions have subscriptions when a hub starts; queues and retained messages have their own rows.
    """
    delivered = 0
    recorder = hub.recorder
    unfinished = list(undelivered(hub))
    if recorder is None or not unfinished:
        return 0
    journal = open_journal(folder)
    stored = sessions_of(hub, by_name("mqtt").code).stored
    names = {id(each): client for client, state in stored.items() for each in state.away.values()}
    for part, progress in unfinished:
        first, end = progress.undelivered or (0, 0)
        rows = journal.scan(["client", "correlation"], from_offset=end, kinds="deliver", on_corrupt="skip")
        known = {(row["client"], row["correlation"]) for batch in rows for row in batch.to_pylist()}
        for batch in journal.scan(from_offset=first, to_offset=end, kinds="publish", on_corrupt="skip"):
            for row in batch.to_pylist():
                message = message_of(row)
                for subscription in hub.subscribers(message.channel):
                    if (names.get(id(subscription)), str(message.offset)) not in known:
                        subscription.deliver(message)
                        delivered += 1
        progress.undelivered = None
        note(recorder, part, progress.user or "")
    return delivered


def publish_wills(hub: Hub, wills: Iterable[Row], rules: AccessRules) -> None:
    """Publish the last wills of those who were connected when the hub was killed.

    ``wills`` are the rows that ``restore`` has put aside, so that sessions get what they subscribed to. What a client
    may publish is decided by today's rules.
    """
    clients: dict[int, Client] = {}
    for row in wills:
        number = row["connection"]
        message, identity, mark = will_of(row)
        if number not in clients:
            client = _departed(hub, number, row["protocol"])
            client.name = row["client"] or ""
            client.identity = identity
            client.grants = rules.grants(client.identity, row["protocol"])
            clients[number] = client
        if mark:
            octets = forwarded(row["channel"], row["body"], mark)
            message.encoded[clients[number].protocol * 16] = octets or b""
        clients[number].wills.add(message, message.size())
    for client in clients.values():
        hub.send_wills(client)
    hub.work.finish()


def _departed(hub: Hub, number: int, protocol: str) -> Client:
    """A client whose connection ended with the hub before this one. Its protocol may not be installed any more."""
    outbox = Outbox(Nowhere(), hub.flusher)
    known = [each.protocol for each in hub.counters]
    if protocol not in known:
        return Client(number, NO_PROTOCOL, outbox, Counters(protocol))
    place = known.index(protocol)
    client = Client(number, place, outbox, hub.counters[place])
    client.forwards_empty = "an empty body" in by_name(protocol).can
    return client


def _snapshot(kept: KeptSession) -> Snapshot:
    """An MQTT session as it was.

    MQTT-198: rows that say that a message with QoS 1 was sent are written after it was, and may be missing. So where
    the client was there to the end, whatever waited may have been sent; this is remembered until it is sent.
    """
    doubtful = max(kept.due) + 1 if kept.due and not kept.away_since else kept.doubtful
    unfinished: list[Publish | Pubrel] = []
    names: list[tuple[int, int]] = []
    waiting: dict[int, Publish] = {}
    for offset, due in kept.due.items():
        packet = kept.packets.get(offset)
        if packet is None:
            again = due.qos == 1 and offset < doubtful
            waiting[offset] = Publish(due.topic, due.body, due.qos, due.retain, again)
        else:
            unfinished.append(Publish(due.topic, due.body, due.qos, due.retain, dup=False, packet_id=packet))
            names.append((packet, offset))
    for offset, packet in kept.released.items():
        unfinished.append(Pubrel(packet))
        names.append((packet, offset))
    return Snapshot(
        kept.name,
        kept.user,
        tuple(kept.filters.items()),
        tuple(unfinished),
        frozenset(kept.held),
        tuple(waiting.values()),
        tuple(names),
        tuple(waiting),
        kept.away_since,
        doubtful,
        kept.bridge,
        kept.groups,
        kept.how,
    )


SNAPSHOT_AFTER = 50_000
"""Rows of state that a start may have to look at before it leaves a snapshot for the next one."""

log = logging.getLogger("polywire.journal")


class JournalKeeper:
    """Opens the journal, puts back into the hub what it remembers, and records from then on."""

    def __init__(self, config: Journal, node: str, hub: Hub, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
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
        wills: list[Row] = []
        counts = restore(hub, _rows(state), gate.limits, wills)
        gate.renew_stored()
        gate.journaling = self._journaling
        words = "journal %s, %d rows; restored: %d retained messages, %d queued messages, %d MQTT sessions"
        log.info(words, config.path, journal.next_offset, *counts)
        referred = [first for first in (state.first_reference(), *undelivered_from(hub)) if first is not None]
        delivered = deliver_parts(hub, config.path)
        if referred:
            self._housekeeping.hold(min(referred), self._journaling.recorder.next_offset())
        if delivered:
            log.info("%d messages of parts that were published last are now stored for MQTT sessions", delivered)
        publish_wills(hub, wills, gate.rules)
        if wills:
            log.warning("the previous hub was killed: publishing %d last wills of its clients", len(wills))
        if state.lost:  # the next start need not report it, nor refuse because of it
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


def _rows(state: State) -> Iterator[Row]:
    for batch in state.batches():
        yield from batch.to_pylist()


def _report(recovery: RecoveryReport) -> None:
    """Log what the last writer left that was not right."""
    if recovery.lost:
        words = "the journal has lost rows: %s; their offsets will not be reused; 'polywire journal verify' lists them"
        log.error(words, recovery)
    elif recovery.damage:
        log.error("the journal is damaged: %s; 'polywire journal verify' shows all damage", recovery)
    elif recovery.octets:
        log.warning("the previous hub ended while writing rows that it had not acknowledged: %s", recovery)
