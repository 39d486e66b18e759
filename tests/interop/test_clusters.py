"""Clients of any two protocols on different nodes of a cluster: workers of one hub, and hubs on a cluster of NATS."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from polywire.fabric.membership import preferred, shard_of
from tests.doors import doors, wait_until_told
from tests.faults.kept_session import KeptSession, Link
from tests.hub_process import HubProcess, running_hub
from tests.interop.speakers import CALLING, PROTOCOLS, speak
from tests.nats_servers import running_nats

NODES = 3
SECONDS = 20.0


class Cluster:
    """Three nodes, and ways to each of them. ``pages`` are those that show all or some of them."""

    def __init__(self, pages: Sequence[HubProcess], addresses: dict[str, dict[str, str]]) -> None:
        self._pages = pages
        self.names = list(addresses)
        self.addresses = addresses

    def links(self) -> dict[tuple[str, str], dict[str, Any]]:
        """What each worker says of its link to each other one."""
        nodes = [node for page in self._pages for node in page.cluster()["nodes"]]
        return {(node["node"], other): link for node in nodes for other, link in node.get("links", {}).items()}

    def sent(self) -> dict[tuple[str, str], int]:
        """The bytes that each link has carried."""
        return {ends: link["bytes_sent"] for ends, link in self.links().items()}

    def wait_until_quiet(self) -> dict[tuple[str, str], int]:
        """Wait until links carry nothing for a moment, as what clients did last is known everywhere."""
        end = time.monotonic() + SECONDS
        before = self.sent()
        while True:
            time.sleep(0.1)
            if (now := self.sent()) == before:
                return now
            assert time.monotonic() < end, "the links do not come to rest"
            before = now

    def wait_until_told(self, subscriber: str, publisher: str) -> None:
        """Wait until one node knows what another's clients have subscribed to."""
        wait_until_told(self.addresses[subscriber]["fmqp"], self.addresses[publisher]["fmqp"])

    def wait_until_linked(self) -> None:
        """Wait until every node has a link to every other one."""
        end = time.monotonic() + SECONDS
        while len(links := self.links()) < NODES * (NODES - 1) or not all(link["up"] for link in links.values()):
            assert time.monotonic() < end, links
            time.sleep(0.02)


@contextlib.contextmanager
def three_workers() -> Iterator[Cluster]:
    with running_hub(workers=NODES) as hub, doors(hub) as found:
        yield Cluster([hub], found.addresses)
        assert hub.stop() == 0


@contextlib.contextmanager
def three_hubs_on_nats(folder: Path) -> Iterator[Cluster]:
    with running_nats(folder, NODES) as servers, contextlib.ExitStack() as stack:
        hubs = {
            f"hub-{number}": stack.enter_context(
                running_hub(
                    "fabric.kind=nats", f"fabric.node=hub-{number}", f'fabric.url=["{server.url}"]', "fabric.replicas=3"
                )
            )
            for number, server in enumerate(servers.servers, start=1)
        }
        found = Cluster(list(hubs.values()), {name: hub.addresses for name, hub in hubs.items()})
        found.wait_until_linked()
        yield found
        for hub in hubs.values():
            assert hub.stop(seconds=40) == 0


