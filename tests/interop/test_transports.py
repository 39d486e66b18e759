"""Every protocol over TLS, and what WebSocket adds to those that can be spoken over it."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.protocols.mqtt import Connect, encode
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.interop.speaker import HungUpError, WebSocketWire
from tests.interop.speakers import PROTOCOLS, VARIANTS, speak
from tests.server.certificates import Authority

SECURE = {"tcp": "tls", "ws": "wss"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure_hub(authority: Authority) -> Iterator[HubProcess]:
    listen = []
    for key, address in LISTEN.items():
        scheme, _, rest = address.partition(":")
        listen.append(f"listen.{key}={SECURE.get(scheme, scheme)}:{rest}")
    with running_hub(*listen, f"tls.certificate={authority.issue('hub')}") as process:
        yield process
        assert process.stop() == 0


@pytest.mark.parametrize("kind", PROTOCOLS + VARIANTS)
@pytest.mark.rule("FMQP-01", "MQTT-140", "SABC-72", "UMQ-73")
def test_every_protocol_is_spoken_over_tls(secure_hub: HubProcess, authority: Authority, name: str, kind: str) -> None:
    trust = ssl.create_default_context(cafile=str(authority.root))
    with speak(kind, secure_hub.addresses, trust=trust) as client:
        client.subscribe(name)
        client.publish(name, bytes(100_000))
        assert client.receive().body == bytes(100_000)


@pytest.mark.parametrize("kind", ["sabc", "sabc-ws"])
@pytest.mark.rule("SABC-72")
def test_sabc_is_spoken_over_tcp_and_websocket(hub: HubProcess, name: str, kind: str) -> None:
    with speak(kind, hub.addresses) as client:
        client.subscribe(name)
        client.publish(name, b"x")
        assert client.receive().body == b"x"


@pytest.mark.rule("MQTT-167")
def test_mqtt_over_websocket_takes_binary_messages_cut_anywhere_and_no_others(hub: HubProcess) -> None:
    packet = encode(Connect("", True))
    wire = WebSocketWire(hub.addresses["mqtt_ws"], "mqtt")
    for at in range(len(packet)):
        wire.send(packet[at : at + 1])
    assert wire.receive() == b"\x20\x02\0\0"
    wire.send("text")
    with pytest.raises(HungUpError):
        wire.receive()
    wire.close()


def test_sabc_is_spoken_over_a_unix_socket_that_is_gone_with_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "hub.sock"
    with running_hub(f"listen.sabc=unix:{path}") as hub:
        with speak("sabc", hub.addresses) as client:
            client.subscribe("a")
            client.publish("a", b"x")
            assert client.receive().body == b"x"
        assert hub.stop() == 0
    assert not path.exists()


def test_a_websocket_that_ends_leaves_no_line_in_the_log() -> None:
    with running_hub() as hub:
        speak("umq", hub.addresses).close()
        assert hub.stop() == 0
    assert not [line for line in hub.errors if "Disconnected" in line]
