"""A reload gives and takes rights at once, whatever the client holds: topics, queues, services, its login itself."""

import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.protocols import mqtt
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.interop.speaker import FailureError, HungUpError, RefusedError, Speaker
from tests.interop.speakers import speak
from tests.security.hashing import add_user

KINDS = ["umq", "micromsg", "mqtt", "sabc"]
EVERYTHING = '[[access]]\nactions = ["publish", "subscribe", "call", "serve"]\nchannels = ["**"]\n'
DENIED = (
    '[[access]]\nuser = "worker"\neffect = "deny"\nactions = ["subscribe", "serve"]\n'
    'channels = ["news", "queue/jobs", "clock"]\n'
)


class Site:
    """A hub with two users, and its configuration."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "polywire.toml"
        self.users = folder / "polywire.users"
        for name in ("worker", "boss"):
            add_user(self.users, name, f"{name}'s secret", "staff")
        self.write("")

    def write(self, rules: str) -> None:
        listen = "[listen]\n" + "".join(f'{key} = "{address}"\n' for key, address in LISTEN.items())
        self.config.write_text(f'{listen}[auth]\nusers = "{self.users}"\n{EVERYTHING}{rules}', encoding="utf-8")

    def reload(self, hub: HubProcess, rules: str = "") -> None:
        self.write(rules)
        hub.lines.queue.clear()
        hub.errors.clear()
        hub.process.send_signal(signal.SIGHUP)
        hub.wait_for_log("configuration reloaded")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def hub(site: Site) -> Iterator[HubProcess]:
    with running_hub(config=site.config) as process:
        yield process


def login(hub: HubProcess, kind: str, user: str) -> Speaker:
    return speak(kind, hub.addresses, user, f"{user}'s secret")


@pytest.mark.parametrize("kind", KINDS)
def test_a_denied_subscription_gets_nothing_and_goes_on_when_it_is_allowed_again(
    site: Site, hub: HubProcess, kind: str
) -> None:
    with login(hub, kind, "worker") as worker, login(hub, "umq", "boss") as boss:
        worker.subscribe("news")
        worker.subscribe("other")
        site.reload(hub, DENIED)
        boss.publish("news", b"secret")
        boss.publish("other", b"open")
        assert worker.receive().body == b"open"
        site.reload(hub)
        boss.publish("news", b"public")
        assert worker.receive().body == b"public"


@pytest.mark.parametrize("kind", KINDS)
def test_a_denied_consumer_takes_nothing_and_goes_on_when_it_is_allowed_again(
    site: Site, hub: HubProcess, kind: str
) -> None:
    with login(hub, kind, "worker") as worker, login(hub, "umq", "boss") as boss:
        worker.subscribe("queue/jobs")
        worker.subscribe("other")
        boss.publish("queue/jobs", b"before")
        assert worker.receive().body == b"before"
        site.reload(hub, DENIED)
        boss.publish("queue/jobs", b"meanwhile")
        boss.publish("other", b"open")
        assert worker.receive().body == b"open"
        site.reload(hub)
        assert worker.receive().body == b"meanwhile"


def test_what_a_denied_consumer_has_not_acknowledged_goes_to_the_next(site: Site, hub: HubProcess) -> None:
    with login(hub, "sabc", "worker") as worker, login(hub, "sabc", "boss") as boss:
        worker.subscribe("queue/jobs")
        boss.publish("queue/jobs", b"1")
        heard = worker.receive(acknowledge=False)
        assert heard.body == b"1"
        site.reload(hub, DENIED)
        boss.subscribe("queue/jobs")
        assert boss.receive(acknowledge=False).body == b"1"
    with login(hub, "umq", "boss") as other:
        other.subscribe("queue/jobs")
        assert other.receive().body == b"1"


@pytest.mark.parametrize("kind", ["umq", "sabc"])
def test_a_denied_service_is_offered_no_more_until_it_is_allowed_again(site: Site, hub: HubProcess, kind: str) -> None:
    with login(hub, kind, "worker") as worker, login(hub, "umq", "boss") as boss:
        worker.serve("clock")
        ticket = boss.begin_call("clock", "now", b"")
        worker.answer(lambda *_: b"noon")
        assert boss.end_call(ticket) == b"noon"
        site.reload(hub, DENIED)
        with pytest.raises((FailureError, RefusedError)):
            boss.call("clock", "now", b"")
        site.reload(hub)
        ticket = boss.begin_call("clock", "now", b"")
        worker.answer(lambda *_: b"one")
        assert boss.end_call(ticket) == b"one"


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_who_is_deleted_is_disconnected_and_others_stay(site: Site, hub: HubProcess, kind: str) -> None:
    with login(hub, kind, "worker") as worker, login(hub, "umq", "boss") as boss:
        worker.subscribe("news")
        boss.subscribe("weather")
        lines = site.users.read_text(encoding="utf-8").splitlines()
        site.users.write_text("\n".join(line for line in lines if not line.startswith("worker:")) + "\n", "utf-8")
        site.reload(hub)
        with contextlib.suppress(HungUpError, OSError):
            worker.publish("weather", b"from a user who is gone")
        with pytest.raises((HungUpError, OSError)):
            worker.receive()
        with login(hub, "mqtt", "boss") as other:
            other.publish("weather", b"still here")
        assert boss.receive().body == b"still here"
        hub.wait_for_log("its login was revoked by a reload")


def test_a_reload_is_reported_when_it_holds_for_all_that_a_client_has(site: Site, hub: HubProcess) -> None:
    topics = tuple((f"news/{number}", 0) for number in range(3000))
    with contextlib.closing(socket.create_connection(("127.0.0.1", hub.port("mqtt")), timeout=20)) as worker:
        worker.sendall(
            mqtt.encode(
                mqtt.Connect(
                    "", clean_session=True, keep_alive=0, will=None, user_name="worker", password=b"worker's secret"
                )
            )
        )
        worker.sendall(mqtt.encode(mqtt.Subscribe(1, (*topics, ("end", 0)))))
        decoder = mqtt.Decoder(role="client")
        frames: list[object] = []
        while not any(isinstance(each, mqtt.Suback) for each in frames):
            frames += decoder.feed(worker.recv(65536))
        with login(hub, "mqtt", "boss") as boss:
            site.reload(hub, DENIED.replace('"news"', '"news/*"'))
            for number in (0, 1500, 2999):
                boss.publish(f"news/{number}", b"denied")
            boss.publish("end", b"")
            frames.clear()
            while not frames:
                frames += decoder.feed(worker.recv(65536))
    assert frames == [mqtt.Publish("end", b"")]


def stored_session(hub: HubProcess, *, clean: bool = False) -> "tuple[socket.socket, list[mqtt.Publish]]":
    """The worker's session, with what was kept for it; a new one has subscribed to news and weather."""
    connection = socket.create_connection(("127.0.0.1", hub.port("mqtt")), timeout=20)
    decoder = mqtt.Decoder(role="client")
    connection.sendall(mqtt.encode(mqtt.Connect("kept", clean, 0, None, "worker", b"worker's secret")))
    connection.sendall(mqtt.encode(mqtt.Subscribe(1, (("news", 1), ("weather", 1)))))
    frames: list[object] = []
    while not any(isinstance(each, mqtt.Suback) for each in frames):
        data = connection.recv(65536)
        if not data:
            break
        frames += decoder.feed(data)
    return connection, [each for each in frames if isinstance(each, mqtt.Publish)]


