"""What the journal remembers, put back into a hub that starts."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec.json

from polywire.hub.access import AccessRules, Identity
from polywire.hub.channels import from_stars, is_literal
from polywire.hub.client import Client
from polywire.hub.counters import Counters
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.message import Date, FailedAttachment, Headers, Message
from polywire.hub.outbox import Nowhere, Outbox
from polywire.hub.peer import Limits
from polywire.hub.queues import Delivery
from polywire.journal.kinds import BINARY_FLAG, NO_PROTOCOL, PATTERN_FLAG, QOS_MASK, QOS_SHIFT, RETAIN_FLAG
from polywire.journal.reader import open_journal
from polywire.protocols.fmqp.frames import forwarded
from polywire.protocols.mqtt.frames import Publish, Pubrel
from polywire.protocols.mqtt.kept import Snapshot, sessions_of
from polywire.registry import by_name
from polywire.server.parts import PREFIX, note, restore_query, undelivered

Row = dict[str, Any]

NOT_KEPT = "the attachment failed"
"""The text of a failed attachment that comes from the journal, which keeps a null in its place."""


def restore(hub: Hub, rows: Iterable[Row], limits: Limits, wills: list[Row]) -> tuple[int, int, int]:
    """Put retained messages, queues and MQTT sessions back. Returns how many messages of each, and sessions.

    ``rows`` are those of ``polywire.journal.state``, in the order of their offsets. Those of last wills are added to
    ``wills``, for ``publish_wills`` when everything else is back.
    """
    retained = queued = 0
    sessions: dict[str, _Session] = {}
    waiting: dict[int, Delivery] = {}  # by the offset
    for row in rows:
        kind = row["kind"]
        if kind in {"publish", "retain"}:
            hub.retained.keep(message_of(row, retain=True))
            retained += 1
        elif kind == "enqueue":
            queue = hub.queue(row["channel"][len(QUEUE_PREFIX) :])
            waiting[row["offset"]] = queue.enter(message_of(row, retain=False))
            queued += 1
        elif kind == "nack":
            delivery = waiting.get(int(row["correlation"]))
            if delivery is not None:
                delivery.attempts = msgspec.json.decode(row["headers"])["deliveries"]
        elif kind == "will":
            wills.append(row)
        elif row["client"].startswith(PREFIX) and row["protocol"] is None:
            restore_query(hub, row)
        elif row["protocol"] == "mqtt":
            sessions.setdefault(row["client"], _Session(row["client"])).take(row)
    book = sessions_of(hub, by_name("mqtt").code)
    found = [session.snapshot() for session in sessions.values()]
    for snapshot in sorted(found, key=lambda each: each.away_since or math.inf):  # the order in which they get too old
        book.restore(snapshot, limits)
    return retained, queued, len(sessions)


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
                message = message_of(row, retain=False)
                channel = message.channel
                found = hub.table.route(channel).subscriptions if is_literal(channel) else hub.table.meeting(channel)
                for subscription in found:
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
        about = msgspec.json.decode(row["headers"])
        if number not in clients:
            client = _departed(hub, number, row["protocol"])
            client.name = row["client"] or ""
            client.identity = Identity(about["user"], about["groups"], about["how"])
            client.grants = rules.grants(client.identity, row["protocol"])
            clients[number] = client
        message = message_of(row | {"headers": None}, retain=bool(row["flags"] & RETAIN_FLAG))  # they are not its own
        if about["mark"]:
            octets = forwarded(row["channel"], row["body"], about["mark"])
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


def message_of(row: Row, *, retain: bool) -> Message:
    """The message a row tells of."""
    flags = row["flags"]
    channel = from_stars(row["channel"], rest=False) if flags & PATTERN_FLAG else row["channel"]
    message = Message(
        channel,
        row["body"],
        row["content_type"] or "",
        headers_of(row["headers"]),
        tuple(FailedAttachment(NOT_KEPT) if each is None else each for each in row["attachments"] or ()),
        retain,
        time_of(row),
        row["connection"],
        (flags & QOS_MASK) >> QOS_SHIFT,
        binary=bool(flags & BINARY_FLAG),
    )
    message.offset = row["offset"]
    return message


def time_of(row: Row) -> int:
    """A row's time, in nanoseconds."""
    return int(row["ts"].timestamp() * 1_000_000) * 1000


