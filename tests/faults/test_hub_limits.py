"""Limits of what all clients have together, queues and retained messages: each protocol's own refusal."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.protocols import fmqp, mqtt
from polywire.protocols.fmqp.frames import CACHE
from polywire.protocols.micromsg import Command, Error, Message, encode
from tests.faults.friends import FmqpFriend, Friend, HungUpError, MicromsgFriend, MqttFriend, SabcFriend, friend
from tests.hub_process import HubProcess, running_hub

EACH = pytest.mark.parametrize("key", ["umq", "micromsg", "mqtt", "sabc"])
NO_QUEUE = "the limit on queues is reached"
BODY = b"x" * 3700


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    """It has two queues, which is as many as there may be, and one retained message, which is all it can hold."""
    with running_hub("limits.queues=2", "limits.retained_octets=4 KiB") as process:
        first = friend(process, "fmqp")
        for queue in ("queue/a", "queue/b"):
            first.subscribe(queue)
        first.line.send(fmqp.encode(fmqp.Publication("kept", BODY, CACHE)))
        first.publish("settled", b"!")
        yield process
        first.close()


@pytest.fixture
def client(hub: HubProcess, key: str) -> Iterator[Friend]:
    made = friend(hub, key)
    yield made
    made.close()


def answer_to_publishing(client: Friend, channel: str, *, retain: bool = False) -> str:
    if isinstance(client, SabcFriend):
        client.line.send(client.frame(f"destination::{channel}", body=b"y" * 200))
    elif isinstance(client, MicromsgFriend):
        client.line.send(encode(Message(1, channel.removeprefix("queue/"), b"y")))
    elif isinstance(client, MqttFriend):
        client.line.send(mqtt.encode(mqtt.Publish(channel, b"y" * 200, qos=1, packet_id=7, retain=retain)))
    else:
        options = ',{"retain":true}' if retain else ""
        client.line.send(f'C1:["publish","{channel}","{"y" * 200}"{options}]'.encode())
    try:
        return str(client.word())
    except HungUpError:
        return "hung up"


def answer_to_consuming(client: Friend, queue: str) -> str:
    if isinstance(client, SabcFriend):
        client.line.send(client.frame("op::subscribe", f"destination::queue/{queue}"))
    elif isinstance(client, MicromsgFriend):
        client.line.send(encode(Command("subscribe", (("destination", queue),))) + encode(Command("ping", ())))
    elif isinstance(client, MqttFriend):
        client.line.send(mqtt.encode(mqtt.Subscribe(7, ((f"queue/{queue}", 1),))))
    else:
        client.line.send(f'C1:["subscribe","queue/{queue}",1]'.encode())
    return str(client.word())


@EACH
@pytest.mark.rule("UMQ-143")
def test_a_message_to_one_queue_too_many_is_refused(client: Friend, key: str) -> None:
    expected = {
        "umq": f"E1:9 Limit exceeded: {NO_QUEUE}",
        "micromsg": str(Error("forbidden", (("destination", "c"), ("sequence", "1"), ("reason", NO_QUEUE)))),
        "mqtt": "hung up",
        "sabc": NO_QUEUE,
    }
    answer = answer_to_publishing(client, "queue/c")
    assert answer.endswith(expected[key])
    assert ("error-code::429" in answer) == (key == "sabc")


@EACH
def test_one_queue_too_many_can_not_be_consumed_and_those_there_are_can(client: Friend, key: str) -> None:
    refused = {
        "umq": f"E1:9 Limit exceeded: {NO_QUEUE}",
        "micromsg": str(Error("forbidden", (("destination", "c"), ("reason", NO_QUEUE)))),
        "mqtt": str(mqtt.Suback(7, (0x80,))),
        "sabc": NO_QUEUE,
    }
    taken = {
        "umq": "R1:null",
        "micromsg": str(Command("pong", ())),
        "mqtt": str(mqtt.Suback(7, (1,))),
        "sabc": "OK",
    }
    assert answer_to_consuming(client, "c").endswith(refused[key])
    if key == "micromsg":
        assert client.word() == Command("pong", ())
    assert answer_to_consuming(client, "b").endswith(taken[key])


def test_fmqp_discards_and_counts_both(hub: HubProcess) -> None:
    client = friend(hub, "fmqp")
    assert isinstance(client, FmqpFriend)
    client.publish("queue/c", b"y")
    client.subscribe("queue/c")
    assert hub.metric('polywire_dropped_total{protocol="fmqp",reason="too-many-queues"}') == 2
    client.close()


@pytest.mark.parametrize("key", ["umq", "mqtt"])
@pytest.mark.rule("UMQ-143")
def test_what_can_not_be_retained_is_refused_or_where_that_can_not_be_said_delivered_unretained(
    hub: HubProcess, client: Friend, key: str
) -> None:
    expected = {
        "umq": "E1:9 Limit exceeded: the limit on retained messages is reached",
        "mqtt": str(mqtt.Puback(7)),  # which has no word for it
    }
    listener = friend(hub, "fmqp")
    listener.subscribe("news")
    assert answer_to_publishing(client, "news", retain=True) == expected[key]
    listener.publish("news", b"next")
    assert listener.hear() == (b"y" * 200 if key == "mqtt" else b"next")
    listener.close()
    assert hub.metric("polywire_retained_octets") <= 4096
    assert hub.metric(f'polywire_dropped_total{{protocol="{key}",reason="retained-full"}}') == 1


EXPLODING = ["/".join("a+"[number >> level & 1] for level in range(100)) for number in range(1, 1001)]
"""Patterns that all match one name, by paths that hardly meet: a search for its subscribers visits all of them."""


@EACH
def test_patterns_that_would_make_publications_too_costly_are_refused(client: Friend, key: str) -> None:
    answers = [answer_to_subscribing(client, pattern) for pattern in EXPLODING[:30]]
    refused = {
        "umq": "E1:9 Limit exceeded: your patterns overlap too much",
        "micromsg": "your patterns overlap too much",
        "mqtt": "codes=(128,)",
        "sabc": "error-code::429",
    }
    assert refused[key] not in answers[0]
    assert refused[key] in answers[-1]
    assert refused[key] not in answer_to_subscribing(client, "plain/topic")


def answer_to_subscribing(client: Friend, pattern: str) -> str:
    stars = pattern.replace("+", "*")
    if isinstance(client, SabcFriend):
        client.line.send(client.frame("op::subscribe", f"destination::{stars}"))
    elif isinstance(client, MicromsgFriend):
        client.line.send(encode(Command("subscribe", (("destination", f"topic/{stars}"),))))
        client.line.send(encode(Command("ping", ())))
    elif isinstance(client, MqttFriend):
        client.line.send(mqtt.encode(mqtt.Subscribe(7, ((pattern, 1),))))
    else:
        client.line.send(f'C1:["subscribe","{stars}",{abs(hash(pattern)) % 1_000_000}]'.encode())
    answer = str(client.word())
    if isinstance(client, MicromsgFriend) and "pong" not in answer:
        assert "pong" in str(client.word())
    return answer


def test_retained_messages_at_the_limit_are_after_a_restart_what_they_were_before(tmp_path: Path) -> None:
    with running_hub("limits.retained_messages=2", journal=tmp_path) as hub:
        publisher = friend(hub, "mqtt")
        for number, (topic, body) in enumerate([("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2")], 1):
            publisher.line.send(mqtt.encode(mqtt.Publish(topic, body, qos=1, packet_id=number, retain=True)))
            assert publisher.word() == mqtt.Puback(number)
        publisher.close()
        hub.stop(signal.SIGKILL)
    with running_hub("limits.retained_messages=2", journal=tmp_path) as hub:
        reader = friend(hub, "mqtt")
        reader.line.send(mqtt.encode(mqtt.Subscribe(1, (("#", 0),))))
        assert reader.word() == mqtt.Suback(1, (0,))
        reader.publish("end", b"end")
        assert sorted([reader.hear(), reader.hear(), reader.hear()]) == [b"1", b"2", b"end"]
        reader.close()


@pytest.mark.rule("UMQ-136")
@pytest.mark.rule("MQTT-210")
def test_names_that_take_too_much_room_are_refused() -> None:
    words = "the memory limit for names is reached"
    refused = {"umq": f"E1:9 Limit exceeded: {words}", "micromsg": words, "mqtt": "codes=(128,)", "sabc": words}
    with running_hub("limits.names_size=4 KiB") as hub:
        for key, answer in refused.items():
            client = friend(hub, key)
            for number in range(5):
                assert (answer in answer_to_subscribing(client, f"{number}/" + "x" * 240)) == (number == 4)
            if isinstance(client, SabcFriend):
                client.line.send(client.frame("op::serve", "service::" + "x" * 240))
                assert answer in str(client.word())
            elif key == "umq":
                client.line.send(f'C1:["serve","{"x" * 240}",1]'.encode())
                assert answer in str(client.word())
            assert answer not in answer_to_subscribing(client, "short")
            client.close()
            reason = f'polywire_dropped_total{{protocol="{key}",reason="names-size"}}'
            assert hub.metric(reason) == (2 if key in {"umq", "sabc"} else 1)
        assert "limits.names_size is reached" in hub.wait_for_log("a subscription of umq client")
