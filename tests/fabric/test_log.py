"""The replicated log of a shard, on real NATS servers."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest
from nats.js.errors import NotFoundError

from polywire.fabric import log as log_module
from polywire.fabric.log import ShardLog
from polywire.fabric.membership import Contents, LogLost
from polywire.hub.client import Client, Counters
from polywire.hub.message import Message
from polywire.hub.outbox import NOWHERE, Flusher, Outbox
from polywire.hub.recorder import Recorder, message_of
from tests.nats_servers import NatsCluster, running_nats

NOW = 1_000_000_000_000_000_000
WAIT = 40.0

streams = itertools.count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with running_nats(tmp_path_factory.mktemp("nats"), 3) as found:
        yield found


@pytest.fixture
def stream() -> str:
    return f"log-{next(streams)}"


class Writer:
    """A shard's owner, with the recorder whose rows go into the log."""

    def __init__(self, shard: ShardLog, first: int) -> None:
        self.shard = shard
        self.recorder = Recorder(first, lambda: NOW, lambda: None)
        outbox = Outbox(NOWHERE, Flusher(lambda _: None, lambda _, __: None))  # type: ignore[arg-type, return-value]
        self.client = Client(7, 0, outbox, Counters("fmqp"))
        self.stored: list[int] = []

    def put(self, body: bytes, queue: str = "jobs") -> int:
        return self.recorder.enqueued(Message(f"queue/{queue}", body, time=NOW), self.client)

    def flush(self, seen: dict[str, int] | None = None) -> None:
        for columns in self.recorder.take():
            end = int(columns.first + columns.rows)
            self.shard.append(columns, seen or {}, lambda end=end: self.stored.append(end))  # type: ignore[misc]

    async def flushed(self, seen: dict[str, int] | None = None) -> None:
        self.flush(seen)
        await self.shard.flushed()


@contextlib.asynccontextmanager
async def owner(
    servers: NatsCluster, stream: str, term: int, lost: list[str] | None = None
) -> AsyncIterator[tuple[Writer, Contents]]:
    client = await nats.connect(list(servers.urls), reconnect_time_wait=0.1, max_reconnect_attempts=-1)
    try:
        shard = ShardLog(
            client.jetstream(timeout=10), stream, f"tests.{stream}", node="a", replicas=3,
            lost=(lost if lost is not None else []).append,
        )  # fmt: skip
        async with asyncio.timeout(WAIT):
            contents = await shard.take_over(term)
        try:
            async with asyncio.timeout(WAIT):
                yield Writer(shard, contents.next_offset), contents
        finally:
            await shard.close()
    finally:
        await client.close()


def bodies(contents: Contents) -> list[bytes]:
    return [message_of(row).body for row in contents.rows.to_pylist() if row["kind"] == "enqueue"]


def test_a_new_owner_has_what_was_not_acknowledged(servers: NatsCluster, stream: str) -> None:
    async def run() -> None:
        async with owner(servers, stream, 1) as (writer, contents):
            assert (contents.rows.num_rows, contents.next_offset, contents.seen) == (0, 0, {})
            first, second, third = [writer.put(body) for body in (b"one", b"two", b"three")]
            await writer.flushed({"b/5": 3})
            assert writer.stored == [3]
            writer.recorder.dequeued("jobs", second)
            writer.recorder.returned("jobs", third, 2, "no")
            await writer.flushed({"b/5": 4, "c/6": 1})
        async with owner(servers, stream, 2) as (writer, contents):
            assert bodies(contents) == [b"one", b"three"]
            assert [row["kind"] for row in contents.rows.to_pylist()] == ["enqueue", "enqueue", "nack"]
            assert [row["offset"] for row in contents.rows.to_pylist()][:2] == [first, third]
            assert contents.next_offset == 5
            assert contents.seen == {"b/5": 4, "c/6": 1}

    asyncio.run(run())


def test_a_body_larger_than_a_message_of_nats_takes_several(servers: NatsCluster, stream: str) -> None:
    large = bytes(range(256)) * (3 << 12)

    async def run() -> None:
        async with owner(servers, stream, 1) as (writer, _):
            writer.put(large)
            writer.put(b"small")
            await writer.flushed()
            assert writer.stored == [2]
        async with owner(servers, stream, 2) as (_, contents):
            assert bodies(contents) == [large, b"small"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "WRITE_OPTIONS", None)  # so that it is not compressed
        asyncio.run(run())


