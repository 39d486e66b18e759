"""Membership on real NATS servers: names, leases, owners of shards, and batches."""

import asyncio
import contextlib
import itertools
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from pathlib import Path

import pytest

from polywire.fabric.membership import SHARDS, MembershipError, preferred
from polywire.fabric.nats import NatsMembership, NatsSettings, boot_time
from tests.nats_servers import NatsCluster, running_nats

LEASE = 3.0
WAIT = 45.0
"""Seconds that a loaded machine may take for what takes two or three leases."""

clusters = itertools.count()


class Recorded:
    """What a membership has reported."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.nodes: dict[str, int] = {}
        self.gone: list[tuple[str, str]] = []
        self.batches: list[tuple[str, bytes]] = []
        self.shards: dict[int, str | None] = {}
        self.given: list[frozenset[int]] = []
        self.reached: list[tuple[bool, str]] = []

    def joined(self, node: str, life: int) -> None:
        self.nodes[node] = life
        self.changed.set()

    def left(self, node: str, reason: str) -> None:
        del self.nodes[node]
        self.gone.append((node, reason))
        self.changed.set()

    def received(self, node: str, batch: bytes) -> None:
        self.batches.append((node, batch))
        self.changed.set()

    def owners(self, changed: Mapping[int, str | None]) -> None:
        self.shards.update(changed)
        self.changed.set()

    async def handing_over(self, shards: Collection[int]) -> None:
        self.given.append(frozenset(shards))

    def reachable(self, yes: bool, why: str) -> None:
        self.reached.append((yes, why))
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with running_nats(tmp_path_factory.mktemp("nats")) as found:
        yield found


@pytest.fixture
def cluster() -> str:
    return f"tests-{next(clusters)}"


@contextlib.asynccontextmanager
async def member(
    servers: NatsCluster, cluster: str, node: str, *, clock: Callable[[], float] = boot_time, waits: bool = False
) -> AsyncIterator[tuple[NatsMembership, Recorded]]:
    settings = NatsSettings(
        cluster, node, servers.urls, lease=LEASE, lost_shards_wait=waits, about={"http": f"of {node}"}
    )
    found, events = NatsMembership(settings, clock=clock), Recorded()
    await found.start(events)
    try:
        yield found, events
    finally:
        async with asyncio.timeout(WAIT):
            await found.leave()


def owned(events: Recorded, node: str) -> list[int]:
    return [shard for shard, owner in events.shards.items() if owner == node]


def should_own(node: str, *nodes: str) -> set[int]:
    return {shard for shard in range(SHARDS) if preferred(shard, nodes) == node}


async def shared(events: Recorded) -> None:
    """Wait until the nodes a and b have the shards that they should have."""
    await events.until(lambda: all(set(owned(events, node)) == should_own(node, "a", "b") for node in ("a", "b")))


def test_nodes_learn_of_each_other_and_share_the_shards(servers: NatsCluster, cluster: str) -> None:
    async def run() -> None:
        async with member(servers, cluster, "a") as (one, first):
            await first.until(lambda: len(owned(first, "a")) == SHARDS)
            async with member(servers, cluster, "b") as (other, second):
                assert second.nodes == {"a": one.life}
                await first.until(lambda: first.nodes == {"b": other.life})
                for events in (first, second):
                    await shared(events)
                assert frozenset().union(*first.given) == should_own("b", "a", "b")
                assert {one.owner(0), other.owner(0)} in ({"a"}, {"b"})
                assert one.term(0) == other.term(0) > 0
            await first.until(lambda: not first.nodes and len(owned(first, "a")) == SHARDS)
            assert first.gone == [("b", "it did not renew its lease, or has left")]

    asyncio.run(run())


def test_a_batch_reaches_the_node_it_is_for_in_order_and_whole(servers: NatsCluster, cluster: str) -> None:
    batches = [b"one", b"", bytes(range(256)) * 10_000, b"last"]

    async def run() -> None:
        async with member(servers, cluster, "a") as (one, first), member(servers, cluster, "b.example") as (_, second):
            await first.until(lambda: "b.example" in first.nodes)
            for each in batches:
                one.send("b.example", memoryview(each))
            await second.until(lambda: len(second.batches) == len(batches))
            assert second.batches == [("a", each) for each in batches]
            assert not first.batches

    asyncio.run(run())


def test_a_name_that_lives_is_refused(servers: NatsCluster, cluster: str) -> None:
    async def run() -> None:
        async with member(servers, cluster, "a") as (_, events):
            with pytest.raises(MembershipError, match=r"a node called 'a' is part of the cluster .* fabric\.node"):
                await NatsMembership(NatsSettings(cluster, "a", servers.urls, lease=LEASE)).start(Recorded())
            await events.until(lambda: len(owned(events, "a")) == SHARDS)

    asyncio.run(run())


CRASHED = """
import asyncio, os, sys
from polywire.fabric.nats import NatsMembership, NatsSettings
from tests.fabric.test_nats import LEASE, Recorded

async def run():
    node = NatsMembership(NatsSettings(sys.argv[1], "a", (sys.argv[2],), lease=LEASE))
    await node.start(Recorded())
    print("started", flush=True)
    await asyncio.sleep(3600 if sys.argv[3] == "stay" else 0)
    os._exit(1)