@pytest.fixture(scope="module", params=["workers", "nats"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = three_workers() if request.param == "workers" else three_hubs_on_nats(tmp_path_factory.mktemp("nats"))
    with nodes as found:
        yield found


@pytest.mark.parametrize("subscriber", PROTOCOLS)
@pytest.mark.parametrize("publisher", PROTOCOLS)
def test_a_message_crosses_from_each_protocol_to_each(
    cluster: Cluster, name: str, publisher: str, subscriber: str
) -> None:
    one, other, _ = cluster.names
    with (
        speak(subscriber, cluster.addresses[other]) as listener,
        speak(publisher, cluster.addresses[one]) as source,
    ):
        listener.subscribe(name)
        cluster.wait_until_told(other, one)
        bodies = [b"one", bytes(range(256)), b"x" * 100_000, b"end"]
        for body in bodies:
            source.publish(name, body)
        heard = [listener.receive() for _ in bodies]
    assert [each.body for each in heard] == bodies
    assert {each.channel for each in heard} == {name if listener.tells_channel else ""}


def test_each_subscriber_gets_a_message_once_wherever_it_is(cluster: Cluster, name: str) -> None:
    places = [cluster.addresses[node] for node in cluster.names for _ in range(2)]
    with speak("mqtt", places[0]) as source:
        listeners = [speak("fmqp", place) for place in places]
        for each in listeners:
            each.subscribe(name)
        for one, other in itertools.permutations(cluster.names, 2):
            cluster.wait_until_told(one, other)
        for number in range(100):
            source.publish(name, b"%d" % number)
        for each in listeners:
            assert [each.receive().body for _ in range(100)] == [b"%d" % number for number in range(100)]
        for each in listeners:
            each.publish(name, b"end")  # from each worker once: a message that came twice would be before it
            assert {listener.receive().body for listener in listeners} == {b"end"}
        for each in listeners:
            each.wire.close()


def test_what_nobody_else_wants_crosses_no_link(cluster: Cluster, name: str) -> None:
    one, other, _ = cluster.names
    with (
        speak("fmqp", cluster.addresses[one]) as listener,
        speak("fmqp", cluster.addresses[one]) as source,
        speak("umq", cluster.addresses[other]) as elsewhere,
    ):
        listener.subscribe(name)
        elsewhere.subscribe(f"{name}/other")
        cluster.wait_until_told(one, other)
        cluster.wait_until_told(other, one)
        before = cluster.wait_until_quiet()
        for number in range(1000):
            source.publish(name, b"%d" % number)
        assert [listener.receive().body for _ in range(1000)][-1] == b"999"
        assert cluster.sent() == before


def queue_of(cluster: Cluster, owner: str, name: str) -> str:
    """A queue that this node owns."""
    found = (f"{name}-{number}" for number in itertools.count())
    return next(each for each in found if preferred(shard_of(each), cluster.names) == owner)


@pytest.mark.parametrize("owner", [0, 1, 2])
@pytest.mark.parametrize("consumer", PROTOCOLS)
@pytest.mark.parametrize("producer", PROTOCOLS)
def test_a_queue_is_one_queue_wherever_its_owner_is(
    cluster: Cluster, name: str, producer: str, consumer: str, owner: int
) -> None:
    queue = "queue/" + queue_of(cluster, cluster.names[owner], name)
    one, other, _ = cluster.names
    with speak(producer, cluster.addresses[one]) as source, speak(consumer, cluster.addresses[other]) as worker:
        source.publish(queue, b"1")
        source.publish(queue, b"2")
        worker.subscribe(queue)
        source.publish(queue, b"3")
        jobs = [worker.receive() for _ in range(3)]
    assert [job.body for job in jobs] == [b"1", b"2", b"3"]
    assert {job.channel for job in jobs} == {queue if worker.tells_channel else ""}


@pytest.mark.parametrize("provider", CALLING)
@pytest.mark.parametrize("caller", CALLING)
def test_a_service_can_be_called_from_another_node(cluster: Cluster, name: str, caller: str, provider: str) -> None:
    one, other, _ = cluster.names
    with (
        speak(provider, cluster.addresses[other]) as service,
        speak(caller, cluster.addresses[one]) as client,
        speak("fmqp", cluster.addresses[other]),
    ):
        service.serve(name)
        cluster.wait_until_told(other, one)
        for number in range(3):
            ticket = client.begin_call(name, "Turn", b"ab%d" % number)
            service.answer(lambda method, body: method.encode() + body[::-1])
            assert client.end_call(ticket) == b"Turn%dba" % number


@pytest.mark.parametrize("subscriber", PROTOCOLS)
def test_a_retained_message_is_on_every_node(cluster: Cluster, name: str, subscriber: str) -> None:
    one, *others = cluster.names
    with speak("mqtt", cluster.addresses[one]) as source:
        source.publish(name, b"kept", retain=True)
    for node in others:
        cluster.wait_until_told(one, node)
        with speak(subscriber, cluster.addresses[node]) as late:
            late.subscribe(name)
            assert late.receive().body == b"kept"


def test_a_kept_session_has_the_configured_limits_wherever_it_moves(tmp_path: Path) -> None:
    sets = ("limits.offline_messages=2",)
    with running_hub(*sets, journal=tmp_path, workers=2) as hub, doors(hub) as ways:
        first, second = ways.addresses.values()
        session = KeptSession("moved")
        link = Link(first["mqtt"], session)
        link.subscribe("limited", 1)
        link.leave()
        leaving = next(iter(hub.workers()))
        assert hub.post(f"/v1/nodes/{leaving}/drain")[0] == 202
        hub.wait_for_log(f"{leaving} ended with exit code 0")
        with speak("umq", second) as speaker:
            for number in range(5):
                speaker.publish("limited", b"%d" % number)
        link = Link(second["mqtt"], session)
        assert link.present
        link.publish("limited", b"the end", 1)
        link.wait_for(3)
        assert session.got == [b"0", b"1", b"the end"]
        link.leave()
