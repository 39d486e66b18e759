"""Hubs that act as one, in processes of their own, on a cluster of three NATS servers."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import polywire
from polywire.protocols import mqtt
from tests.hub_process import HubProcess, StartError, running_hub
from tests.nats_servers import NatsCluster, running_nats

WAIT = 100.0

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with running_nats(tmp_path_factory.mktemp("nats"), 3) as found:
        yield found


@contextlib.contextmanager
def node(servers: NatsCluster, cluster: str, name: str, folder: Path, *sets: str) -> Iterator[HubProcess]:
    urls = ", ".join(f'"{url}"' for url in servers.urls)
    fabric = ("fabric.kind=nats", f"fabric.url=[{urls}]", f"fabric.cluster={cluster}", f"fabric.node={name}")
    with running_hub(*fabric, *sets, journal=folder / name) as hub:
        yield hub


def at(hub: HubProcess, protocol: str) -> str:
    """The URL for clients of a protocol."""
    address = hub.addresses[protocol]
    return f"{protocol}://{address.partition('://')[2]}"


async def put(url: str, *bodies: str, queue: str = "jobs") -> None:
    async with polywire.connect(url) as bus:
        jobs = bus.queue(queue)
        for body in bodies:
            async with asyncio.timeout(WAIT):
                assert await jobs.put(body) is polywire.Promise.ACKNOWLEDGED


async def take(url: str, count: int, queue: str = "jobs") -> list[str]:
    found = []
    async with polywire.connect(url) as bus, asyncio.timeout(WAIT):
        async for message in bus.queue(queue):
            found.append(message.body.decode())
            message.ack()
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(("to", "by"), [("mqtt", "umq"), ("sabc", "micromsg"), ("umq", "mqtt"), ("micromsg", "sabc")])
def test_what_is_put_on_one_node_is_taken_on_another(
    servers: NatsCluster, tmp_path: Path, to: str, by: str, replicas: int
) -> None:
    sets = (f"fabric.replicas={replicas}",)
    cluster = f"matrix-{to}-{replicas}"
    with node(servers, cluster, "a", tmp_path, *sets) as a, node(servers, cluster, "b", tmp_path, *sets) as b:
        bodies = [f"{to} {number}" for number in range(20)]
        for queue in ("jobs", "others", "third"):  # of different owners, most likely
            asyncio.run(put(at(a, to), *bodies, queue=queue))
            assert asyncio.run(take(at(b, by), len(bodies), queue)) == bodies


def test_what_was_acknowledged_is_there_after_its_owner_was_killed(servers: NatsCluster, tmp_path: Path) -> None:
    sets = ("fabric.replicas=3",)
    with contextlib.ExitStack() as stack:
        hubs = {name: stack.enter_context(node(servers, "killed", name, tmp_path, *sets)) for name in "abc"}
        queues = [f"queue{number}" for number in range(8)]
        for queue in queues:
            asyncio.run(put(at(hubs["a"], "sabc"), "one", "two", queue=queue))
        hubs["b"].stop(signal.SIGKILL)
        for queue in queues:
            assert asyncio.run(take(at(hubs["c"], "umq"), 2, queue)) == ["one", "two"]


def test_a_node_that_was_paused_for_longer_than_its_lease_delivers_nothing_that_was_acknowledged(
    servers: NatsCluster, tmp_path: Path
) -> None:
    sets = ("fabric.replicas=3", "fabric.lease=2")
    with node(servers, "paused", "a", tmp_path, *sets) as a, node(servers, "paused", "b", tmp_path, *sets) as b:
        queues = [f"queue{number}" for number in range(6)]
        for queue in queues:
            asyncio.run(put(at(a, "sabc"), "one", "two", queue=queue))
        a.process.send_signal(signal.SIGSTOP)
        for queue in queues:
            assert asyncio.run(take(at(b, "umq"), 2, queue)) == ["one", "two"]
        a.process.send_signal(signal.SIGCONT)
        for queue in queues:
            asyncio.run(put(at(a, "sabc"), "three", queue=queue))
            assert asyncio.run(take(at(a, "mqtt"), 1, queue)) == ["three"]


def test_nothing_is_lost_doubled_or_out_of_order_while_servers_of_nats_are_killed(tmp_path: Path) -> None:
    count = 120

    async def publish(hub: HubProcess, queue: str) -> None:
        for number in range(0, count, 10):
            await put(at(hub, "mqtt"), *(str(each) for each in range(number, number + 10)), queue=queue)

    async def kill(cluster: NatsCluster) -> None:
        for each in cluster.servers[:2]:
            await asyncio.to_thread(each.kill)
            await asyncio.sleep(0.5)
            each.start()
            await asyncio.to_thread(cluster.wait)

    async def run(cluster: NatsCluster, hubs: list[HubProcess]) -> None:
        queues = ["one", "two", "three", "four"]
        async with asyncio.timeout(120):
            found = await asyncio.gather(
                kill(cluster),
                *(publish(hubs[index % 2], queue) for index, queue in enumerate(queues)),
                *(take(at(hubs[index // 2], "umq"), count, queue) for index, queue in enumerate(queues)),
            )
        for taken in found[1 + len(queues) :]:
            assert taken == [str(number) for number in range(count)]

    sets = ("fabric.replicas=3",)
    with (
        running_nats(tmp_path, 3) as cluster,
        node(cluster, "servers", "a", tmp_path, *sets) as a,
        node(cluster, "servers", "b", tmp_path, *sets) as b,
    ):
        asyncio.run(run(cluster, [a, b]))


def test_a_node_that_is_stopped_hands_its_queues_over(servers: NatsCluster, tmp_path: Path) -> None:
    with node(servers, "stopped", "b", tmp_path) as b:
        queues = [f"queue{number}" for number in range(8)]
        with node(servers, "stopped", "a", tmp_path) as a:
            for queue in queues:
                asyncio.run(put(at(a, "sabc"), "one", "two", queue=queue))
            assert a.stop(seconds=60) == 0
        for queue in queues:
            assert asyncio.run(take(at(b, "mqtt"), 2, queue)) == ["one", "two"]


def test_topics_reach_the_other_node(servers: NatsCluster, tmp_path: Path) -> None:
    async def run(a: HubProcess, b: HubProcess) -> None:
        async with (
            polywire.connect(at(a, "fmqp")) as one,
            polywire.connect(at(b, "mqtt")) as other,
            other.subscribe("home/*") as messages,
        ):
            async with asyncio.timeout(WAIT):
                while True:  # until the patterns have got about
                    one.publish("home/kitchen", "21.5")
                    with contextlib.suppress(TimeoutError):
                        message = await asyncio.wait_for(anext(messages), 0.2)
                        break
            assert (message.channel, message.body) == ("home/kitchen", b"21.5")

    with node(servers, "topics", "a", tmp_path) as a, node(servers, "topics", "b", tmp_path) as b:
        asyncio.run(run(a, b))


def test_a_second_node_with_the_same_name_is_refused(servers: NatsCluster, tmp_path: Path) -> None:
    with (
        node(servers, "names", "a", tmp_path),
        pytest.raises(StartError, match="a node called 'a' is part of the cluster 'names'"),
        node(servers, "names", "a", tmp_path / "other"),
    ):
        pass


def test_without_nats_the_hub_says_where_it_looked(tmp_path: Path) -> None:
    sets = ("fabric.kind=nats", "fabric.url=nats://me:secret@127.0.0.1:1")
    with (
        pytest.raises(StartError, match=r"can't reach NATS at nats://127\.0\.0\.1:1"),
        running_hub(*sets, journal=tmp_path / "journal"),
    ):
        pass


def test_a_kept_session_follows_its_client_to_another_node(servers: NatsCluster, tmp_path: Path) -> None:
    async def listen(hub: HubProcess, count: int) -> tuple[bool, list[bytes]]:
        """Connect as the device, and take so many messages. Whether there was a session, and the messages."""
        opening = mqtt.connect(at(hub, "mqtt"), client_id="device", clean_session=False)
        async with opening as device, asyncio.timeout(WAIT):
            listening = await device.subscribe("home/kitchen", qos=1)
            return device.session_present, [(await anext(listening)).payload for _ in range(count)]

    async def publish(hub: HubProcess, *bodies: bytes) -> None:
        async with mqtt.connect(at(hub, "mqtt")) as publisher, asyncio.timeout(WAIT):
            for body in bodies:
                await publisher.publish("home/kitchen", body, qos=1)

    with node(servers, "sessions", "a", tmp_path) as a, node(servers, "sessions", "b", tmp_path) as b:
        assert asyncio.run(listen(a, 0)) == (False, [])
        asyncio.run(publish(a, b"1", b"2"))
        assert asyncio.run(listen(b, 2)) == (True, [b"1", b"2"])
        asyncio.run(publish(a, b"3"))
        asyncio.run(publish(b, b"4"))
        assert asyncio.run(listen(a, 2)) == (True, [b"3", b"4"])
