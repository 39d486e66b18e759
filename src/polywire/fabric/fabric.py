"""A node's part in a fabric: a link to each other node, and what the hub and its clients get and give over them.

The engine below (``Membership``) reports who is there and carries batches. For each node that joins, a ``Neighbour``
sets up a link, and is a ``Remote`` in the hub's routes: one subscription to all that the clients of that node have
subscribed to. Publications go over the link as they came, in runs, or as messages, and from there to the other node's
own clients only: what came over a link is never sent on.

What waits for a link is in an ``Outbox``, as for a client: a node that is slow, or has to be waited for, is a slow
reader. Its publishers wait for a moment, then its messages are dropped and counted. The link's window is what its
transport takes. In the other direction a node whose own clients are slow handles no more of what came, so that the
other node's window fills.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast, final

import msgspec

from polywire.fabric.frames import (
    LATE,
    VERSION,
    Decoder,
    Hello,
    Interest,
    LinkError,
    Mark,
    Published,
    Ready,
    Record,
    Run,
    RunHead,
    encode,
    encode_run_head,
    message_of,
    published,
)
from polywire.fabric.link import Link, News
from polywire.fabric.membership import Membership
from polywire.fabric.resend import Archive, Heard, Resending
from polywire.hub.channels import REST, is_literal
from polywire.hub.client import Client
from polywire.hub.hub import SERIES, SERIES_SHIFT, Hub, is_service_topic
from polywire.hub.message import Message
from polywire.hub.outbox import DROP, NOWHERE, Outbox, Timer
from polywire.hub.recorder import Runs
from polywire.hub.routes import Remote, RouteTable
from polywire.hub.work import DONE, MORE, WAIT, Job
from polywire.registry import RegistryError, by_name
from polywire.wire.frame import Run as Scanned

TICK: Final = 0.5
"""Seconds between two looks at whether something was lost."""

HAND_OVER_NANOSECONDS: Final = 10_000_000_000
INTRODUCTION_NANOSECONDS: Final = 5_000_000_000
"""How long a node that leaves offers its sessions, and one that joins waits before it lets clients in, at most."""

PAUSE: Final = 0.02
"""Seconds between two looks at whether that is so."""

PATTERNS_AT_ONCE: Final = 500
"""Patterns in one record, when a link is set up."""

DEEPEST_PREFIX: Final = 4
"""Levels of the prefixes that stand for patterns at first; there are fewer where that is still too much."""

SLOW_LINK: Final = "slow-link"
UNENCODABLE: Final = "unencodable-for-link"
"""Why another node did not get a message."""

HEARD: Final = "links"
"""Where the hub keeps up to which offsets it has the journals of other nodes, in ``Hub.shared``."""

HEARD_PREFIX: Final = "link:"
"""Begins the names under which this node's journal has them."""

MARK_ROWS: Final = 1_000_000
"""After so many rows a node is told that it has what it wants of them, so that it need not ask for them again."""

LIVE: Final = 0
HOLDING: Final = 1
BEHIND: Final = 2

LINK_FORM: Final = -1
"""Where a message's record is among the forms that it has been encoded in."""

log = logging.getLogger("polywire.fabric")


def heard_of(hub: Hub) -> dict[str, int]:
    """Up to which offsets a hub has the journals of other nodes."""
    return cast("dict[str, int]", hub.shared.setdefault(HEARD, {}))


@dataclass(frozen=True, slots=True)
class Settings:
    """How much may wait, in bytes: ``window`` for the node that receives it to handle it, ``buffer`` for a link.

    ``policy`` is what becomes of messages beyond that. Of more than so many ``patterns`` of this node's clients, the
    others are told prefixes only.
    """

    window: int = 4 * 1024 * 1024
    buffer: int = 4 * 1024 * 1024
    policy: int = DROP
    patterns: int = 500_000


