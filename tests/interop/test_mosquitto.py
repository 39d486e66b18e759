"""Mosquitto's command line clients against the hub."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_process import HubProcess
from tests.interop.speakers import PROTOCOLS, speak
from tests.mosquitto_process import MISSING, PROGRAM, running_mosquitto

SECONDS = 20
LEVELS = [0, 1, 2]

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("mosquitto_pub") and shutil.which("mosquitto_sub")),
        reason="mosquitto-clients is not installed; tools/debian-packages installs it where that can be done",
    ),
    pytest.mark.rule("MQTT-172", "MQTT-175"),
]


def command(hub: HubProcess, tool: str, *arguments: str) -> list[str]:
    # Without stdbuf the tool's output would wait in its buffer while a test waits for it.
    return ["stdbuf", "-oL", tool, "-h", "127.0.0.1", "-p", str(hub.port("mqtt")), "-V", "mqttv311", *arguments]


def publish(hub: HubProcess, *arguments: str) -> None:
    subprocess.run(command(hub, "mosquitto_pub", *arguments), timeout=SECONDS, check=True)  # noqa: S603 - our own words


def heard(hub: HubProcess, *arguments: str) -> str:
    """What a subscriber prints until it ends by itself."""
    done = subprocess.run(  # noqa: S603 - our own words
        command(hub, "mosquitto_sub", "-W", str(SECONDS), *arguments), timeout=2 * SECONDS, check=True, stdout=-1
    )
    return bytes(done.stdout).decode()


@contextlib.contextmanager
def subscribed(hub: HubProcess, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A subscriber whose SUBACK has come."""
    words = command(hub, "mosquitto_sub", "-d", "-W", str(SECONDS), *arguments)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own words
        try:
            assert process.stdout is not None
            assert any("received SUBACK" in line for line in iter(process.stdout.readline, ""))
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def rest(process: "subprocess.Popen[str]") -> list[str]:
    """What the subscriber prints from now on, without its debugging words."""
    output, _ = process.communicate(timeout=SECONDS)
    return [line for line in output.splitlines() if not line.startswith(("Client ", "Subscribed "))]


@pytest.mark.parametrize("granted", LEVELS)
@pytest.mark.parametrize("published", LEVELS)
def test_every_qos_is_spoken_both_ways(hub: HubProcess, name: str, published: int, granted: int) -> None:
    with subscribed(hub, "-t", name, "-q", str(granted), "-C", "1", "-F", "%t %q %r %p") as listener:
        publish(hub, "-t", name, "-q", str(published), "-m", "21.5")
        assert rest(listener) == [f"{name} {min(published, granted)} 0 21.5"]


def test_a_late_subscriber_gets_the_retained_message(hub: HubProcess, name: str) -> None:
    publish(hub, "-t", f"{name}/a/b", "-r", "-q", "1", "-m", "kept")
    assert heard(hub, "-t", f"{name}/+/#", "-q", "1", "-C", "1", "-F", "%r %p") == "1 kept\n"


def test_the_will_of_a_client_that_is_killed_is_published(hub: HubProcess, name: str) -> None:
    with subscribed(hub, "-t", name, "-q", "2", "-C", "1", "-F", "%q %p") as listener:
        will = ("--will-topic", name, "--will-payload", "gone", "--will-qos", "2")
        with subscribed(hub, "-t", f"{name}/other", *will) as client:
            client.kill()
        assert rest(listener) == ["2 gone"]


def test_a_stored_session_brings_what_came_while_its_client_was_away(hub: HubProcess, name: str) -> None:
    session = ("-i", name, "-c", "-q", "1", "-t", name)
    assert heard(hub, *session, "-E") == ""
    publish(hub, "-t", name, "-q", "1", "-m", "missed")
    assert heard(hub, *session, "-C", "1") == "missed\n"


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_it_talks_with_every_protocol(hub: HubProcess, name: str, kind: str) -> None:
    with speak(kind, hub.addresses) as other:
        other.subscribe(f"{name}/from")
        publish(hub, "-t", f"{name}/from", "-q", "1", "-m", "hello")
        assert other.receive().body == b"hello"
        with subscribed(hub, "-t", f"{name}/to", "-q", "1", "-C", "1") as listener:
            other.publish(f"{name}/to", b"goodbye")
            assert rest(listener) == ["goodbye"]


@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
@pytest.mark.rule("MQTT-201")
def test_mosquitto_can_be_a_bridge_to_the_hub_in_both_directions(hub: HubProcess, name: str, tmp_path: Path) -> None:
    bridge = (
        "connection hub",
        f"address 127.0.0.1:{hub.port('mqtt')}",
        "bridge_protocol_version mqttv311",
        f"topic {name}/# both 1",
    )
    with (
        running_mosquitto(tmp_path, *bridge) as port,
        speak("mqtt", {"mqtt": f"tcp://127.0.0.1:{port}"}) as there,
        speak("mqtt", hub.addresses) as here,
    ):
        there.subscribe(f"{name}/#")
        here.subscribe(f"{name}/#")
        here.publish(f"{name}/up", b"the bridge is up when this has come", retain=True)
        assert [here.receive().body, there.receive().body] == 2 * [b"the bridge is up when this has come"]
        for number in range(20):
            there.publish(f"{name}/from-mosquitto", b"%d" % number)
            here.publish(f"{name}/from-hub", b"%d" % number)
        here.publish(f"{name}/end", b"end")
        for side in (here, there):
            found = [side.receive() for _ in range(41)]
            for channel in ("from-mosquitto", "from-hub"):
                bodies = [each.body for each in found if each.channel == f"{name}/{channel}"]
                assert bodies == [b"%d" % number for number in range(20)]
        there.publish(f"{name}/end", b"end")
        assert here.receive().body == b"end"
        with speak("mqtt", {"mqtt": f"tcp://127.0.0.1:{port}"}) as late:
            late.subscribe(f"{name}/up")
            assert late.receive().retained
