"""Hubs in one process that are linked over memory, with a loop and a clock driven by hand."""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from polywire.fabric import DiskArchive, Settings, make_fabric
from polywire.fabric.membership import Events
from polywire.fabric.resend import Found
from polywire.hub.channels import from_stars
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits
from polywire.hub.recorder import Recorder as JournalRecorder
from polywire.journal.committer import BatchMaker
from polywire.journal.log import Log
from polywire.journal.reader import open_journal
from polywire.journal.snapshots import state_of
from polywire.journal.state import Row
from polywire.protocols.fmqp.delivery import FmqpSubscription
from polywire.protocols.fmqp.frames import Decoder, Publication, encode
from polywire.protocols.fmqp.session import FmqpRuns
from polywire.registry import names
from polywire.server.restoration import restore
from polywire.wire.frame import Run
from tests.hub.links import Clock, FakeLink, Loop, Recorder

TURNS = 20_000


class Engine:
    """Carries batches between nodes, in order, when ``turn`` is called. ``lose`` decides what is lost."""

    def __init__(self) -> None:
        self.loop, self.clock = Loop(), Clock()
        self.clock.now = 1.0
        self.members: dict[str, Member] = {}
        self.batches: deque[tuple[str, str, bytes]] = deque()
        self.sent: list[tuple[str, str, bytes]] = []
        self.lose: Callable[[str, str, bytes], bool] = lambda _sender, _receiver, _batch: False
        self.cut: set[frozenset[str]] = set()

    def step(self) -> bool:
        """Do what is to be done in one turn of the loop, and deliver one batch. False if there is nothing to do."""
        if not self.batches and not self.loop.soon:
            return False
        self.loop.turn()
        if self.batches:
            sender, receiver, batch = self.batches.popleft()
            member = self.members.get(receiver)
            if member is not None and member.events is not None:
                member.events.received(sender, batch)
        return True

    def turn(self) -> None:
        """Do everything there is to do."""
        for _ in range(TURNS):
            if not self.step():
                return
        raise AssertionError("the nodes don't come to rest")

    def pass_time(self, seconds: float) -> None:
        """Let time pass in small steps."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.turn()

    def octets(self, sender: str, receiver: str) -> int:
        """How many bytes one node has sent to another."""
        return sum(len(batch) for one, other, batch in self.sent if (one, other) == (sender, receiver))


class Member:
    """One node's membership."""

    def __init__(self, engine: Engine, node: str, life: int = 1) -> None:
        self.engine, self.node, self.life = engine, node, life
        self.events: Events | None = None

    async def start(self, events: Events) -> None:
        self.events = events
        for other in list(self.engine.members.values()):
            if other.events is not None:
                other.events.joined(self.node, self.life)
                events.joined(other.node, other.life)
        self.engine.members[self.node] = self

    def send(self, node: str, batch: bytes | memoryview) -> None:
        data = bytes(batch)
        self.engine.sent.append((self.node, node, data))
        if frozenset((self.node, node)) not in self.engine.cut and not self.engine.lose(self.node, node, data):
            self.engine.batches.append((self.node, node, data))

    def owner(self, shard: int) -> str | None:  # noqa: ARG002 - nobody owns anything here
        return None

    def term(self, shard: int) -> int:  # noqa: ARG002 - as above
        return 0

    async def hand_over(self) -> None:
        return None

    async def unsynced(self) -> list[str]:
        return []

    async def retire(self) -> None:
        pass

    async def leave(self) -> None:
        self.vanish("it said goodbye")

    def vanish(self, reason: str) -> None:
        """The node is gone for the others."""
        del self.engine.members[self.node]
        for other in self.engine.members.values():
            if other.events is not None:
                other.events.left(self.node, reason)

    def status(self) -> dict[str, object]:
        return {}