def test_an_owner_that_was_replaced_writes_nothing_more(servers: NatsCluster, stream: str) -> None:
    lost: list[str] = []

    async def run() -> None:
        async with owner(servers, stream, 1, lost) as (old, _):
            old.put(b"one")
            await old.flushed()
            async with owner(servers, stream, 2) as (new, contents):
                assert bodies(contents) == [b"one"]
                old.put(b"late")
                await old.flushed()
                assert old.stored == [1]
                assert lost == [f"the log {stream}: another node has taken it over"]
                new.put(b"two")
                await new.flushed()
            with pytest.raises(LogLost, match="belongs to an owner with term 2, not 1"):
                await ShardLog(
                    old.shard._js, stream, f"tests.{stream}", node="a", replicas=3, lost=lost.append
                ).take_over(1)
        async with owner(servers, stream, 3) as (_, contents):
            assert bodies(contents) == [b"one", b"two"]

    asyncio.run(run())


def test_a_snapshot_takes_the_place_of_what_was_before(servers: NatsCluster, stream: str) -> None:
    async def run() -> None:
        async with owner(servers, stream, 1) as (writer, _):
            offsets = [writer.put(b"%d" % number) for number in range(1000)]
            await writer.flushed({"b/1": 9})
            for offset in offsets[:-2]:
                writer.recorder.dequeued("jobs", offset)
            await writer.flushed()
            await writer.shard.compact()
            info = await writer.shard._js.stream_info(stream)
            assert info.state.messages == 1
            writer.put(b"afterwards")
            writer.recorder.dequeued("jobs", offsets[-1])
            await writer.flushed()
            await writer.shard.compact()
            writer.put(b"last")
            await writer.flushed()
        async with owner(servers, stream, 2) as (_, contents):
            assert bodies(contents) == [b"998", b"afterwards", b"last"]
            assert contents.seen == {"b/1": 9}
            assert contents.next_offset == 1000 + 998 + 3

    asyncio.run(run())


def test_a_snapshot_of_nothing_keeps_the_offsets(servers: NatsCluster, stream: str) -> None:
    async def run() -> None:
        async with owner(servers, stream, 1) as (writer, _):
            writer.recorder.dequeued("jobs", writer.put(b"gone"))
            await writer.flushed()
            await writer.shard.compact()
        async with owner(servers, stream, 2) as (_, contents):
            assert (contents.rows.num_rows, contents.next_offset) == (0, 2)

    asyncio.run(run())


def test_two_owners_that_find_no_log_do_not_both_begin_it(servers: NatsCluster, stream: str) -> None:
    lost: list[str] = []

    async def run() -> None:
        async with owner(servers, stream, 1) as (one, _), owner(servers, stream, 2, lost) as (other, _):
            one.put(b"one")
            await one.flushed()
            other.put(b"two")
            await other.flushed()
            assert (one.stored, other.stored) == ([1], [])
            assert lost == [f"the log {stream}: another node has begun it meanwhile"]
            async with owner(servers, stream, 2) as (_, contents):
                assert bodies(contents) == [b"one"]

    asyncio.run(run())


def test_a_shard_without_queues_has_no_stream(servers: NatsCluster, stream: str) -> None:
    async def run() -> None:
        async with owner(servers, stream, 1) as (writer, _):
            with pytest.raises(NotFoundError):
                await writer.shard._js.stream_info(stream)

    asyncio.run(run())


def test_rows_before_a_snapshot_that_were_not_deleted_count_once(
    servers: NatsCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any, **__: Any) -> bool:
        return True

    async def run() -> None:
        async with owner(servers, stream, 1) as (writer, _):
            writer.put(b"one")
            writer.put(b"two")
            await writer.flushed()
            monkeypatch.setattr(writer.shard._js, "purge_stream", nothing)
            await writer.shard.compact()
            writer.put(b"three")
            await writer.flushed()
        async with owner(servers, stream, 2) as (_, contents):
            assert bodies(contents) == [b"one", b"two", b"three"]

    asyncio.run(run())


def test_nothing_is_lost_or_doubled_when_servers_are_killed_while_it_writes(servers: NatsCluster, stream: str) -> None:
    count = 300

    async def run() -> None:
        async with owner(servers, stream, 1) as (writer, _):
            for number in range(count):
                writer.put(b"%d" % number)
                writer.flush()
                if number % 100 == 50:
                    victim = servers.servers[number // 100]
                    victim.kill()
                    await asyncio.sleep(0)
                    victim.start()
                    await asyncio.to_thread(servers.wait)
            await writer.shard.flushed()
            assert writer.stored == list(range(1, count + 1))
        async with owner(servers, stream, 2) as (_, contents):
            assert bodies(contents) == [b"%d" % number for number in range(count)]

    asyncio.run(run())
