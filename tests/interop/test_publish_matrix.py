"""Whoever publishes, over whatever protocol: whoever subscribes, over whatever protocol, gets it whole."""

import contextlib
from pathlib import Path

import pytest

from polywire.protocols import mqtt
from polywire.protocols.fmqp import Publication, Subscription
from polywire.protocols.fmqp.delivery import MESSAGES
from polywire.protocols.fmqp.frames import decode_count
from tests.hub_process import HubProcess, running_hub
from tests.interop.speaker import RefusedError, WebSocketWire
from tests.interop.speakers import PROTOCOLS, VARIANTS, speak
from tests.server.test_ingest import post, stream
from tests.wires import Fmqp, Plain, connected

SPEAKERS = PROTOCOLS + VARIANTS
BODIES = {
    "text": b"21.5",
    "utf-8": "größer als 20 °C".encode(),
    "binary": bytes(range(256)),
    "large": bytes(range(255, -1, -1)) * 300,
    "terminators": b"\0\r\n\r\n\0\r\nMESSAGE\r\n\r\n\0",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("subscriber", SPEAKERS)
@pytest.mark.parametrize("publisher", SPEAKERS)
@pytest.mark.rule("FMQP-22", "UMQ-73")
def test_a_message_crosses_from_each_protocol_to_each(
    hub: HubProcess, name: str, publisher: str, subscriber: str, body: bytes
) -> None:
    with speak(subscriber, hub.addresses) as listener, speak(publisher, hub.addresses) as source:
        listener.subscribe(name)
        source.publish(name, body)
        heard = listener.receive()
    assert heard.body == body
    assert heard.channel == (name if listener.tells_channel else "")


@pytest.mark.parametrize("kind", SPEAKERS)
@pytest.mark.rule("FMQP-02", "FMQP-55", "MQTT-192")
def test_a_publisher_that_is_subscribed_gets_its_own_message(hub: HubProcess, name: str, kind: str) -> None:
    with speak(kind, hub.addresses) as client:
        client.subscribe(name)
        client.publish(name, b"mine")
        assert client.receive().body == b"mine"


@pytest.mark.parametrize("subscriber", SPEAKERS)
@pytest.mark.parametrize("publisher", PROTOCOLS)
def test_a_star_is_one_level_on_every_protocol(hub: HubProcess, name: str, publisher: str, subscriber: str) -> None:
    with speak(subscriber, hub.addresses) as listener, speak(publisher, hub.addresses) as source:
        listener.subscribe(f"{name}/*/c")
        for channel in (f"{name}/c", f"{name}/b/b/c", f"{name}/b/d", f"{name}/b/c"):
            source.publish(channel, channel.encode())
        heard = listener.receive()
    assert heard.body.decode() == f"{name}/b/c"


@pytest.mark.parametrize("subscriber", [kind for kind in SPEAKERS if kind != "fmqp"])
@pytest.mark.parametrize("publisher", PROTOCOLS)
def test_two_stars_are_any_number_of_levels(hub: HubProcess, name: str, publisher: str, subscriber: str) -> None:
    with speak(subscriber, hub.addresses) as listener, speak(publisher, hub.addresses) as source:
        listener.subscribe(f"{name}/**")
        channels = [name, f"{name}/a", f"{name}/a/b/c"]
        for channel in (f"{name}x/a", *channels):
            source.publish(channel, channel.encode())
        assert [listener.receive().body.decode() for _ in channels] == channels


@pytest.mark.parametrize("body", [b"job", bytes(range(256))], ids=["text", "binary"])
@pytest.mark.parametrize("consumer", SPEAKERS)
@pytest.mark.parametrize("producer", SPEAKERS)
def test_a_queue_holds_what_each_protocol_put_in_until_each_takes_it(
    hub: HubProcess, name: str, producer: str, consumer: str, body: bytes
) -> None:
    queue = f"queue/{name}"
    with speak(producer, hub.addresses) as source, speak(consumer, hub.addresses) as worker:
        source.publish(queue, body)
        source.publish(queue, body + b"2")
        worker.subscribe(queue)
        source.publish(queue, body + b"3")
        jobs = [worker.receive() for _ in range(3)]
    assert [job.body for job in jobs] == [body, body + b"2", body + b"3"]
    assert {job.channel for job in jobs} == {queue if worker.tells_channel else ""}


@pytest.mark.parametrize("heir", SPEAKERS)
@pytest.mark.parametrize("consumer", ["micromsg", "mqtt", "mqtt-ws", "sabc", "sabc-ws"])
def test_what_a_consumer_did_not_acknowledge_goes_to_the_next_of_any_protocol(
    hub: HubProcess, name: str, consumer: str, heir: str
) -> None:
    queue = f"queue/{name}"
    with speak(heir, hub.addresses) as second:
        with speak(consumer, hub.addresses) as first:
            first.subscribe(queue)
            first.publish(queue, b"job")
            assert first.receive(acknowledge=False).body == b"job"
            second.subscribe(queue)
        assert second.receive().body == b"job"


@pytest.mark.parametrize("kind", ["umq", "mqtt-ws", "sabc-ws"])
@pytest.mark.rule("MQTT-170")
def test_the_hub_takes_the_subprotocol_a_client_offers_and_demands_none(hub: HubProcess, kind: str) -> None:
    protocol = kind.removesuffix("-ws")
    address = hub.addresses[kind.replace("-", "_")]
    for offered in (protocol, ""):
        wire = WebSocketWire(address, offered)
        assert wire.subprotocol == (offered or None)
        wire.close()


@pytest.mark.rule("FMQP-28")
def test_the_messages_of_a_second_are_those_of_every_protocol_discarded_ones_and_wills_included(
    tmp_path: Path,
) -> None:
    with running_hub(journal=tmp_path) as hub, connected(hub.addresses["fmqp"]) as wire:
        watcher = Fmqp(wire)
        watcher.say(Subscription(MESSAGES))
        watcher.say(Publication("a", b"forwarded"), Publication("$/a", b"discarded"))
        for kind in ("umq", "micromsg", "mqtt", "sabc"):
            with speak(kind, hub.addresses) as client:
                client.subscribe("b")  # is no publication
                client.publish("a", b"forwarded")
                with contextlib.suppress(RefusedError):  # which MQTT has no words for
                    client.publish("$/a", b"discarded")
        with connected(hub.addresses["mqtt"]) as other:
            publisher = Plain(other)
            publisher.send(mqtt.encode(mqtt.Connect("x", will=mqtt.Will("a", b"will"))))
            publisher.send(
                b"".join(mqtt.encode(mqtt.Publish("a", b"x", qos, packet_id=qos or None)) for qos in (0, 0, 1, 2))
            )
            publisher.expect(len(b"CONN") + len(b"PUBA") + len(b"PUBR"))
        assert post(hub, stream({"channel": "a", "body": b"1"}, {"channel": "a", "body": b"2"}))[0] == 200
        expected = 2 + 4 * 2 + 5 + 2
        total = told = 0
        while total < expected or told > 0:  # up to the first second without any
            frame = watcher.hear()
            assert isinstance(frame, Publication)
            told = decode_count(frame.body) or 0
            total += told
        assert total == expected