@final
class Patterns:
    """What this node wants: its clients' patterns, or above ``most`` of them prefixes that stand for many.

    ``changed`` holds what has come (true) and gone since it was last told to the other nodes.
    """

    def __init__(self, table: RouteTable, most: int) -> None:
        self.changed: Final[dict[str, bool]] = {}
        self.depth = -1  # how many levels of a pattern are told; -1 for all
        self._table: Final = table
        self._most: Final = most
        self._count = len(self._own())
        self._prefixes: Counter[str] = Counter()  # how many patterns each stands for, if there are any
        self._fit()

    def note(self, pattern: str, *, wanted: bool) -> None:
        """Clients want a pattern that none has wanted before, or don't want it any more."""
        self._count += 1 if wanted else -1
        if self.depth < 0:
            self._change(pattern, wanted=wanted)
        else:
            prefix = prefix_of(pattern, self.depth)
            self._prefixes[prefix] += 1 if wanted else -1
            if self._prefixes[prefix] == (1 if wanted else 0):
                self._change(prefix, wanted=wanted)
            if not self._prefixes[prefix]:
                del self._prefixes[prefix]
        self._fit()

    def all(self) -> list[str]:
        """All that is wanted."""
        return self._own() if self.depth < 0 else list(self._prefixes)

    def wants(self, pattern: str) -> bool:
        """Whether this is one of them."""
        return self._table.has(pattern) if self.depth < 0 else pattern in self._prefixes

    def _own(self) -> list[str]:
        return [each for each in self._table.patterns() if not each.startswith("$/")]

    def _change(self, pattern: str, *, wanted: bool) -> None:
        if self.changed.get(pattern, wanted) != wanted:
            del self.changed[pattern]
        else:
            self.changed[pattern] = wanted

    def _fit(self) -> None:
        """Tell less, or more, if there are too many patterns now, or few again."""
        told = self._count if self.depth < 0 else len(self._prefixes)
        if told <= self._most and (self.depth < 0 or self._count > self._most // 4):
            return
        before = self.all()
        depth, prefixes = -1, Counter[str]()
        if self._count > self._most:
            own = self._own()
            depth = DEEPEST_PREFIX if self.depth < 0 else self.depth - 1
            while True:
                prefixes = Counter([prefix_of(each, depth) for each in own])
                if len(prefixes) <= self._most // 2 or depth == 0:
                    break
                depth -= 1
        self.depth, self._prefixes = depth, prefixes
        after = set(self.all())
        for each in after.difference(before):
            self._change(each, wanted=True)
        for each in before:
            if each not in after:
                self._change(each, wanted=False)


def prefix_of(pattern: str, depth: int) -> str:
    """A pattern of at most ``depth`` levels, and a wildcard for those behind it, that covers this one."""
    levels = pattern.split("/")
    return pattern if len(levels) <= depth else "/".join([*levels[:depth], REST])


@final
class Fabric:
    """Connects a hub to its neighbours. It implements ``Events``: give it to ``Membership.start``.

    ``archive`` is this node's journal, if it has one. The parts of a fabric add themselves to its lists:
    ``introductions`` are what a node is told when the link to it is up, ``heeds`` what is done with the records of each
    class. ``on_up`` are called with a node that has said all there was to say, ``on_down`` with one whose link has
    ended, and ``ticks`` every ``TICK`` seconds. ``on_topic_service`` is called when the topic of a service has got its
    first subscriber, and with False when it has none any more.
    """

    def __init__(
        self, hub: Hub, membership: Membership, settings: Settings | None = None, archive: Archive | None = None
    ) -> None:
        self.archive: Final = archive
        self.heard: Final = Heard(heard_of(hub), self._note_heard)
        self.delivered: Final[dict[str, tuple[int, int]]] = {}
        """The life of each node when it was last known to have all before an offset of this node's journal."""
        self.hub: Final = hub
        self.membership: Final = membership
        self.settings: Final = settings or Settings()
        self.neighbours: Final[dict[str, Neighbour]] = {}
        self.dropped: Final[dict[str, int]] = {}
        self.protocols: Final = tuple([counters.protocol for counters in hub.counters])
        self.heeds: Final[dict[type[Record], Callable[[Neighbour, Any], None]]] = {
            Interest: Neighbour.heed_interest,
            Published: Neighbour.heed_published,
            Ready: Neighbour.heed_ready,
            Mark: Neighbour.heed_mark,
        }
        self.on_up: Final[list[Callable[[str], None]]] = []
        self.on_down: Final[list[Callable[[str], None]]] = []
        self.introductions: Final[list[Callable[[Neighbour], Iterator[Record]]]] = [self._introduce]
        self.ticks: Final[list[Callable[[], None]]] = []
        self.replicates = False  # there is a part that sends retained messages to all nodes
        self.on_topic_service: Callable[[str, bool], None] | None = None
        self.hand_over_sessions: Callable[[], bool] = lambda: False
        """Called again and again when this node leaves, until there is nothing left to be handed over."""
        self.on_owners: Callable[[Mapping[int, str | None]], None] | None = None
        self.on_handing_over: Callable[[Collection[int]], Awaitable[None]] | None = None
        self.on_reachable: Final[list[Callable[[bool, str], None]]] = []
        self._series: Final[dict[str, int]] = {}
        self._last_end = 0
        self._patterns = Patterns(hub.table, self.settings.patterns)
        self._timer: Timer | None = None

    async def start(self) -> None:
        """Join the other nodes."""
        self._patterns = Patterns(self.hub.table, self.settings.patterns)
        self.hub.table.on_interest = self._interested
        self._timer = self.hub.later(TICK, self._tick)
        await self.membership.start(self)

    async def introduced(self) -> None:
        """Wait until all nodes that are there have said what they have: a client's session may be with any of them."""
        end = self.hub.monotonic() + INTRODUCTION_NANOSECONDS
        while not all(each.ready for each in self.neighbours.values()):
            if self.hub.monotonic() > end:
                waited_for = ", ".join(node for node, each in self.neighbours.items() if not each.ready)
                log.warning("clients are let in, though nodes have not introduced themselves: %s", waited_for)
                return
            await asyncio.sleep(PAUSE)

    def kill(self) -> None:
        """Do nothing more, and say nothing to the other nodes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.hub.table.on_interest = None

    async def stop(self) -> None:
        """Leave them, once they have taken the sessions that are kept here."""
        end = self.hub.monotonic() + HAND_OVER_NANOSECONDS
        while self.hand_over_sessions() and self.hub.monotonic() < end:  # noqa: ASYNC110 - it ends by working
            await asyncio.sleep(PAUSE)
        self.kill()
        await self.membership.leave()
        for node in list(self.neighbours):
            self.left(node, "this node has left")

    def joined(self, node: str, life: int) -> None:
        """A node is there: set up a link to it."""
        known = self.neighbours.get(node)
        if known is not None and known.life == life:
            return
        if known is not None:
            self.left(node, "it was restarted")
        log.info("node %r has joined", node)
        neighbour = Neighbour(self, node, life)
        self.neighbours[node] = neighbour
        neighbour.begin()

    def left(self, node: str, reason: str) -> None:
        """A node has gone, and all that its clients had with it."""
        neighbour = self.neighbours.pop(node, None)
        if neighbour is not None:
            log.warning("node %r has left: %s", node, reason)
            neighbour.end()

    def received(self, node: str, batch: bytes) -> None:
        """A batch has come from a node."""
        neighbour = self.neighbours.get(node)
        if neighbour is not None:
            neighbour.received(batch)

    def owners(self, changed: Mapping[int, str | None]) -> None:
        """Shards have other owners."""
        if self.on_owners is not None:
            self.on_owners(changed)

    async def handing_over(self, shards: Collection[int]) -> None:
        """Shards of this node are about to be given to others."""
        if self.on_handing_over is not None:
            await self.on_handing_over(shards)

    def reachable(self, yes: bool, why: str) -> None:  # noqa: FBT001 - as in Events
        """The engine can be reached, or can't."""
        for each in self.on_reachable:
            each(yes, why)

    def send(self, node: str, record: Record) -> bool:
        """Send a record that must not be dropped. False if there is no link to that node."""
        neighbour = self.neighbours.get(node)
        if neighbour is None or not neighbour.link.up:
            return False
        neighbour.put(record)
        return True

    def tell_all(self, record: Record) -> None:
        """Send a record that must not be dropped to all nodes."""
        for neighbour in self.neighbours.values():
            if neighbour.link.up:
                neighbour.put(record)

    def next_offset(self) -> int:
        """The offset of the next row of this node's journal."""
        recorder = self.hub.recorder
        return 0 if recorder is None else recorder.next_offset()

    def _note_heard(self, node: str, offset: int) -> None:
        recorder = self.hub.recorder
        if recorder is not None:
            recorder.applied(HEARD_PREFIX + node, str(offset))

    def keep_apart(self, node: str, series: int) -> None:
        """Another node numbers connections in this series. If this one does too, one of both takes another series."""
        self._series[node] = series
        mine = self.hub.last_number() >> SERIES_SHIFT
        if series == mine and self.membership.node > node:
            taken = {*self._series.values()}
            while mine in taken:
                mine = (mine + 1) % SERIES
            low = self.hub.last_number() & ((1 << SERIES_SHIFT) - 1)
            self.hub.renumber((mine << SERIES_SHIFT) + low)

    def next_end(self) -> int:
        """A number for one end of a link: larger than all before, those of earlier starts included."""
        self._last_end = max(self._last_end + 1, self.hub.clock())
        return self._last_end

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that another node did not get."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def status(self) -> dict[str, object]:
        """What operators may want to know."""
        return {
            "node": self.membership.node,
            "links": {node: each.status() for node, each in self.neighbours.items()},
            "dropped": dict(self.dropped),
            "membership": self.membership.status(),
        }

    def _interested(self, pattern: str, yes: bool) -> None:  # noqa: FBT001 - the table's answer
        """Clients want a pattern that none has wanted before, or don't want it any more."""
        if pattern.startswith("$/"):
            return  # the hub's own, on every node
        if self.on_topic_service is not None and is_service_topic(pattern) and is_literal(pattern):
            self.on_topic_service(pattern[1:], yes)
        if not self._patterns.changed:
            self.hub.soon(self.tell_interest)
        self._patterns.note(pattern, wanted=yes)

    def tell_interest(self) -> None:
        """Tell all nodes now which patterns have come and gone."""
        changes = dict(self._patterns.changed)
        self._patterns.changed.clear()
        for neighbour in self.neighbours.values():
            neighbour.tell_interest(changes)

    def _introduce(self, _neighbour: "Neighbour") -> Iterator[Record]:
        """The patterns that clients have subscribed to."""
        patterns = self._patterns.all()
        while patterns:
            some = patterns[-PATTERNS_AT_ONCE:]
            del patterns[-PATTERNS_AT_ONCE:]
            yield Interest(tuple([each for each in some if self._patterns.wants(each)]))

    def _tick(self) -> None:
        self._timer = self.hub.later(TICK, self._tick)
        for neighbour in list(self.neighbours.values()):
            neighbour.tick()
        for each in self.ticks:
            each()


@final
class Neighbour:
    """Another node: the link to it, what waits for that, and what its clients have subscribed to.

    It is the transport of its outbox, and the source of what it has sent.
    """

    def __init__(self, fabric: Fabric, node: str, life: int) -> None:
        self.node: Final = node
        self.life: Final = life
        self.faults: Final[dict[str, int]] = {}
        self.fabric: Final = fabric
        self._hub: Final = fabric.hub
        self._waiting: Final[deque[memoryview]] = deque()  # records that came while nothing is handled
        self.ready = False
        self._paused = 0
        self._handling = False
        self._marked = 0
        self._resending: Resending | None = None
        self.link = self._new_link()
        self.remote = self._new_remote()
        self._decoder = Decoder()
        self._runs: dict[int, Runs | None] = {}

    def begin(self) -> None:
        """Introduce this node."""
        self.link.greet()
        self._answer()

    def offer(self, record: Record) -> bool:
        """Send a record that may be dropped. False if it was: the node is a slow reader."""
        try:
            return self.remote.outbox.offer(encode(record))
        except LinkError as error:
            self._fault(error)
            return True

    def end(self) -> None:
        """Forget the node. Publishers that wait for it go on."""
        self.ready = False
        if self.link.up:
            for each in self.fabric.on_down:
                each(self.node)
        remote = self.remote
        self._hub.table.expel(remote)
        remote.over = True
        self._resending = None
        self._hub.work.wake(remote.group)
        self._waiting.clear()
        remote.outbox.close()

    def received(self, batch: bytes) -> None:
        """A batch has come."""
        try:
            news, records = self.link.receive(batch)
            if news is News.RESTARTED:
                self._restart()
                news, records = self.link.receive(batch)
        except LinkError as error:
            self._fault(error)
            return
        self._answer()
        if news is News.UP:
            self._up()
        if records is not None:
            self._waiting.append(records)
            self._handle()
        if self.link.has_credit():
            self.remote.outbox.drain()

    def tick(self) -> None:
        """Repeat what may have been lost."""
        self.link.tick()
        self._answer()
        if self._resending is not None:
            self._resending.go_on()
        peer, remote = self.link.peer, self.remote
        if peer is not None and remote.is_live() and self.link.waiting() == 0 and remote.outbox.size() == 0:
            offset = self.fabric.next_offset()
            self.fabric.delivered[self.node] = (peer.life, offset)
            if offset - self._marked > MARK_ROWS:
                self._mark(offset)

    def fall_behind(self, offset: int) -> None:
        """The link is too slow for a promised message: send it again later, with all that come after it."""
        self.remote.wait()
        self._resend(offset)

    def tell_interest(self, changes: Mapping[str, bool]) -> None:
        """This node's clients want other patterns."""
        if self.link.up and changes:
            added = [pattern for pattern, yes in changes.items() if yes]
            removed = [pattern for pattern, yes in changes.items() if not yes]
            for start in range(0, len(added), PATTERNS_AT_ONCE):
                self.put(Interest(tuple(added[start : start + PATTERNS_AT_ONCE])))
            for start in range(0, len(removed), PATTERNS_AT_ONCE):  # after what stands for them from now on
                self.put(Interest((), tuple(removed[start : start + PATTERNS_AT_ONCE])))

    def put(self, record: Record) -> None:
        """Send what must not be dropped."""
        try:
            data = encode(record)
        except LinkError as error:
            self._fault(error)
            return
        self.remote.outbox.put(data)

    def status(self) -> dict[str, object]:
        """What operators may want to know."""
        link = self.link
        window = 0 if link.peer is None else link.peer.window
        return {
            "up": link.up,
            "batches_sent": link.sent,
            "bytes_sent": link.sent_octets,
            "batches_received": link.received,
            "bytes_received": link.received_octets,
            "unhandled": link.waiting(),
            "credit": max(0, window - link.waiting()),
            "buffered": self.remote.outbox.size(),
            "gaps": link.gaps,
            "resent": link.resent,
            "patterns": len(self.remote.patterns),
            "faults": dict(self.faults),
        }

    def send(self, chunks: list[bytes | memoryview]) -> None:
        """Write what waited in the outbox."""
        self.link.send(b"".join(chunks))
        self._answer()
        if not self.link.has_credit():
            self.remote.outbox.stall()

    def pause_reading(self) -> None:
        """Handle nothing of what comes until ``resume_reading`` has been called as often."""
        self._paused += 1

    def resume_reading(self) -> None:
        """Go on."""
        self._paused -= 1
        if self._paused == 0 and self._waiting and not self._handling:
            self._hub.soon(self._handle)

    def overflow(self) -> None:
        """A slow node is never disconnected: that would not make it faster."""

    def _new_link(self) -> Link:
        fabric = self.fabric
        membership = fabric.membership
        heard = fabric.heard.upto(self.node)
        window, series = fabric.settings.window, self._hub.last_number() >> SERIES_SHIFT
        hello = Hello(VERSION, membership.node, window, fabric.protocols, heard, membership.life, series)
        return Link(fabric.next_end(), hello)

    def _new_remote(self) -> "Node":
        settings = self.fabric.settings
        outbox = Outbox(self, self._hub.flusher, cap=settings.buffer, policy=settings.policy)
        outbox.stall()  # until the link is up
        outbox.on_relief = self._relieved
        return Node(outbox, self._hub.next_number(), self)

    def _restart(self) -> None:
        """The other end of the link has begun again, and knows nothing."""
        self.end()
        self.link = self._new_link()
        self.remote = self._new_remote()
        self._decoder = Decoder()

    def _up(self) -> None:
        peer = self.link.peer
        if peer is not None:
            self.fabric.keep_apart(self.node, peer.series)
            names = self.fabric.protocols
            known = {number: name for number, name in enumerate(peer.protocols) if name in names}
            self._runs = {number: self._reader(name) for number, name in known.items()}
        if self.fabric.archive is not None:
            self.remote.hold(self.fabric.next_offset())
        self._hub.table.admit(self.remote)
        self.remote.outbox.drain()
        self._hub.work.start(self.remote.group, _Introduction(self, self.remote, self.fabric))

    def _reader(self, name: str) -> Runs | None:
        """What reads the runs of a protocol."""
        try:
            protocol = by_name(name)
        except RegistryError:
            return None
        if not protocol.runs:
            return None
        place = self.fabric.protocols.index(name)
        outbox = Outbox(NOWHERE, self._hub.flusher)
        client = Client(self.remote.group, place, outbox, self._hub.counters[place], self.node)
        runs: Runs = protocol.load(protocol.runs)(client)
        return runs

    def _answer(self) -> None:
        link = self.link
        if link.answers:
            answers, link.answers = link.answers, []
            for each in answers:
                self.fabric.membership.send(self.node, each)

    def _handle(self) -> None:
        """Handle what has come, unless clients here have to take something first."""
        if self._handling:
            return
        flusher = self._hub.flusher
        before = flusher.source
        heeds = self.fabric.heeds
        recorder = self._hub.recorder
        self._handling = True
        flusher.source = self
        try:
            while self._waiting and self._paused == 0:
                records = self._waiting.popleft()
                found = self._decoder.feed(records)
                if recorder is not None:
                    # A node that is killed has noted what it has heard of, and stored what is due to sessions, or none.
                    recorder.together(on=True)
                for record in found:
                    if isinstance(record, Run):
                        self._run(record)
                    else:
                        heeds[type(record)](self, record)
                if recorder is not None:
                    self.fabric.heard.note(self.node)
                    recorder.together(on=False)
                self.link.handled(len(records))
        except LinkError as error:
            self._fault(error)
            self._restart()  # the next tick introduces this node again
        finally:
            self._handling = False
            flusher.source = before
        self._answer()

    def heed_published(self, record: Published) -> None:
        """A message for clients of this node."""
        if self.fabric.heard.is_new(self.node, record.offset):
            self._hub.deliver_here(message_of(record), late=record.flags & LATE != 0)

    def heed_interest(self, record: Interest) -> None:
        """The other node's clients want other patterns."""
        table = self._hub.table
        for pattern in record.added:
            table.want(self.remote, pattern)
        for pattern in record.removed:
            table.unwant(self.remote, pattern)

    def heed_ready(self, _record: Ready) -> None:
        """The other node has said all there was to say."""
        self.ready = True
        if self.fabric.archive is not None:
            self._catch_up()
        for each in self.fabric.on_up:
            each(self.node)

    def heed_mark(self, record: Mark) -> None:
        """This node has all it wants of the other one's journal up to an offset."""
        self.fabric.heard.begin_at(self.node, record.offset)

    def _catch_up(self) -> None:
        """Begin with what the other node has missed while there was no link."""
        remote, peer = self.remote, self.link.peer
        position = remote.held_from
        if peer is not None and 0 <= peer.journal < position:
            life, offset = self.fabric.delivered.get(self.node, (0, 0))
            position = min(position, max(peer.journal, offset)) if life == peer.life else peer.journal
        if position < remote.held_from or not remote.go_live():
            remote.wait()
            self._resend(position)
        else:
            self._mark(self.fabric.next_offset())

    def _resend(self, position: int) -> None:
        archive = self.fabric.archive
        if archive is not None:
            hub = self._hub
            self._resending = Resending(self.remote, archive, position, self.fabric.next_offset, hub.safe)
            self._resending.begin()

    def mark(self) -> None:
        """Tell the node that it has all it wants of what was published by now, if that is so."""
        if self.fabric.archive is not None and self.remote.is_live():
            self._mark(self.fabric.next_offset())

    def _mark(self, offset: int) -> None:
        self._marked = offset
        self.remote.marked(offset)
        self.put(Mark(offset))

    def _relieved(self) -> None:
        """There is room for more."""
        self._hub.work.wake(self.remote.group)
        resending = self._resending
        if resending is not None:
            resending.go_on()

    def _run(self, run: Run) -> None:
        head = run.head
        runs = self._runs.get(head.protocol)
        if runs is None:
            self._fault(LinkError(f"there is no protocol number {head.protocol} whose runs can be read here"))
            return
        if not self.fabric.heard.is_new(self.node, head.offset, head.size):
            return
        hub = self._hub
        runs.now = head.time
        runs.origin = head.origin
        view = hub.view(runs.client)
        for each in runs.scan(run.data, view.current(), view.resolve):
            if isinstance(each, Scanned):
                hub.forward_here(each, runs)
            else:
                self._fault(LinkError("there is more in a run than plain publications"))

    def _fault(self, error: LinkError) -> None:
        """Count and log what this node can't understand."""
        self.faults[error.reason] = self.faults.get(error.reason, 0) + 1
        self._hub.warn("link", f"node {self.node!r}: {error}")


@final
class Node(Remote):
    """Another node in the hub's routes.

    It is ``LIVE``, or messages are held for it until it has caught up with the journal, or it is far behind: then those
    that were promised are read from the journal later, and the others are dropped.
    """

    def __init__(self, outbox: Outbox, group: int, neighbour: Neighbour) -> None:
        super().__init__(outbox, group)
        self.over = False
        self.held_from = 0
        self._mode = LIVE
        self._held: list[bytes | memoryview] = []
        self._held_octets = 0
        self._held_too_much = False
        self._last = -1  # the largest offset sent
        self._neighbour: Final = neighbour
        self._fabric: Final = neighbour.fabric

    def is_live(self) -> bool:
        """Whether it gets everything at once."""
        return self._mode == LIVE and not self.over

    def forward(self, data: bytes | memoryview, head: tuple[int, int, int, int, int]) -> None:
        """Send it publications as they came."""
        known = RunHead._make(head)
        if not self.submit(encode_run_head(known, len(data)), data, known.offset):
            self._fabric.drop(SLOW_LINK, known.size)

    def deliver(self, message: Message) -> None:
        """Send it a message. One that is to be retained goes to all live nodes anyway."""
        if message.retain and self._fabric.replicates and self._mode == LIVE:
            return
        data = self._encoded(message)
        if not data:
            self._fabric.drop(UNENCODABLE)
        elif not self.submit(data, b"", int(message.offset) if message.qos else -1):
            self._fabric.drop(SLOW_LINK)

    def submit(self, first: bytes, second: bytes | memoryview, offset: int) -> bool:
        """Send it a record in two pieces, now or later. False if it is dropped."""
        self._last = max(self._last, offset)
        if self._mode == LIVE:
            if self.outbox.offer_pair(first, second):
                return True
            if offset < 0 or self._fabric.archive is None:
                return False
            self._neighbour.fall_behind(offset)
            return True
        if self._mode == BEHIND:
            return offset >= 0
        self._held_octets += len(first) + len(second)
        if self._held_octets > self._fabric.settings.buffer:
            self._held_too_much = True
            self.wait()
            return offset >= 0
        self._held.append(first)
        self._held.append(second)
        return True

    def wait(self) -> None:
        """It is behind: it gets from the journal what was promised."""
        self._mode = BEHIND
        self._held = []
        self._held_octets = 0

    def hold(self, offset: int) -> None:
        """Hold what is published from now on, from this offset on."""
        self.held_from = offset
        self._held_too_much = False
        self._held = []
        self._held_octets = 0
        self._mode = HOLDING

    def resend(self, message: Message) -> bool:
        """Send it a message from the journal. False if it must wait for room."""
        if self.outbox.loaded():
            return False
        record = published(message)
        with contextlib.suppress(LinkError):  # it was not sent the first time for the same reason
            self.outbox.put(encode(msgspec.structs.replace(record, flags=record.flags | LATE)))
        return True

    def go_live(self) -> bool:
        """Send what was held, and from now on everything at once. False where that was too much to be held."""
        if self._held_too_much:
            return False
        self._mode = LIVE
        held, self._held = self._held, []
        for piece in held:
            self.outbox.put(piece)
        return True

    def record_of(self, message: Message) -> Published:
        """The record in which it gets a message at once.

        It is that of a row only if no later row was sent: the other node would take it for one that had come before.
        """
        record = published(message, offset=not self._is_late(message))
        self._last = max(self._last, record.offset)
        return record

    def marked(self, offset: int) -> None:
        """It is told that it has everything before this offset."""
        self._last = max(self._last, offset)

    def _is_late(self, message: Message) -> bool:
        """Whether later rows were sent before: a part is recorded long before it is delivered."""
        return 0 <= message.offset < self._last

    def _encoded(self, message: Message) -> bytes:
        """The message's record, empty where there can't be one."""
        late = self._is_late(message)
        data = None if late else message.encoded.get(LINK_FORM)
        if isinstance(data, bytes):
            return data
        try:
            made = encode(published(message, offset=not late))
        except LinkError:
            made = b""
        if not late:
            message.encoded[LINK_FORM] = made
        return made


@final
class _Introduction(Job):
    """What a node is told when its link is up, in steps, as fast as the link takes it."""

    def __init__(self, neighbour: Neighbour, remote: Node, fabric: Fabric) -> None:
        self._neighbour: Final = neighbour
        self._remote: Final = remote
        self._records: Final = chain.from_iterable([each(neighbour) for each in fabric.introductions])

    def step(self) -> int:
        """Send a record."""
        remote = self._remote
        if remote.over:
            return DONE
        if remote.outbox.loaded():
            return WAIT
        record = next(self._records, None)
        if record is not None:
            self._neighbour.put(record)
            return MORE
        self._neighbour.put(Ready())
        return DONE
