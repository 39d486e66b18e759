"""A third party's MQTT client against the hub: what works with any MQTT 3.1.1 server works with this one."""

from pathlib import Path

import pytest

from polywire.protocols.mqttrpc import Decoder, Request, Response, encode
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.interop.paho_client import TRANSPORTS, Paho
from tests.interop.speakers import PROTOCOLS, speak
from tests.server.certificates import Authority

LEVELS = [0, 1, 2]

pytestmark = [pytest.mark.rule("MQTT-172")]


@pytest.mark.parametrize("granted", LEVELS)
@pytest.mark.parametrize("published", LEVELS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.rule("MQTT-175", "MQTT-118", "MQTT-140", "MQTT-173")
def test_every_qos_is_spoken_both_ways(
    hub: HubProcess, name: str, transport: str, published: int, granted: int
) -> None:
    with Paho(hub, transport) as listener, Paho(hub, transport) as source:
        assert listener.subscribe(name, granted) == granted
        for body in (b"text", bytes(range(256)), b"", bytes(100_000)):
            source.publish(name, body, published)
            assert listener.receive() == (name, body, min(published, granted), False)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.rule("MQTT-175", "MQTT-090", "MQTT-091", "MQTT-093", "MQTT-094", "MQTT-095")
def test_a_late_subscriber_gets_the_retained_message_until_it_is_cleared(
    hub: HubProcess, name: str, transport: str
) -> None:
    with Paho(hub, transport) as source:
        source.publish(name, b"old", retain=True)
        source.publish(name, b"today", retain=True)
        with Paho(hub, transport) as late:
            late.subscribe(name, 1)
            assert late.receive() == (name, b"today", 1, True)
            source.publish(name, b"", retain=True)
            assert late.receive() == (name, b"", 1, False)
        with Paho(hub, transport) as later:
            later.subscribe(name, 1)
            source.publish(name, b"live")
            assert later.receive() == (name, b"live", 1, False)


@pytest.mark.parametrize("retain", [False, True], ids=["plain", "retained"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.rule("MQTT-175", "MQTT-037", "MQTT-045", "MQTT-046")
def test_the_will_of_a_client_that_vanishes_is_published(
    hub: HubProcess, name: str, transport: str, retain: bool
) -> None:
    with Paho(hub, transport) as listener:
        listener.subscribe(name, 2)
        with Paho(hub, transport, will=(name, b"gone", 1, retain)) as client:
            client.vanish()
            assert listener.receive() == (name, b"gone", 1, False)
        with Paho(hub, transport) as late:
            late.subscribe(name, 2)
            listener.publish(name, b"live", 0)
            assert late.receive() == ((name, b"gone", 1, True) if retain else (name, b"live", 0, False))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.rule("MQTT-037", "MQTT-137")
def test_the_will_of_a_client_that_says_goodbye_is_not_published(hub: HubProcess, name: str, transport: str) -> None:
    with Paho(hub, transport) as listener:
        listener.subscribe(name, 1)
        with Paho(hub, transport, name, will=(name, b"gone", 1, False)):
            pass
        with Paho(hub, transport, name):  # the hub has seen the end of the one before it under this name
            listener.publish(name, b"live")
        assert listener.receive()[1] == b"live"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.rule("MQTT-175", "MQTT-033", "MQTT-034", "MQTT-080", "MQTT-081")
def test_a_stored_session_brings_what_came_while_its_client_was_away(
    hub: HubProcess, name: str, transport: str
) -> None:
    with Paho(hub, transport, name, clean=False) as client:
        assert not client.present
        client.subscribe(f"{name}/#", 2)
    with Paho(hub, transport) as source, speak("umq", hub.addresses) as other:
        for qos in LEVELS:
            source.publish(f"{name}/{qos}", b"missed", qos)
        other.publish(f"{name}/umq", b"missed")
    with Paho(hub, transport, name, clean=False) as client:
        assert client.present
        kept = [(f"{name}/{qos}", b"missed", qos, False) for qos in (1, 2)]
        assert [client.receive() for _ in range(3)] == [*kept, (f"{name}/umq", b"missed", 2, False)]
    with Paho(hub, transport, name, clean=True) as client:
        assert not client.present


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.rule("MQTT-175")
def test_plus_and_hash_are_wildcards(hub: HubProcess, name: str, transport: str) -> None:
    with Paho(hub, transport) as one, Paho(hub, transport) as many:
        one.subscribe(f"{name}/+/c", 1)
        many.subscribe(f"{name}/#", 1)
        topics = [name, f"{name}/b", f"{name}/b/c", f"{name}/b/b/c"]
        for topic in topics:
            one.publish(topic, b"x")
        assert [many.receive()[0] for _ in topics] == topics
        assert one.receive()[0] == f"{name}/b/c"


@pytest.mark.rule("MQTT-175", "MQTT-133")
def test_a_client_that_pings_stays_connected(hub: HubProcess, name: str) -> None:
    with Paho(hub, keep_alive=1) as client:
        for _ in range(3):
            client.wait_for_log("PINGRESP")
        client.subscribe(name, 0)
        client.publish(name, b"still here")
        assert client.receive()[1] == b"still here"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.rule("MQTT-140")
def test_it_works_over_tls(tmp_path: Path, transport: str) -> None:
    authority = Authority(tmp_path)
    off = [f"listen.{key}=off" for key in LISTEN if not key.startswith("mqtt")]
    secure = ["listen.mqtt=tls://127.0.0.1:0", "listen.mqtt_ws=wss://127.0.0.1:0/mqtt"]
    with (
        running_hub(*off, *secure, f"tls.certificate={authority.issue('hub')}") as hub,
        Paho(hub, transport, ca=str(authority.root)) as client,
    ):
        client.subscribe("a", 2)
        client.publish("a", b"secret", 2)
        assert client.receive() == ("a", b"secret", 2, False)


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_it_talks_with_every_protocol(hub: HubProcess, name: str, transport: str, kind: str) -> None:
    with Paho(hub, transport) as client, speak(kind, hub.addresses) as other:
        client.subscribe(f"{name}/to", 1)
        other.subscribe(f"{name}/from")
        other.publish(f"{name}/to", b"\xff\0")
        client.publish(f"{name}/from", b"\xfe\0")
        assert client.receive() == (f"{name}/to", b"\xff\0", 1, False)
        assert other.receive().body == b"\xfe\0"


@pytest.mark.parametrize("provider", ["umq", "sabc", "mqtt"])
@pytest.mark.rule("MQTTRPC-75")
def test_it_carries_rpc_over_mqtt(hub: HubProcess, name: str, provider: str) -> None:
    topic = f"/{name}"
    with Paho(hub) as client, speak(provider, hub.addresses) as service:
        service.serve(name)
        client.subscribe(topic, 1)
        client.publish(topic, encode(Request(7, "Turn", b"\xff\0")))
        service.answer(lambda method, body: method.encode() + body[::-1])
        request, response = (Decoder().feed(client.receive()[1])[0] for _ in range(2))
        assert isinstance(request, Request)
        assert isinstance(response, Response)
        assert (response.correlation_id, response.value) == (7, b"Turn\0\xff")
