"""Every protocol over TLS, and what WebSocket adds to those that can be spoken over it."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from polywire.protocols.mqtt import Connect, encode
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.interop.speaker import HungUpError, RefusedError, WebSocketWire
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
    packet = encode(Connect("", clean_session=True))
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


LIMIT = 100_000


@pytest.fixture
def small() -> Iterator[HubProcess]:
    """A hub that takes messages of 100,000 bytes."""
    with running_hub(f"limits.message_size={LIMIT}") as process:
        yield process


@pytest.mark.parametrize(
    ("kind", "size", "said", "outcome"),
    [
        ("umq", 120_000, "a message of 120", "refused"),
        ("umq", 300_000, "a message of ", "refused"),
        ("micromsg", 120_000, "a message of 120000 bytes", "refused"),
        ("fmqp", 120_000, "a message of 120", "refused"),
        ("mqtt", 120_000, "a message of 120", "refused"),
        ("mqtt", 300_000, "a message of 300", "refused"),
        ("mqtt-ws", 120_000, "a message of 120", "refused"),
        ("sabc", 120_000, "a message of more than 100000 bytes", "cut"),
        ("sabc-ws", 120_000, "a message of 120", "cut"),
        ("sabc-ws", 300_000, "a message of ", "refused"),
    ],
)
@pytest.mark.rule("UMQ-163", "MICROMSG-195", "FMQP-80", "MQTT-204", "SABC-140")
def test_a_message_over_the_size_limit_is_logged_and_counted(
    small: HubProcess, name: str, kind: str, size: int, said: str, outcome: str
) -> None:
    protocol = kind.partition("-")[0]
    metric = f'polywire_oversized_total{{protocol="{protocol}"}}'
    with speak(kind, small.addresses) as client, contextlib.suppress(HungUpError, OSError, ConnectionClosed):
        client.publish(name, bytes(size) if kind == "fmqp" else b"x" * size)
    line = small.wait_for_log(f"over {protocol}: {said}")
    assert line.rstrip().endswith(f"is over the size limit of {LIMIT}, and was {outcome}")
    assert small.metric(metric) == 1


@pytest.mark.rule("UMQ-163")
def test_attachments_over_the_size_limit_are_logged_and_counted(small: HubProcess, name: str) -> None:
    metric = 'polywire_oversized_total{protocol="umq"}'
    with speak("umq", small.addresses) as client:
        with pytest.raises(RefusedError) as refused:
            client.publish(name, b"\xff" * 90_000, attachments=(b"\xff" * 90_000,))
        assert refused.value.code == "9"
    assert small.metric(metric) == 1


@pytest.mark.rule("MQTTRPC-112")
def test_a_request_over_the_size_limit_is_logged_and_counted(small: HubProcess, name: str) -> None:
    metric = 'polywire_oversized_total{protocol="mqtt"}'
    with speak("umq", small.addresses) as service, speak("mqtt", small.addresses) as client:
        service.serve(name)
        with pytest.raises(HungUpError):
            client.call(name, "Find", b"x" * 120_000)
        small.wait_for_log("over mqtt: a message of 1200")
    assert small.metric(metric) == 1