def publish(hub: HubProcess, *messages: str) -> None:
    with contextlib.closing(login(hub, "mqtt", "boss")) as boss:
        for message in messages:
            boss.publish(message.partition(" ")[0], message.encode())


@pytest.mark.rule("MQTT-209")
@pytest.mark.parametrize("restart", [False, True])
def test_a_stored_session_collects_what_its_user_may_subscribe_to(site: Site, tmp_path: Path, restart: bool) -> None:
    journal = tmp_path / "journal"
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(running_hub(config=site.config, journal=journal))

        def changed(rules: str) -> HubProcess:
            if not restart:
                site.reload(hub, rules)
                return hub
            site.write(rules)
            assert hub.stop() == 0
            return stack.enter_context(running_hub(config=site.config, journal=journal))

        stored_session(hub)[0].close()
        publish(hub, "news 1", "weather 1")
        hub = changed(DENIED)
        publish(hub, "news 2", "weather 2")
        hub = changed("")
        publish(hub, "news 3", "weather 3")
        users = site.users.read_text(encoding="utf-8")
        without = "".join(each for each in users.splitlines(keepends=True) if not each.startswith("worker:"))
        site.users.write_text(without, encoding="utf-8")
        hub = changed("")
        publish(hub, "news 4", "weather 4")
        site.users.write_text(users, encoding="utf-8")
        hub = changed("")
        publish(hub, "news 5", "weather 5")
        connection, kept = stored_session(hub)
        connection.close()
    expected = ["news 1", "weather 1", "weather 2", "news 3", "weather 3", "news 5", "weather 5"]
    assert [each.payload.decode() for each in kept] == expected