class Disk:
    """A node's journal, which is written when something has to be safe. ``opened`` are all since the last test."""

    opened: ClassVar[list["Disk"]] = []

    def __init__(self, engine: Engine, hub: Hub, node: str, folder: Path) -> None:
        self._engine = engine
        self._reader = DiskArchive(folder)
        self._maker = BatchMaker(node, list(names()))
        self.log = Log(folder, node=node)
        self.opened.append(self)
        state = state_of(folder, to_offset=self.log.next_offset)
        self.recorder = JournalRecorder(self.log.next_offset, hub.clock, lambda: None)
        hub.recorder = hub.services.recorder = self.recorder
        hub.when_safe = self._safe
        self.wills: list[Row] = []
        restore(hub, [row for batch in state.batches() for row in batch.to_pylist()], Limits(), self.wills)
        self.recorder.started()

    def write(self) -> None:
        """Write all rows there are."""
        for columns in self.recorder.take():
            self.log.append(self._maker.make(columns), state=columns.state)

    def rows(self, *kinds: str) -> list[dict[str, object]]:
        """The rows of some kinds, as they are on disk."""
        self.write()
        found = open_journal(self.log.path).scan(kinds=kinds)
        return [row for batch in found for row in batch.to_pylist()]

    def read(self, first: int, done: Found) -> None:
        """Read promised messages, as a fabric's archive does."""
        self._engine.loop.soon.append(lambda: done(*self._reader._read(first)))

    def _safe(self, done: Callable[[], None], _failed: Callable[[], None]) -> None:
        def write() -> None:
            self.write()
            done()

        self._engine.loop.soon.append(write)


class Site:
    """One node. With a ``folder`` it has a journal there, and with that what the hub before it has left."""

    def __init__(
        self,
        engine: Engine,
        node: str,
        *,
        life: int = 1,
        settings: Settings | None = None,
        folder: Path | None = None,
    ) -> None:
        self.engine, self.node = engine, node
        self.hub = Hub(
            engine.loop.soon.append,
            engine.clock.later,
            engine.clock.wall_nanoseconds,
            list(names()),
            first_number=life << 20,
            monotonic=engine.clock.nanoseconds,
        )
        self.loop = Loop()
        self.loop.flusher = self.hub.flusher
        self.member = Member(engine, node, life)
        self.disk = None if folder is None else Disk(engine, self.hub, node, folder)
        self.fabric = make_fabric(self.hub, self.member, settings, self.disk)

    def start(self) -> "Site":
        asyncio.run(self.fabric.start())
        self.engine.turn()
        return self

    def kill(self) -> None:
        """End without a word. What is not on disk is lost."""
        self.member.vanish("it was killed")
        self.member.events = None
        self.fabric.kill()
        if self.disk is not None:
            self.disk.log.close()

    def client(self, protocol: str = "umq", *, cap: int = 1 << 20) -> Client:
        link = FakeLink(self.loop, cap=cap)
        client = self.hub.client(names().index(protocol), link.outbox)
        self.hub.join(client)
        return client

    def subscribe(self, pattern: str, client: Client | None = None) -> Recorder:
        """A subscriber that remembers the messages it got."""
        link = FakeLink(self.loop)
        client = client or self.client()
        recorder = Recorder(from_stars(pattern), link, client.number)
        assert self.hub.subscribe(client, pattern, recorder) is None
        self.hub.replay(client, recorder)
        self.engine.turn()
        return recorder

    def subscribe_over_fmqp(self, pattern: str) -> FakeLink:
        """A subscriber to whom publications over FMQP are written as they came."""
        link = FakeLink(self.loop, cap=1 << 20)
        client = self.hub.client(names().index("fmqp"), link.outbox)
        self.hub.join(client)
        assert self.hub.subscribe(client, pattern, FmqpSubscription(from_stars(pattern), client, counted=True)) is None
        self.engine.turn()
        return link

    def publish_over_fmqp(self, *pairs: tuple[str, bytes], client: Client | None = None) -> bytes:
        """Publish as an FMQP session does, in runs. Returns what was received."""
        client = client or self.client("fmqp")
        data = b"".join([encode(Publication(topic, body)) for topic, body in pairs])
        runs = FmqpRuns(client)
        runs.now = self.hub.clock()
        runs.version = self.hub.table.changes
        view = self.hub.view(client)
        for run in Decoder().feed_runs(data, view.current(), view.resolve):
            assert isinstance(run, Run)
            assert self.hub.forward(run, runs)
        self.engine.turn()
        return data


def site_with(*nodes: str, settings: Settings | None = None) -> tuple[Engine, list[Site]]:
    """Some nodes that know each other."""
    engine = Engine()
    sites = [Site(engine, node, settings=settings).start() for node in nodes]
    engine.turn()
    return engine, sites