asyncio.run(run())
"""


def crashing(servers: NatsCluster, cluster: str, how: str) -> "subprocess.Popen[str]":
    """A node in a process of its own, which has started."""
    command = [sys.executable, "-c", CRASHED, cluster, servers.urls[0], how]
    process = subprocess.Popen(  # noqa: S603 - this Python
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def test_a_node_that_was_killed_has_its_name_again_at_once(servers: NatsCluster, cluster: str) -> None:
    with crashing(servers, cluster, "crash") as process:
        process.wait(20)

    async def run() -> None:
        began = boot_time()
        async with member(servers, cluster, "a"):
            assert boot_time() - began < LEASE

    asyncio.run(run())


def test_a_killed_node_is_given_up_and_its_shards_are_taken(servers: NatsCluster, cluster: str) -> None:
    async def run() -> None:
        async with member(servers, cluster, "b") as (_, events):
            with crashing(servers, cluster, "stay") as process:
                await events.until(lambda: "a" in events.nodes and bool(owned(events, "a")))
                process.kill()
                began = boot_time()
                await events.until(lambda: "a" not in events.nodes)
                assert boot_time() - began > LEASE / 2
            await events.until(lambda: len(owned(events, "b")) == SHARDS)

    asyncio.run(run())


def test_a_shard_waits_for_its_owner_where_only_that_has_its_messages(servers: NatsCluster, cluster: str) -> None:
    async def run() -> None:
        async with member(servers, cluster, "b", waits=True) as (_, events):
            with crashing(servers, cluster, "stay") as process:
                mine = should_own("a", "a", "b")
                await events.until(lambda: set(owned(events, "a")) == mine)
                process.kill()
                await events.until(lambda: all(events.shards[shard] is None for shard in mine))
            async with member(servers, cluster, "a", waits=True):
                await events.until(lambda: set(owned(events, "a")) == mine)

    asyncio.run(run())


def test_a_shard_that_is_given_to_a_node_that_has_just_left_does_not_wait_for_it(
    servers: NatsCluster, cluster: str
) -> None:
    async def run() -> None:
        async with member(servers, cluster, "b", waits=True) as (other, events):
            async with member(servers, cluster, "a", waits=True) as (one, _):
                await shared(events)
                await one.hand_over()
                await events.until(lambda: len(owned(events, "b")) == SHARDS)
                await other._assign(7, "a", one.life, other.term(7))
                await one.retire()
            await events.until(lambda: "a" not in events.nodes)
            await events.until(lambda: other.owner(7) == "b")

    asyncio.run(run())


def test_a_node_that_was_paused_for_longer_than_its_lease_knows_that_it_owns_nothing(
    servers: NatsCluster, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    late = 0.0

    async def run() -> None:
        nonlocal late
        async with (
            member(servers, cluster, "a", clock=lambda: boot_time() + late) as (one, first),
            member(servers, cluster, "b") as (_, second),
        ):
            mine = should_own("a", "a", "b")
            await second.until(lambda: set(owned(second, "a")) == mine)
            shard = min(mine)
            assert one.owner(shard) == "a"
            life, term = one.life, one.term(shard)
            late = LEASE  # as if nothing had run for so long
            assert one.owner(shard) is None
            await one._kv().delete("node.a")  # which is what the others do
            await second.until(lambda: second.nodes.get("a", life) > life)
            await first.until(lambda: set(owned(first, "a")) == mine and one.owner(shard) == "a")
            assert one.life > life
            assert one.term(shard) > term

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "it joins again" in caplog.text


def test_without_nats_nobody_is_given_up_and_all_is_well_again_afterwards(tmp_path: Path, cluster: str) -> None:
    async def run(servers: NatsCluster) -> None:
        async with member(servers, cluster, "a") as (one, first), member(servers, cluster, "b") as (_, second):
            await first.until(lambda: set(owned(first, "b")) == should_own("b", "a", "b"))
            life = second.nodes["a"]
            servers.servers[0].kill()
            await first.until(lambda: first.reached[-1][0] is False)
            assert servers.servers[0].url in first.reached[-1][1]
            one.send("b", b"lost")
            await first.until(lambda: not any(one.owner(shard) == "a" for shard in range(SHARDS)))
            servers.servers[0].start()
            await first.until(lambda: first.reached[-1][0])
            await first.until(lambda: set(owned(first, "a")) == should_own("a", "a", "b"))
            assert second.nodes == {"a": life}
            assert not first.gone
            assert not second.gone
            one.send("b", b"found")
            await second.until(lambda: bool(second.batches))
            assert second.batches == [("a", b"found")]

    with running_nats(tmp_path) as servers:
        asyncio.run(run(servers))


def test_where_nats_is_not_there_the_error_names_the_place_without_the_password(cluster: str) -> None:
    settings = NatsSettings(cluster, "a", ("nats://hub:secret@127.0.0.1:1",))
    with pytest.raises(MembershipError, match=r"can't reach NATS at nats://127\.0\.0\.1:1: .*fabric\.url"):
        asyncio.run(NatsMembership(settings).start(Recorded()))


@pytest.mark.parametrize("name", ["", "a b", "a..b", ".a", "a*", "a>"])
def test_a_name_that_nats_can_not_have_is_refused(name: str) -> None:
    with pytest.raises(MembershipError, match="can't be a node's name"):
        NatsMembership(NatsSettings("c", name, ()))


@pytest.mark.parametrize("sync_always", [False, True])
def test_a_server_that_syncs_late_is_named(tmp_path: Path, *, sync_always: bool) -> None:
    with running_nats(tmp_path, sync_always=sync_always) as servers:
        url = servers.servers[0].monitor_url
        settings = NatsSettings("c", "a", servers.urls, monitors=(url,))
        expected = [] if sync_always else [f"{url} has not set sync_interval: always"]
        assert asyncio.run(NatsMembership(settings).unsynced()) == expected
