"""Workers find each other over Unix sockets, as their supervisor names them."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from polywire.fabric.membership import SHARDS, preferred
from polywire.fabric.workers import Frames, Member, Members, WorkerMembership
from tests.client.loops import run

NAMES = ("hub-1", "hub-2", "hub-3")


class Recorded:
    """What a membership has reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.left_for: list[tuple[str, str]] = []
        self.batches: list[tuple[str, bytes]] = []
        self.shards: dict[int, str | None] = {}
        self.handed_over: list[int] = []
        self.unreachable = ""
        self._moved = asyncio.Event()

    def joined(self, node: str, life: int) -> None:
        self.nodes[node] = life
        self._moved.set()

    def left(self, node: str, reason: str) -> None:
        del self.nodes[node]
        self.left_for.append((node, reason))
        self._moved.set()

    def received(self, node: str, batch: bytes) -> None:
        assert node in self.nodes
        self.batches.append((node, batch))
        self._moved.set()

    def owners(self, changed: Mapping[int, str | None]) -> None:
        self.shards.update(changed)
        self._moved.set()

    async def handing_over(self, shards: Collection[int]) -> None:
        self.handed_over = sorted(shards)

    def reachable(self, yes: bool, why: str) -> None:
        self.unreachable = "" if yes else why
        self._moved.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not enough():
                self._moved.clear()
                await self._moved.wait()


