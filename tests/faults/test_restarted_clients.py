"""A hub is restarted under a publishing and a subscribing client of every protocol: both go on by themselves.

Each protocol has two buses. One publishes numbers to a topic and puts them into a queue without a pause; the other one
hears the topic and takes from the queue. The hub is ended, cleanly or by SIGKILL, and started again on the same ports
and the same journal. What was acknowledged to a publisher must arrive: at consumers that acknowledge too, and at
subscribers whose session the hub keeps.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import polywire
from polywire.backoff import Backoff
from polywire.client.transport import Opening
from polywire.registry import built_in
from tests.client.loops import run, until
from tests.hub_process import HubProcess, running_hub

PROTOCOLS = tuple(each.name for each in built_in() if each.listeners)
ACKNOWLEDGED = ("umq", "micromsg", "mqtt", "sabc")
"""Those whose publishers are told that a message is safe."""

SURE = ("micromsg", "mqtt", "sabc")
"""Those whose consumers tell the hub that they have a message."""

ENOUGH = 30
"""Messages that everybody has sent or heard before the hub is ended, and again after it is back."""

TOGETHER = 8
"""Messages a publisher has under way at once."""

RESTARTS = 2
SECONDS = 100.0
QUICK = Backoff(first=0.05, most=0.2)

pytestmark = pytest.mark.timeout(200)


@dataclass
class Talk:
    """What the two clients of one protocol know."""

    sent: int = 0
    safe: list[int] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """What a session of MQTT has got of the topic, with QoS 2."""

    def going(self, since: int) -> bool:
        """Whether everybody has come well past this number."""
        newest = (self.safe[-1:], self.queued[-1:], self.heard[-1:], self.taken[-1:])
        return all(numbers and numbers[0] >= since + ENOUGH for numbers in newest)

    def ended(self) -> bool:
        """Whether everybody has the last one."""
        return all(numbers[-1] == self.sent for numbers in (self.safe, self.queued, self.heard, self.taken, self.kept))


class Restarting:
    """A hub on ports that stay the same, and a journal that does."""

    def __init__(self, journal: Path) -> None:
        sockets = {key: socket.create_server(("127.0.0.1", 0)) for key in PROTOCOLS}
        self.ports = {key: each.getsockname()[1] for key, each in sockets.items()}
        for each in sockets.values():
            each.close()
        self._journal = journal
        self._stack = contextlib.ExitStack()
        self._hub: HubProcess | None = None

    def start(self) -> None:
        """Begin a life."""
        paths = {key: f"ws://127.0.0.1:{port}/umq" for key, port in self.ports.items() if key == "umq"}
        sets = [f"listen.{key}={paths.get(key, f'tcp://127.0.0.1:{port}')}" for key, port in self.ports.items()]
        off = ("listen.mqtt_ws=off", "listen.sabc_ws=off")
        self._hub = self._stack.enter_context(running_hub(*sets, *off, journal=self._journal))

    def end(self, how: signal.Signals) -> None:
        """End it."""
        assert self._hub is not None
        code = self._hub.stop(how)
        assert code == (0 if how is signal.SIGTERM else -signal.SIGKILL), "".join(self._hub.errors)
        self._stack.close()

    def bus(self, protocol: str, client_id: str | None = None, qos: int = 1) -> Opening[polywire.Bus]:
        """A client that comes back soon."""
        url = f"{protocol}://127.0.0.1:{self.ports[protocol]}"
        return polywire.connect(url, backoff=QUICK, client_id=client_id, qos=qos)


async def publish(bus: polywire.Bus, protocol: str, talk: Talk, stop: asyncio.Event) -> None:
    """Publish one number after the other, whatever happens to the hub."""
    queue = bus.queue(f"restarted-{protocol}")
    while not stop.is_set():
        under_way = []
        for _ in range(TOGETHER):
            talk.sent += 1
            body = str(talk.sent)
            under_way.append((talk.sent, bus.publish(f"restarted/{protocol}", body), queue.put(body)))
        for number, published, put in under_way:
            await published
            talk.safe.append(number)
            await put
            talk.queued.append(number)
        await asyncio.sleep(0.01)  # FMQP acknowledges nothing, so nothing else would hold it back


async def collect(messages: AsyncIterable[polywire.Message], into: Callable[[str], list[int]]) -> None:
    """Write down what comes on each channel."""
    async for message in messages:
        into(message.channel).append(int(message.text))


async def conversation(hub: Restarting, how: signal.Signals) -> dict[str, Talk]:
    """All of it: what the clients of each protocol knew in the end."""
    talks = {protocol: Talk() for protocol in PROTOCOLS}
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.to_thread(hub.start)
        stack.callback(hub.end, signal.SIGKILL)
        readers = await stack.enter_async_context(asyncio.TaskGroup())
        keeper = await stack.enter_async_context(hub.bus("mqtt", "restarted-keeper", qos=2))
        everything = await stack.enter_async_context(keeper.subscribe("restarted/*"))
        readers.create_task(collect(everything, lambda channel: talks[channel.partition("/")[2]].kept))
        for protocol, talk in talks.items():
            reader = await stack.enter_async_context(hub.bus(protocol, f"restarted-{protocol}"))
            topic = await stack.enter_async_context(reader.subscribe(f"restarted/{protocol}"))
            queue = await stack.enter_async_context(reader.queue(f"restarted-{protocol}"))
            readers.create_task(collect(topic, lambda _, talk=talk: talk.heard))  # type: ignore[misc] # mypy takes it for unknown
            readers.create_task(collect(queue, lambda _, talk=talk: talk.taken))  # type: ignore[misc] # as above
        async with asyncio.TaskGroup() as publishers:
            for protocol, talk in talks.items():
                # With QoS 2 each message counts once only where the hub remembers its publisher.
                bus = await stack.enter_async_context(hub.bus(protocol, f"publisher-{protocol}", qos=2))
                publishers.create_task(publish(bus, protocol, talk, stop))
            await until(lambda: all(talk.going(0) for talk in talks.values()))
            for _ in range(RESTARTS):
                await asyncio.to_thread(hub.end, how)
                await asyncio.to_thread(hub.start)
                since = {protocol: talk.sent for protocol, talk in talks.items()}
                await until(lambda since=since: all(talk.going(since[each]) for each, talk in talks.items()))  # type: ignore[misc] # as above
            stop.set()
        await until(lambda: all(talk.ended() for talk in talks.values()))
    return talks


@pytest.fixture(scope="module", params=[signal.SIGTERM, signal.SIGKILL], ids=["clean", "killed"])
def restarted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Talk]:
    hub = Restarting(tmp_path_factory.mktemp("restarted"))
    return run(lambda: conversation(hub, request.param), SECONDS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_publishers_and_subscribers_go_on_by_themselves(restarted: dict[str, Talk], protocol: str) -> None:
    talk = restarted[protocol]
    assert talk.safe == talk.queued == list(range(1, talk.sent + 1))
    for numbers in (talk.heard, talk.taken, talk.kept):
        assert set(numbers) <= set(talk.safe)
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first), "what came was not in order"


@pytest.mark.parametrize("protocol", ACKNOWLEDGED)
def test_what_was_acknowledged_comes_to_a_session_that_is_kept(restarted: dict[str, Talk], protocol: str) -> None:
    assert set(restarted[protocol].kept) == set(restarted[protocol].safe)


def test_mqtt_subscribers_miss_nothing_and_with_qos_2_get_everything_once(restarted: dict[str, Talk]) -> None:
    talk = restarted["mqtt"]
    assert set(talk.heard) == set(talk.safe)
    assert talk.kept == talk.safe


@pytest.mark.parametrize("protocol", SURE)
def test_what_was_acknowledged_comes_to_a_consumer_that_acknowledges(restarted: dict[str, Talk], protocol: str) -> None:
    assert set(restarted[protocol].taken) == set(restarted[protocol].queued)