def headers_of(text: str | None) -> Headers:
    """Headers as the journal has them, read again."""
    if not text:
        return ()
    return tuple(
        (name, Date(value["date"]) if isinstance(value, dict) else value)
        for name, value in msgspec.json.decode(text).items()
    )


class _Session:
    """One MQTT session's rows, gathered."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._user = ""
        self._away_since = 0
        self._doubtful = 0
        self._bridge = False
        self._groups: tuple[str, ...] = ()
        self._how = ""
        self._filters: list[tuple[str, int]] = []
        self._held: set[int] = set()
        self._due: dict[int, Publish] = {}  # by the offset of the delivery
        self._packets: dict[int, int] = {}
        self._released: dict[int, int] = {}

    def take(self, row: Row) -> None:
        """One row, in order."""
        kind, flags = row["kind"], row["flags"]
        qos = (flags & QOS_MASK) >> QOS_SHIFT
        if kind == "session":
            headers = msgspec.json.decode(row["headers"] or "{}")
            self._user = row["correlation"] or ""
            self._away_since = time_of(row) if "away" in headers else 0
            self._doubtful = headers.get("away", 0)
            self._bridge = headers.get("bridge", False)
            self._groups = tuple(headers.get("groups", ()))
            self._how = headers.get("how", "")
        elif kind == "subscribe":
            self._filters.append((row["channel"], qos))
        elif kind == "hold":
            self._held.add(int(row["correlation"]))
        elif kind == "deliver":
            self._due[row["offset"]] = Publish(row["channel"], row["body"], qos, bool(flags & RETAIN_FLAG))
            if row["headers"]:
                self._packets[row["offset"]] = _packet(row)
        elif kind == "sent":
            self._packets[int(row["correlation"])] = _packet(row)
        elif kind == "received":
            self._released[int(row["correlation"])] = _packet(row)

    def snapshot(self) -> Snapshot:
        """The session as it was.

        MQTT-198: rows that say that a message with QoS 1 was sent are written after it was, and may be missing. So
        where the client was there to the end, whatever waited may have been sent; this is remembered until it is sent.
        """
        if self._due and not self._away_since:
            self._doubtful = max(self._due) + 1
        unfinished: list[Publish | Pubrel] = []
        names: list[tuple[int, int]] = []
        waiting: list[int] = []
        for offset, frame in self._due.items():
            packet = self._packets.get(offset)
            if packet is None:
                waiting.append(offset)
            else:
                unfinished.append(Publish(frame.topic, frame.payload, frame.qos, frame.retain, False, packet))
                names.append((packet, offset))
        for offset, packet in self._released.items():
            unfinished.append(Pubrel(packet))
            names.append((packet, offset))
        return Snapshot(
            self._client_id,
            self._user,
            tuple(self._filters),
            tuple(unfinished),
            frozenset(self._held),
            tuple(self._again(offset) for offset in waiting),
            tuple(names),
            tuple(waiting),
            self._away_since,
            self._doubtful,
            self._bridge,
            self._groups,
            self._how,
        )

    def _again(self, offset: int) -> Publish:
        """A message that waits, with DUP where it may have been sent before."""
        frame = self._due[offset]
        if frame.qos != 1 or offset >= self._doubtful:
            return frame
        return Publish(frame.topic, frame.payload, frame.qos, frame.retain, True)


def _packet(row: Row) -> int:
    return int(msgspec.json.decode(row["headers"])["packet"])