class Supervised:
    """A supervisor in the same process: it names whoever is present to all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.present: dict[str, Member] = {}
        self.gone: dict[str, str] = {}
        self.workers: dict[str, WorkerMembership] = {}

    def worker(self, node: str, life: int) -> tuple[WorkerMembership, Recorded]:
        supervised = self

        class Line:
            def present(self, member: Member) -> None:
                supervised.present[node] = member
                supervised.tell()

            def leaving(self) -> None:
                supervised.end(node, "left")

        self.workers[node] = WorkerMembership(node, life, self.folder, NAMES, Line())
        return self.workers[node], Recorded()

    async def abandon(self, node: str) -> None:
        """Let a worker go that the others know to be gone."""
        each = self.workers.pop(node)
        each.orphaned()
        await each.leave()

    def end(self, node: str, reason: str) -> None:
        self.present.pop(node)
        self.gone[node] = reason
        self.tell()

    def tell(self) -> None:
        found = Members(tuple(self.present.values()), self.gone)
        for each in self.workers.values():
            asyncio.get_running_loop().call_soon(each.members, found)


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[tuple[Supervised, list[WorkerMembership], list[Recorded]]]:
    supervised = Supervised(folder)
    pairs = [supervised.worker(name, life) for life, name in enumerate(NAMES, start=1)]
    try:
        for membership, events in pairs:
            await membership.start(events)
        for _, events in pairs:
            await events.until(lambda: len(events.nodes) == len(NAMES) - 1)  # noqa: B023 - awaited at once
        yield supervised, [each for each, _ in pairs], [each for _, each in pairs]
    finally:
        for name in list(supervised.workers):
            await supervised.abandon(name)


def check(folder: Path, work: Callable[[Supervised, list[WorkerMembership], list[Recorded]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with three(folder) as (supervised, workers, events):
            await work(supervised, workers, events)

    run(main)
    assert not list(folder.iterdir())


def test_a_start_ends_when_everybody_who_is_there_has_joined(tmp_path: Path) -> None:
    async def work(_: Supervised, workers: list[WorkerMembership], events: list[Recorded]) -> None:
        assert events[2].nodes == {"hub-1": 1, "hub-2": 2}
        assert events[0].nodes == {"hub-2": 2, "hub-3": 3}
        assert list(cast("dict[str, object]", workers[0].status()["nodes"])) == ["hub-2", "hub-3"]

    check(tmp_path, work)


def test_batches_arrive_whole_and_in_order_whatever_their_size(tmp_path: Path) -> None:
    sizes = [0, 1, 3, 300_000, 7, 5_000_000, 65_536, 0]

    async def work(_: Supervised, workers: list[WorkerMembership], events: list[Recorded]) -> None:
        sent = [bytes([number]) * size for number, size in enumerate(sizes)]
        for batch in sent:
            workers[2].send("hub-1", memoryview(batch))
            workers[0].send("hub-3", batch)
        await events[0].until(lambda: len(events[0].batches) == len(sizes))
        await events[2].until(lambda: len(events[2].batches) == len(sizes))
        assert events[0].batches == [("hub-3", batch) for batch in sent]
        assert events[2].batches == [("hub-1", batch) for batch in sent]
        assert not events[1].batches

    check(tmp_path, work)


def test_each_shard_has_one_home_and_no_owner_while_that_is_down(tmp_path: Path) -> None:
    async def work(supervised: Supervised, workers: list[WorkerMembership], events: list[Recorded]) -> None:
        homes = {shard: preferred(shard, NAMES) for shard in range(SHARDS)}
        await events[0].until(lambda: events[0].shards == homes)
        assert [workers[1].owner(shard) for shard in range(SHARDS)] == list(homes.values())
        supervised.end("hub-2", "ended by signal 9")
        await events[0].until(lambda: None in events[0].shards.values())
        assert {workers[0].term(shard) for shard, home in homes.items() if home == "hub-2"} == {2}
        assert events[0].shards == {shard: None if home == "hub-2" else home for shard, home in homes.items()}
        assert events[0].left_for == [("hub-2", "ended by signal 9")]
        await supervised.abandon("hub-2")
        again, heard = supervised.worker("hub-2", 9)
        await again.start(heard)
        await events[0].until(lambda: events[0].shards == homes)
        assert {workers[0].term(shard) for shard, home in homes.items() if home == "hub-2"} == {9}
        assert heard.nodes == {"hub-1": 1, "hub-3": 3}
        await events[0].until(lambda: events[0].nodes == {"hub-2": 9, "hub-3": 3})

    check(tmp_path, work)


def test_a_worker_that_leaves_is_gone_for_the_others_before_its_links_close(tmp_path: Path) -> None:
    async def work(_: Supervised, workers: list[WorkerMembership], events: list[Recorded]) -> None:
        await workers[0].leave()
        assert not events[0].handed_over  # its shards wait for it to come back
        for each in events[1:]:
            await each.until(lambda: bool(each.left_for))  # noqa: B023 - awaited at once
            assert each.left_for == [("hub-1", "left")]

    check(tmp_path, work)


def test_a_broken_connection_is_opened_again_without_anybody_leaving(tmp_path: Path) -> None:
    async def work(_: Supervised, workers: list[WorkerMembership], events: list[Recorded]) -> None:
        for breaker, other in ((0, 1), (1, 0)):
            links = workers[breaker]._links
            assert links is not None
            frames = links._peers[NAMES[other]].frames
            assert frames is not None
            frames.abort()
            received = len(events[other].batches)
            async with asyncio.timeout(10):
                while len(events[other].batches) == received:
                    workers[breaker].send(NAMES[other], b"again")
                    await asyncio.sleep(0.01)
            assert not events[0].left_for
            assert not events[1].left_for

    check(tmp_path, work)


def test_the_end_of_the_supervisor_is_reported(tmp_path: Path) -> None:
    async def work(_: Supervised, workers: list[WorkerMembership], events: list[Recorded]) -> None:
        workers[1].orphaned()
        assert events[1].unreachable == "the supervisor has ended"
        assert workers[1].status()["connected"] is False

    check(tmp_path, work)


@pytest.mark.parametrize("first", [b"\x03\x00\x00\x00abc", struct.pack("<I", 1 << 31), b"\x01\x00\x00\x00\x92"])
def test_a_stranger_on_the_socket_is_turned_away(first: bytes, tmp_path: Path) -> None:
    async def work(supervised: Supervised, _: list[WorkerMembership], events: list[Recorded]) -> None:
        reader, writer = await asyncio.open_unix_connection(supervised.present["hub-1"].path)
        writer.write(first)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert not events[0].batches

    check(tmp_path, work)


def test_frames_are_found_however_the_bytes_are_cut() -> None:
    found: list[bytes] = []
    sent = [b"", b"a", b"bc" * 100, b"", b"d" * 70]
    data = b"".join(struct.pack("<I", len(each)) + each for each in sent)
    for size in range(1, 30):
        found.clear()
        frames = Frames(found.append, lambda: None)
        for start in range(0, len(data), size):
            frames.data_received(data[start : start + size])
        assert found == sent
