"""Queues of several hubs: owners, loans, requests that survive their owner."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from polywire.fabric.frames import Decoder, Record, encode
from polywire.fabric.log import _folded
from polywire.fabric.membership import Contents, LogLost, shard_of
from polywire.fabric.queues import Queues, QueueSettings, requests_done
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.outbox import NOWHERE, Outbox
from polywire.hub.queues import Consumer, Delivery, Policy
from polywire.hub.recorder import Recorder
from polywire.journal.columns import Columns
from polywire.journal.committer import BatchMaker
from polywire.journal.format import PLAIN_SCHEMA
from polywire.registry import names

QUEUE = "jobs"
SHARD = shard_of(QUEUE)
WAIT = 20.0


@dataclass
class Store:
    """What the logs of all shards have. With ``held`` nothing is stored until ``release``."""

    batches: dict[int, list[tuple[Any, dict[str, int]]]] = field(default_factory=lambda: defaultdict(list))
    terms: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    held: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        self.held = False
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()


class MemoryLog:
    """A log as ``ShardLog`` is one."""

    busy = False

    def __init__(self, store: Store, shard: int, lost: Callable[[str], None]) -> None:
        self.store, self.shard, self.lost = store, shard, lost
        self.term = 0
        self.open = 0
        self.closed = False
        self.maker = BatchMaker("a")

    async def take_over(self, term: int) -> Contents:
        await asyncio.sleep(0)
        if self.store.terms[self.shard] >= term:
            raise LogLost("somebody else has it")
        self.term = self.store.terms[self.shard] = term
        batches = self.store.batches[self.shard]
        seen: dict[str, int] = {}
        for _, each in batches:
            seen.update(each)
        offsets = [rows["offset"][-1].as_py() + 1 for rows, _ in batches]
        return Contents(_folded([rows for rows, _ in batches]), max(offsets, default=0), seen)

    def append(self, columns: Columns, seen: Mapping[str, int], done: Callable[[], None]) -> None:
        table = pa.Table.from_batches([self.maker.make(columns)]).cast(PLAIN_SCHEMA)
        self.open += 1

        def store() -> None:
            if self.store.terms[self.shard] != self.term:
                self.lost("somebody else has it")
                return
            self.open -= 1
            self.store.batches[self.shard].append((table, dict(seen)))
            done()

        if self.store.held:
            self.store.waiting.append(store)
        else:
            asyncio.get_running_loop().call_soon(store)

    async def flushed(self) -> None:
        await until(lambda: self.closed or not self.open)

    async def close(self) -> None:
        self.closed = True

    def status(self) -> dict[str, object]:
        return {}


class Taker(Consumer):
    """A consumer with room for some messages at once."""

    def __init__(self, most: int = 1000, wanted: Callable[[Message], bool] | None = None) -> None:
        super().__init__(choosy=wanted is not None)
        self.most, self.wanted = most, wanted
        self.got: list[Delivery] = []
        self.acknowledges = False

    def room(self) -> bool:
        return len(self.pending) < self.most

    def wants(self, message: Message) -> bool:
        return self.wanted is None or self.wanted(message)

    def take(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        if self.acknowledges:
            delivery.ack()

    @property
    def bodies(self) -> list[bytes]:
        return [each.message.body for each in self.got]


class Node:
    """A hub, its membership, and its links to the others."""

    def __init__(self, mesh: "Mesh", node: str, life: int, restore: Callable[[Hub], None]) -> None:
        loop = asyncio.get_running_loop()
        self.mesh, self.node, self.life = mesh, node, life
        self.hub = Hub(loop.call_soon, loop.call_later, lambda: 10**18, list(names()))
        restore(self.hub)
        open_log = None if mesh.store is None else self.open_log
        self.queues = Queues(self.hub, self, self, QueueSettings(open_log, refuse=mesh.refuse, buffer=mesh.buffer))  # type: ignore[arg-type]
        self.leased = True

    def open_log(self, shard: int, lost: Callable[[str], None]) -> MemoryLog:
        assert self.mesh.store is not None
        return MemoryLog(self.mesh.store, shard, lost)

    def owner(self, shard: int) -> str | None:
        owner = self.mesh.owners.get(shard)
        return None if owner == self.node and not self.leased else owner

    def term(self, shard: int) -> int:
        return self.mesh.terms[shard]

    def send_queue(self, node: str, record: Record) -> None:
        self.mesh.loop.call_soon(self.mesh.deliver, self.node, self.life, node, encode(record))

    def client(self) -> Client:
        client = self.hub.client(0, Outbox(NOWHERE, self.hub.flusher))
        self.hub.join(client)
        return client

    def publish(self, *bodies: bytes, client: Client | None = None, queue: str = QUEUE) -> list[str]:
        """Publish, and note what the publisher is told."""
        told: list[str] = []
        client = client or self.client()
        for body in bodies:
            refused = self.hub.publish(Message(f"queue/{queue}", body, time=10**18), client)
            if refused is not None:
                told.append(refused.name)
            else:
                self.hub.safe(lambda body=body: told.append(body.decode()), lambda: told.append("failed"), client)  # type: ignore[misc]
        return told

    def consume(self, taker: Taker | None = None, client: Client | None = None, queue: str = QUEUE) -> Taker:
        taker = taker or Taker()
        assert self.hub.consume(client or self.client(), queue, taker) is None
        return taker


class Mesh:
    """Nodes in one process. ``store`` has their logs; None for shards that are in their owners' journals."""

    def __init__(self, store: Store | None, *, refuse: bool = False, buffer: int = 1 << 20) -> None:
        self.store, self.refuse, self.buffer = store, refuse, buffer
        self.loop = asyncio.get_running_loop()
        self.nodes: dict[str, Node] = {}
        self.owners: dict[int, str] = {}
        self.terms: dict[int, int] = defaultdict(int)
        self.cut: set[str] = set()

    def start(self, name: str, life: int = 1, restore: Callable[[Hub], None] = lambda _: None) -> Node:
        node = Node(self, name, life, restore)
        others = list(self.nodes.values())
        self.nodes[name] = node
        for other in others:
            other.queues.joined(name, life)
            node.queues.joined(other.node, other.life)
        for other in others:
            other.queues.linked(name)
            node.queues.linked(other.node)
        return node

    def kill(self, name: str) -> None:
        del self.nodes[name]
        for shard in [shard for shard, owner in self.owners.items() if owner == name]:
            del self.owners[shard]
            for other in self.nodes.values():
                other.queues.owners({shard: None})
        for other in self.nodes.values():
            other.queues.left(name)

    def give(self, shard: int, name: str) -> None:
        self.owners[shard] = name
        self.terms[shard] += 1
        for node in self.nodes.values():
            node.queues.owners({shard: name})

    async def hand_over(self, shard: int, name: str) -> None:
        await self.nodes[self.owners[shard]].queues.handing_over({shard})
        self.give(shard, name)

    def deliver(self, sender: str, life: int, receiver: str, body: bytes) -> None:
        node = self.nodes.get(receiver)
        known = self.nodes.get(sender)
        if node is not None and known is not None and known.life == life and sender not in self.cut:
            for record in Decoder().feed(body):
                assert isinstance(record, Record)
                node.queues.received(sender, record)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Let everything happen that is going to at once."""
    for _ in range(200):
        await asyncio.sleep(0)


def run(test: Callable[[Mesh], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def go() -> None:
        await test(Mesh(**settings))

    asyncio.run(go())


stores = pytest.mark.parametrize("replicated", [True, False], ids=["log", "journal"])


def store(*, replicated: bool) -> Store | None:
    return Store() if replicated else None


@stores
def test_what_is_put_on_one_node_is_consumed_on_another(*, replicated: bool) -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        for publisher, consumer in ((b, c), (a, b), (c, a), (b, b)):
            taker = consumer.consume(client=(client := consumer.client()))
            told = publisher.publish(b"one", b"two", b"three")
            await until(lambda taker=taker: len(taker.got) == 3)  # type: ignore[misc]
            assert taker.bodies == [b"one", b"two", b"three"]
            await until(lambda told=told: told == ["one", "two", "three"])  # type: ignore[misc]
            for each in taker.got:
                assert each.ack()
            consumer.hub.stop_consuming(client, taker)
            await settle()
            assert all(QUEUE not in node.hub.queues for node in mesh.nodes.values())

    run(test, store=store(replicated=replicated))


@stores
def test_a_message_that_a_consumer_rejects_or_leaves_goes_to_another_node(*, replicated: bool) -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        first, client = Taker(), b.client()
        b.consume(first, client)
        await settle()
        c.publish(b"one", b"two")
        await until(lambda: len(first.got) == 2)
        first.most = 0
        second = c.consume()
        await settle()
        assert first.got[0].nack(0.0, "not now")
        await until(lambda: second.bodies == [b"one"])
        assert second.got[0].attempts == 2
        b.hub.leave(client)
        await until(lambda: second.bodies == [b"one", b"two"])
        assert second.got[1].attempts == 2
        assert a.hub.queue_totals.redelivered == 2

    run(test, store=store(replicated=replicated))


@stores
def test_a_message_that_no_consumer_of_a_node_wants_goes_to_one_that_does(*, replicated: bool) -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        choosy = b.consume(Taker(wanted=lambda message: message.body.startswith(b"b")))
        await settle()
        a.publish(b"c1", b"b1", b"c2", b"b2")
        await until(lambda: choosy.bodies == [b"b1", b"b2"])
        taker = c.consume()
        await until(lambda: taker.bodies == [b"c1", b"c2"])

    run(test, store=store(replicated=replicated))


@stores
def test_what_a_node_has_no_room_for_goes_back(*, replicated: bool) -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        slow = b.consume(Taker(1))
        await settle()
        a.publish(b"one", b"two", b"three")
        await until(lambda: slow.bodies == [b"one"])
        taker = c.consume()
        await until(lambda: taker.bodies == [b"two", b"three"])
        taker.most = 0
        a.publish(b"four")
        slow.got[0].ack()
        await until(lambda: slow.bodies == [b"one", b"four"])

    run(test, store=store(replicated=replicated))


@stores
def test_a_full_queue_refuses_what_comes_from_other_nodes_too(*, replicated: bool) -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        a.hub.queue_messages = 2
        mesh.give(SHARD, "a")
        await settle()
        client = b.client()
        told = b.publish(b"one", b"two", b"three", client=client)
        await until(lambda: told == ["one", "two", "failed"])
        assert client.counters.dropped == {"queue-full": 1}

    run(test, store=store(replicated=replicated))


@stores
def test_what_nobody_can_take_waits_and_is_refused_beyond_a_bound(*, replicated: bool) -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        told = b.publish(b"one", b"x" * 600, b"x" * 600)
        await settle()
        assert told == ["UNAVAILABLE"]
        mesh.give(SHARD, "a")
        taker = a.consume()
        await until(lambda: told == ["UNAVAILABLE", "one", "x" * 600])
        assert taker.bodies == [b"one", b"x" * 600]

    run(test, store=store(replicated=replicated), buffer=1500)


def test_what_would_have_to_wait_is_refused_if_that_is_asked_for() -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        assert b.publish(b"one") == ["UNAVAILABLE"]
        mesh.give(SHARD, "a")
        await settle()
        told = b.publish(b"two")
        await until(lambda: told == ["two"])
        assert a.publish(b"three") == []
        a.queues.reachable(yes=False)
        assert a.publish(b"four") == ["UNAVAILABLE"]

    run(test, store=Store(), refuse=True)


def test_a_publisher_is_told_only_when_its_message_is_stored_and_others_need_not_wait() -> None:
    held = Store(held=True)

    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        mesh.give(SHARD, "a")
        await settle()
        client = b.client()
        here, there = a.publish(b"one"), b.publish(b"two", client=client)
        b.hub.safe(lambda: there.append("behind"), lambda: None, client)
        other: list[str] = []
        b.hub.safe(lambda: other.append("other"), lambda: None, b.client())
        await settle()
        assert (here, there, other) == ([], [], ["other"])
        held.release()
        await until(lambda: (here, there) == (["one"], ["two", "behind"]))

    run(test, store=held)


def test_a_new_owner_has_what_was_stored_and_what_was_not_is_sent_again() -> None:
    kept = Store()

    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        told = b.publish(b"one", b"two")
        await until(lambda: told == ["one", "two"])
        kept.held = True
        late = b.publish(b"three")
        await settle()
        assert late == []
        mesh.kill("a")
        kept.release()
        mesh.give(SHARD, "c")
        taker = b.consume()
        await until(lambda: taker.bodies == [b"one", b"two", b"three"])
        assert late == ["three"]
        assert c.queues.owns(QUEUE)
        assert not a.queues.owns(QUEUE)

    run(test, store=kept)


def test_a_request_that_was_stored_and_not_confirmed_is_done_once() -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        mesh.cut.add("a")  # it hears, and nobody hears it
        told = b.publish(b"one")
        await until(lambda: QUEUE in a.hub.queues and a.hub.queues[QUEUE].waiting() == 1)
        await settle()
        assert told == []
        mesh.kill("a")
        mesh.give(SHARD, "c")
        await until(lambda: told == ["one"])
        assert c.queues.duplicates == 1
        assert len(c.hub.queues[QUEUE]) == 1

    run(test, store=Store())


def test_what_a_consumer_holds_is_not_delivered_again_when_the_owner_changes() -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        at_b, at_c = b.consume(Taker(1)), None
        await settle()
        a.publish(b"one", b"two", b"three")
        await until(lambda: at_b.bodies == [b"one"])
        await mesh.hand_over(SHARD, "c")
        at_c = c.consume()
        await until(lambda: at_c.bodies == [b"two", b"three"])
        at_b.most = 0
        assert at_b.got[0].ack()
        for each in at_c.got:
            each.ack()
        await until(lambda: c.hub.queues[QUEUE].octets == 0)
        mesh.kill("c")
        mesh.give(SHARD, "a")
        at_a = a.consume()
        await settle()
        await asyncio.sleep(0.05)
        assert at_a.bodies == []

    run(test, store=Store())


def test_an_acknowledgement_reaches_the_owner_that_comes_next() -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        taker = b.consume()
        a.publish(b"one")
        await until(lambda: len(taker.got) == 1)
        mesh.kill("a")
        assert taker.got[0].ack()
        mesh.give(SHARD, "c")
        at_c = c.consume()
        await until(lambda: QUEUE in c.hub.queues and len(c.hub.queues[QUEUE]) == 0)
        await settle()
        assert at_c.bodies == []

    run(test, store=Store())


def test_an_owner_hands_out_nothing_once_its_lease_is_over() -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        mesh.give(SHARD, "a")
        await settle()
        told = a.publish(b"one")
        await until(lambda: told == ["one"])
        a.leased = False
        taker = a.consume()
        await settle()
        assert taker.bodies == []
        late = a.publish(b"two")
        mesh.give(SHARD, "b")  # the log is taken over, whatever a believes
        await until(lambda: taker.bodies == [b"one", b"two"])
        assert late == ["two"]
        assert not b.queues.faults

    run(test, store=Store())


def test_a_publisher_whose_message_was_not_stored_when_the_shard_was_lost_is_told() -> None:
    kept = Store(held=True)

    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        mesh.give(SHARD, "a")
        await settle()
        told = a.publish(b"one")
        await settle()
        assert told == []
        mesh.give(SHARD, "b")
        await until(lambda: told == ["failed"] and b.queues.owns(QUEUE))
        kept.release()
        await settle()
        assert QUEUE not in b.hub.queues

    run(test, store=kept)


def test_a_lease_that_was_renewed_in_time_changes_nothing() -> None:
    async def test(mesh: Mesh) -> None:
        a = mesh.start("a")
        mesh.give(SHARD, "a")
        await settle()
        a.leased = False
        a.queues.owners({SHARD: None})
        told = a.publish(b"one")
        taker = a.consume()
        await settle()
        assert (told, taker.bodies) == (["one"], [])  # it is stored: whoever owns the shard next has it
        a.leased = True
        a.queues.owners({SHARD: "a"})
        await until(lambda: taker.bodies == [b"one"])

    run(test, store=Store())


def test_a_link_that_begins_again_loses_nothing() -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        mesh.give(SHARD, "a")
        await settle()
        taker = b.consume(Taker(2))
        await settle()
        mesh.cut |= {"a", "b"}
        told = b.publish(b"1")
        a.publish(b"2", b"3", b"4")
        await settle()
        assert (told, taker.bodies) == ([], [])
        mesh.cut.clear()
        a.queues.linked("b")
        b.queues.linked("a")
        await until(lambda: told == ["1"] and len(taker.got) == 2)
        taker.acknowledges, taker.most = True, 1000
        for each in list(taker.got):
            each.ack()
        await until(lambda: len(taker.got) == 4)
        assert taker.bodies == [b"2", b"3", b"4", b"1"]

    run(test, store=Store())


def test_a_dead_letter_may_belong_to_another_node() -> None:
    dead = next(name for name in (f"dead{number}" for number in range(100)) if shard_of(name) != SHARD)

    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        for node in (a, b):
            node.hub.set_policies((Policy((QUEUE,), 1, dead),))
        mesh.give(SHARD, "a")
        mesh.give(shard_of(dead), "b")
        await settle()
        taker = b.consume()
        a.publish(b"one")
        await until(lambda: len(taker.got) == 1)
        taker.got[0].nack(0.0, "broken")
        buried = a.consume(queue=dead)
        await until(lambda: buried.bodies == [b"one"])
        assert buried.got[0].message.header("polywire-dead-reason") == "broken"
        await until(lambda: len(a.hub.queues[QUEUE]) == 0)

    run(test, store=Store())


@stores
def test_a_shard_that_nobody_else_takes_after_all_stays_where_it_is(*, replicated: bool) -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        mesh.give(SHARD, "a")
        await settle()
        await a.queues.handing_over({SHARD})
        told = b.publish(b"one")
        await settle()
        assert told == []
        a.queues.owners({SHARD: "a"})
        taker = b.consume()
        await until(lambda: (told, taker.bodies) == (["one"], [b"one"]))

    run(test, store=store(replicated=replicated))


def test_without_replicas_a_shard_that_is_handed_over_takes_its_messages_along_in_order() -> None:
    async def test(mesh: Mesh) -> None:
        a, b, c = (mesh.start(name) for name in "abc")
        mesh.give(SHARD, "a")
        await settle()
        first, second = a.publish(b"1", b"2"), c.publish(b"3")
        await until(lambda: (first, second) == (["1", "2"], ["3"]))
        await mesh.hand_over(SHARD, "b")
        c.publish(b"4")
        taker = c.consume()
        await until(lambda: len(taker.got) == 4)
        assert taker.bodies == [b"1", b"2", b"3", b"4"]
        assert await a.queues.settled(WAIT)
        assert len(b.hub.queues[QUEUE]) == 4

    run(test, store=None)


def test_an_owner_that_starts_again_knows_what_it_has_done() -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name) for name in "ab")
        recorder = a.hub.recorder = Recorder(0, lambda: 10**18, lambda: None)
        mesh.give(SHARD, "a")
        await settle()
        mesh.cut.add("a")  # its answers are lost
        told = b.publish(b"one", b"two")
        await until(lambda: requests_done(a.hub) == {f"{SHARD}:b/1": (2, [])})
        maker = BatchMaker("a")
        rows = [pa.Table.from_batches([maker.make(each)]).cast(PLAIN_SCHEMA) for each in recorder.take()]
        assert sorted(map(str, _folded(rows)["kind"].to_pylist())) == ["enqueue", "enqueue", "session"]
        mesh.kill("a")
        mesh.cut.clear()
        assert told == []
        again = mesh.start("a", life=2)
        again.hub.shared.update(a.hub.shared)
        mesh.give(SHARD, "a")
        await until(lambda: told == ["one", "two"])
        assert again.queues.duplicates == 2

    run(test, store=None)


def test_an_owner_that_starts_again_is_told_what_was_acknowledged_meanwhile() -> None:
    async def test(mesh: Mesh) -> None:
        a, b = (mesh.start(name, restore=journal_from(0)) for name in "ab")
        mesh.give(SHARD, "a")
        await settle()
        taker = b.consume()
        a.publish(b"one", b"two", b"three")
        await until(lambda: len(taker.got) == 3)
        on_disk = [each.message for each in taker.got]
        for each in taker.got:
            each.message.offset = each.number
        a.publish(b"four")
        await until(lambda: len(taker.got) == 4)
        one, two, three, four = taker.got
        mesh.kill("a")
        assert one.ack()
        again = mesh.start("a", life=2, restore=journal_from(three.number + 1, *on_disk))
        mesh.give(SHARD, "a")
        again.publish(b"five")  # has the place that the lost message had
        at_a = again.consume()
        await until(lambda: at_a.bodies == [b"five"])
        assert at_a.got[0].number == four.number
        assert two.ack()
        assert not four.ack()
        await until(lambda: len(again.hub.queues[QUEUE]) == 2)
        three.queue.detach(taker)
        await until(lambda: at_a.bodies == [b"five", b"three"])

    run(test, store=None)


def journal_from(first: int, *messages: Message) -> Callable[[Hub], None]:
    """Give a hub a journal that goes on at an offset, and its queue what the journal has."""

    def restore(hub: Hub) -> None:
        hub.recorder = Recorder(first, lambda: 10**18, lambda: None)
        for message in messages:
            hub.queue(QUEUE).enter(message)

    return restore
