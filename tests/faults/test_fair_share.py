"""Requests that cause far more work than others, next to a well-behaved client: nobody waits long, memory is bounded.

Each attack took seconds in one step of the event loop, or hundreds of megabytes, before its work was done in slices and
its names were counted.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from polywire.protocols import fmqp, mqtt
from polywire.protocols.fmqp.frames import CACHE, FEEDBACK, LAST_WILL
from tests.faults.friends import FmqpFriend, Friend, MqttFriend, friend, line
from tests.hub_process import HubProcess, running_hub

PAUSE = 0.002
SLOW = 1.0
"""Seconds a ping may take at the 99th percentile, on a machine that does other things as well: attacks took many."""

MEMORY = 400 * 1024
"""KiB."""


class Pinger:
    """A client that publishes to itself all the time, and notes how long each message takes."""

    def __init__(self, hub: HubProcess) -> None:
        self._friend = friend(hub, "mqtt")
        self._friend.subscribe("ping")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.took: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ping no more."""
        self._stop.set()
        self._thread.join(60)
        self._friend.close()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            begun = time.monotonic()
            self._friend.line.send(self._friend.push("ping", b"x"))
            self._friend.hear()
            self.took.append(time.monotonic() - begun)

    def slow(self) -> float:
        """The 99th percentile of all, in seconds."""
        return sorted(self.took)[len(self.took) * 99 // 100]


def memory(hub: HubProcess) -> int:
    """The most resident memory the hub ever had, in KiB."""
    status = Path(f"/proc/{hub.process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0])


def settled(hub: HubProcess) -> None:
    """Wait until all large requests are done."""
    end = time.monotonic() + 60
    while hub.metric("polywire_work_owners") > 0:
        assert time.monotonic() < end


@contextlib.contextmanager
def attacked(*sets: str, journal: Path | None = None) -> Iterator[HubProcess]:
    """A hub on which nobody may notice what happens."""
    with running_hub(*sets, journal=journal) as hub, Pinger(hub) as pinger:
        yield hub
        settled(hub)
        pinger.stop()
        assert hub.metric("polywire_work_slices_total") > 1
        assert pinger.slow() < SLOW
        assert memory(hub) < MEMORY
        assert not any("Traceback" in each for each in hub.errors)


def fmqp_friend(hub: HubProcess, stack: contextlib.ExitStack) -> FmqpFriend:
    client = friend(hub, "fmqp")
    stack.callback(client.close)
    assert isinstance(client, FmqpFriend)
    return client


def mqtt_friend(hub: HubProcess, stack: contextlib.ExitStack) -> MqttFriend:
    client = friend(hub, "mqtt")
    stack.callback(client.close)
    assert isinstance(client, MqttFriend)
    return client


def answer(client: Friend, frame: object) -> object:
    client.line.send(mqtt.encode(frame))  # type: ignore[arg-type]
    return client.word()


@pytest.mark.timeout(120)
@pytest.mark.rule("FMQP-83")
def test_thousands_of_watchers_of_thousands_of_topics() -> None:
    with attacked("limits.watchers=10000") as hub, contextlib.ExitStack() as stack:
        watcher, client = fmqp_friend(hub, stack), mqtt_friend(hub, stack)
        patterns = [f"{'/'.join('*b'[number >> bit & 1] for bit in range(10))}/*" for number in range(1024)]
        for pattern in patterns:
            watcher.line.send(fmqp.encode(fmqp.Subscription(pattern, FEEDBACK)))
        watcher.publish("ready", b"x")
        topic = "b/" * 10
        codes = answer(client, mqtt.Subscribe(7, tuple((f"{topic}{number}", 0) for number in range(300))))
        assert codes == mqtt.Suback(7, (0,) * 300)
        client.line.send(client.push("still here", b"x"))
        assert hub.metric("polywire_watchers") == 1025  # one is the hub's own


@pytest.mark.timeout(120)
@pytest.mark.rule("FMQP-82")
def test_watchers_past_the_limit_are_refused() -> None:
    with running_hub("limits.watchers=5") as hub, contextlib.ExitStack() as stack:
        watcher = fmqp_friend(hub, stack)
        for number in range(8):
            watcher.line.send(fmqp.encode(fmqp.Subscription(f"a/{number}", FEEDBACK)))
        watcher.publish("ready", b"x")
        assert hub.metric('polywire_dropped_total{protocol="fmqp",reason="watchers"}') == 3
        assert "limits.watchers is reached" in hub.wait_for_log("a watcher of fmqp client")


@pytest.mark.timeout(120)
def test_the_last_wills_of_many_clients_that_drop_at_once() -> None:
    with attacked("limits.wills=5000") as hub, contextlib.ExitStack() as stack:
        listener = fmqp_friend(hub, stack)
        listener.subscribe("will/*")
        clients = [friend(hub, "fmqp") for _ in range(4)]
        will = fmqp.encode(fmqp.Publication("will/x", b"x", LAST_WILL))
        for client in clients:
            client.line.send(will * 3000)
            client.publish("ready", b"x")
        for client in clients:
            client.close()
        for _ in range(4 * 3000):
            assert listener.hear() == b"x"


@pytest.mark.timeout(120)
@pytest.mark.rule("MQTT-207")
def test_thousands_of_filters_come_and_go(tmp_path: Path) -> None:
    with attacked(journal=tmp_path) as hub, contextlib.ExitStack() as stack:
        filters = tuple((f"a/{number}", 1) for number in range(6000))
        publisher = mqtt_friend(hub, stack)
        client = returning(hub, stack)
        for start in range(0, 6000, 2000):
            assert answer(client, mqtt.Subscribe(7, filters[start : start + 2000])) == mqtt.Suback(7, (1,) * 2000)
        client.close()
        publisher.publish("a/5999", b"while away")
        again = returning(hub, stack)
        assert again.hear() == b"while away"
        taken_over = returning(hub, stack)
        publisher.publish("a/3000", b"after")
        assert taken_over.hear() == b"after"
        names = tuple(name for name, _ in filters)
        assert answer(taken_over, mqtt.Unsubscribe(9, names)) == mqtt.Unsuback(9)
        assert hub.metric("polywire_subscriptions") < 10


class Returning(MqttFriend):
    """Connects as ``me``, with a session that is kept."""

    def log_in(self, user: str, password: str) -> None:  # noqa: ARG002 - anonymous
        self._decoder = mqtt.Decoder(role="client")
        self.line.send(mqtt.encode(mqtt.Connect("me", clean_session=False, keep_alive=0)))
        assert isinstance(self.word(), mqtt.Connack)


def returning(hub: HubProcess, stack: contextlib.ExitStack) -> Returning:
    """A client whose session is kept."""
    client = Returning(line(hub, "mqtt"))
    stack.callback(client.close)
    return client


@pytest.mark.timeout(120)
@pytest.mark.rule("MQTT-208")
def test_a_pattern_that_matches_everything_retained() -> None:
    with attacked() as hub, contextlib.ExitStack() as stack:
        publisher = fmqp_friend(hub, stack)
        count = 10_000
        for number in range(count):
            publisher.line.send(fmqp.encode(fmqp.Publication(f"r/{number}", b"old" * 100, CACHE)))
        publisher.publish("ready", b"x")
        readers = [mqtt_friend(hub, stack) for _ in range(3)]
        for reader in readers:
            reader.line.send(mqtt.encode(mqtt.Subscribe(1, (("r/#", 1),))))
        publisher.line.send(fmqp.encode(fmqp.Publication(f"r/{count - 1}", b"new", CACHE)))
        for reader in readers:
            heard = [reader.hear() for _ in range(count)]
            assert heard.count(b"new") == 1


@pytest.mark.timeout(120)
def test_a_reload_looks_at_thousands_of_subscriptions(tmp_path: Path) -> None:
    config = tmp_path / "polywire.toml"
    base = '[listen]\nmqtt = "tcp://127.0.0.1:0"\nhttp = "http://127.0.0.1:0"\nfmqp = "tcp://127.0.0.1:0"\n'
    base += "[journal]\nenabled = false\n"
    config.write_text(base, encoding="utf-8")
    with running_hub(config=config) as hub, Pinger(hub) as pinger, contextlib.ExitStack() as stack:
        for _ in range(4):
            client = mqtt_friend(hub, stack)
            filters = tuple((f"a/{number}", 0) for number in range(3000))
            assert answer(client, mqtt.Subscribe(7, filters)) == mqtt.Suback(7, (0,) * 3000)
        rule = '[[access]]\nactions = ["publish", "subscribe"]\nchannels = ["ping", "x/**"]\n'
        config.write_text(base + rule, encoding="utf-8")
        before = hub.metric("polywire_subscriptions")
        hub.process.send_signal(signal.SIGHUP)
        hub.wait_for_log("configuration reloaded")
        settled(hub)
        assert hub.metric("polywire_subscriptions") == before - 12_000
        pinger.stop()
        assert hub.metric("polywire_work_slices_total") > 1
        assert pinger.slow() < SLOW


LONG = "n" * 60_000


@pytest.mark.timeout(120)
@pytest.mark.rule("MQTT-210")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_long_names_take_a_bounded_amount_of_memory() -> None:
    limits = ("limits.names_size=4 MiB", "limits.names_size_total=12 MiB", "limits.retained_octets=32 MiB")
    with running_hub(*limits) as hub, Pinger(hub) as pinger, contextlib.ExitStack() as stack:
        before = memory(hub)
        clients = [mqtt_friend(hub, stack) for _ in range(4)]
        for reader, client in enumerate(clients):
            for start in range(0, 60, 4):
                filters = tuple((f"{reader}/{number}/{LONG}", 0) for number in range(start, start + 4))
                answer(client, mqtt.Subscribe(7, filters))
        for number in range(500):
            client.line.send(mqtt.encode(mqtt.Publish(f"{number}/{LONG}", b"x", retain=True)))
        client.publish("ready", b"x")
        assert 11 * 2**20 < hub.metric("polywire_names_bytes") <= 12 * 2**20
        assert 30 * 2**20 < hub.metric("polywire_retained_octets") <= 32 * 2**20
        assert hub.metric('polywire_dropped_total{protocol="mqtt",reason="names-size"}') > 100
        assert hub.metric('polywire_dropped_total{protocol="mqtt",reason="retained-full"}') > 100
        hub.wait_for_log("limits.names_size is reached")
        hub.wait_for_log("limits.names_size_total is reached")
        pinger.stop()
        assert pinger.slow() < SLOW
        assert memory(hub) - before < 100 * 1024
