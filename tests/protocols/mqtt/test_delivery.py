"""MQTT on the hub: the flows of QoS 1 and 2, order, windows, cut-through and queues."""

from collections.abc import Callable

import pytest

from polywire.hub.message import Message
from polywire.hub.outbox import PATIENCE
from polywire.hub.peer import Limits
from polywire.protocols.mqtt import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode,
)
from tests.hub.links import contents
from tests.protocols.mqtt.broker import Broker, MqttClient


@pytest.fixture
def broker() -> Broker:
    return Broker()


def numbered(count: int, topic: str = "a", qos: int = 1) -> list[Publish]:
    """Publications with their number as the payload and the packet id."""
    return [Publish(topic, b"%d" % number, qos, packet_id=number) for number in range(1, count + 1)]


def test_qos_2_is_delivered_once_however_often_it_is_sent(broker: Broker) -> None:
    heard = broker.recorder("a")
    client = broker.client()
    assert client.ask(Publish("a", b"x", 2, packet_id=5)) == [Pubrec(5)]
    assert client.ask(Publish("a", b"x", 2, dup=True, packet_id=5)) == [Pubrec(5)]
    assert client.ask(Pubrel(5)) == [Pubcomp(5)]
    assert client.ask(Pubrel(5)) == [Pubcomp(5)]
    assert client.ask(Publish("a", b"y", 2, packet_id=5)) == [Pubrec(5)]
    assert [message.body for message in heard.got] == [b"x", b"y"]


def test_more_unreleased_qos_2_messages_than_allowed_close() -> None:
    broker = Broker(limits=Limits(in_flight=2))
    client = broker.client()
    assert client.ask(*numbered(3, qos=2)) == [Pubrec(1), Pubrec(2)]
    assert client.wire.closed
    assert broker.faults == {"MQTT-183": 1}


def test_an_acknowledgement_of_the_wrong_kind_closes(broker: Broker) -> None:
    client = broker.client()
    client.subscribe(("a", 1))
    broker.publish("a", b"x")
    client.send(Pubrec(1))
    assert client.wire.closed
    assert broker.faults == {"MQTT-186": 1}


@pytest.mark.rule("MQTT-193")
def test_acknowledgements_wait_until_everything_is_safe_and_keep_their_order(broker: Broker) -> None:
    client = broker.client()
    waiting: list[Callable[[], None]] = []
    broker.hub.when_safe = lambda safe, _failed: waiting.append(safe)
    client.send(Publish("a", b"1", 1, packet_id=1), Publish("a", b"2", 2, packet_id=2))
    client.send(Publish("a", b"3", 1, packet_id=3))
    assert client.got() == []
    waiting.pop(0)()
    assert client.got() == [Puback(1), Pubrec(2)]
    waiting.pop(0)()
    assert client.got() == [Puback(3)]


@pytest.mark.rule("MQTT-153", "MQTT-154")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("in_flight", [1, 7, 1000])
def test_messages_arrive_in_the_order_they_were_published(qos: int, in_flight: int) -> None:
    broker = Broker(limits=Limits(in_flight=in_flight))
    client, publisher = broker.client(), broker.client()
    client.subscribe(("+", qos))
    got: list[bytes] = []
    for number in range(40):
        packet_id = number + 1 if qos else None
        publisher.send(Publish("ab"[number % 2], b"%d" % number, qos, packet_id=packet_id))
        if qos == 2:
            publisher.send(Pubrel(number + 1))
    while True:
        frames = client.got()
        if not frames:
            break
        for frame in frames:
            if isinstance(frame, Publish):
                got.append(frame.payload)
                if frame.packet_id is not None:
                    client.send(Puback(frame.packet_id) if qos == 1 else Pubrec(frame.packet_id))
            elif isinstance(frame, Pubrel):
                client.send(Pubcomp(frame.packet_id))
    assert got == [b"%d" % number for number in range(40)]


def test_no_more_messages_are_in_flight_than_allowed() -> None:
    broker = Broker(limits=Limits(in_flight=2))
    client = broker.client()
    client.subscribe(("a", 1), ("b", 0))
    for number in range(5):
        broker.publish("a", b"%d" % number)
    broker.publish("b", b"at once")
    assert client.bodies() == [b"0", b"1", b"at once"]
    assert client.ask(Puback(1)) == [Publish("a", b"2", 1, packet_id=3)]
    client.send(Puback(2), Puback(3))
    assert client.bodies() == [b"3", b"4"]
    client.send(Puback(4), Puback(5))
    assert client.wire.outbox.held() == 0


def test_what_waits_for_acknowledgements_is_bounded_and_the_publisher_waits_first() -> None:
    broker = Broker(limits=Limits(in_flight=2))
    client, publisher = broker.client(cap=4000), broker.client()
    client.subscribe(("a", 1))
    publisher.send(*numbered(12))
    assert publisher.wire.paused == 0
    publisher.send(*numbered(6))
    assert publisher.wire.paused == 1
    broker.site.clock.advance(PATIENCE)
    assert publisher.wire.paused == 0
    publisher.send(*numbered(10))
    assert broker.dropped == {"slow-reader": 10}
    assert client.wire.outbox.dropped_by_channel == {"a": 10}
    number = 0
    while client.bodies():
        number += 2
        client.send(Puback(number - 1), Puback(number))
    assert number == 18
    publisher.send(*numbered(1))
    assert client.bodies() == [b"1"]


def test_a_client_that_acknowledges_slowly_but_steadily_loses_nothing() -> None:
    broker = Broker(limits=Limits(in_flight=2))
    client, publisher = broker.client(cap=4000), broker.client()
    client.subscribe(("a", 1))
    sent = 0
    for number in range(1, 301):
        if publisher.wire.paused == 0:
            publisher.send(*numbered(2))
            sent += 2
        client.send(Puback(number))
        client.got()
        broker.site.clock.advance(PATIENCE * 0.8)
    assert broker.dropped == {}
    assert sent > 300


def test_a_client_that_waits_for_itself_is_not_kept_from_acknowledging() -> None:
    broker = Broker(limits=Limits(in_flight=2))
    client = broker.client(cap=4000)
    client.subscribe(("a", 1))
    client.send(*numbered(20))
    assert client.wire.paused == 0


def test_plain_publications_go_through_as_they_are(broker: Broker) -> None:
    publisher = broker.client()
    same, sure = broker.client(), broker.client()
    same.subscribe(("a/+", 0))
    sure.subscribe(("a/b", 2))
    data = encode(Publish("a/b", b"1")) + encode(Publish("a/b", b"2"))
    publisher.wire.feed(data)
    assert same.wire.taken() == data
    assert sure.wire.taken() == data
    assert publisher.wire.client.counters.messages_in == 2


def test_plain_publications_reach_other_protocols_as_messages_with_qos_0(broker: Broker) -> None:
    heard = broker.recorder("a/\0")
    client = broker.client()
    client.subscribe(("a/b", 0))
    client.send(Publish("a/b", b"1"), Publish("a/b", b"2"))
    assert [(message.channel, message.body, message.qos) for message in heard.got] == [
        ("a/b", b"1", 0),
        ("a/b", b"2", 0),
    ]
    assert client.bodies() == [b"1", b"2"]


def test_a_subscription_between_plain_publications_counts_from_where_it_stands(broker: Broker) -> None:
    client = broker.client()
    client.send(Publish("a", b"0")).got()
    client.send(Publish("a", b"1"), Subscribe(1, (("a", 0),)), Publish("a", b"2"), Publish("a", b"3"))
    assert client.bodies() == [b"2", b"3"]
    client.send(Publish("a", b"4"), Unsubscribe(1, ("a",)), Publish("a", b"5"))
    assert client.bodies() == [b"4"]


def test_a_slow_reader_s_dropped_messages_are_counted_by_topic(broker: Broker) -> None:
    slow, publisher = broker.client(cap=64), broker.client()
    slow.subscribe(("a", 0))
    slow.wire.stall_next = True
    for _ in range(12):
        publisher.send(Publish("a", b"x" * 20))
    broker.site.clock.advance(PATIENCE)
    publisher.send(Publish("a", b"y"), Publish("a", b"z"))
    assert slow.wire.outbox.dropped_by_channel["a"] >= 2
    assert broker.dropped["slow-reader"] == slow.wire.outbox.dropped


def put(broker: Broker, *bodies: bytes) -> None:
    for body in bodies:
        assert broker.publish("queue/q", body) is None


def test_publishing_to_a_queue_s_channel_enqueues(broker: Broker) -> None:
    client = broker.client()
    assert client.ask(Publish("queue/q", b"0"), *numbered(1, "queue/q")) == [Puback(1)]
    assert [message.body for message in contents(broker.hub.queue("q"))] == [b"0", b"1"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_queue_s_message_is_taken_when_it_is_acknowledged(broker: Broker, qos: int) -> None:
    put(broker, b"x")
    client = broker.client()
    assert client.subscribe(("queue/q", qos)) == [Publish("queue/q", b"x", qos, packet_id=1)]
    assert len(broker.hub.queue("q")) == 1
    assert client.ask(Puback(1) if qos == 1 else Pubrec(1)) == ([] if qos == 1 else [Pubrel(1)])
    assert len(broker.hub.queue("q")) == 0


def test_with_qos_0_a_queue_s_message_is_taken_when_it_is_written(broker: Broker) -> None:
    put(broker, b"x", b"y")
    client = broker.client()
    assert client.subscribe(("queue/q", 0)) == [Publish("queue/q", b"x"), Publish("queue/q", b"y")]
    assert len(broker.hub.queue("q")) == 0


def test_a_long_queue_is_taken_without_going_deep(broker: Broker) -> None:
    broker.hub.queue_messages = 50_000
    for _ in range(50_000):
        broker.hub.queue("q").put(Message("queue/q", b"x"))
    assert len(broker.client().subscribe(("queue/q", 0))) == 50_000


def test_consumers_share_a_queue_and_an_unacknowledged_message_goes_to_the_next(broker: Broker) -> None:
    one, other = broker.client(), broker.client()
    one.subscribe(("queue/q", 1))
    other.subscribe(("queue/q", 1))
    put(broker, b"1", b"2")
    assert (one.bodies(), other.bodies()) == ([b"1"], [b"2"])
    one.wire.lose()
    assert other.got() == [Publish("queue/q", b"1", 1, packet_id=2)]


@pytest.mark.parametrize("clean", [False, True])
def test_a_queue_s_message_the_client_has_received_is_not_given_to_another(broker: Broker, *, clean: bool) -> None:
    client = broker.client("me", clean=clean)
    client.subscribe(("queue/q", 2))
    put(broker, b"x", b"y")
    client.send(Pubrec(1))
    client.wire.lose()
    assert broker.client().subscribe(("queue/q", 0)) == [Publish("queue/q", b"y")]
    if not clean:
        _, rest = broker.resumed("me")
        assert rest == [Pubrel(1), Pubrel(2)]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_client_lets_go_of_the_packet_id_of_a_queue_s_message_it_may_have(broker: Broker, qos: int) -> None:
    client = broker.client("me", clean=False)
    client.subscribe(("queue/q", qos), ("t", qos))
    put(broker, b"x")
    assert client.bodies() == [b"x"]
    client.wire.lose()
    assert broker.client().subscribe(("queue/q", 0)) == [Publish("queue/q", b"x")]
    client, rest = broker.resumed("me")
    assert rest == ([Pubrel(1)] if qos == 2 else [])
    broker.publish("t", b"y")
    assert client.got() == [Publish("t", b"y", qos, packet_id=2)]


def test_a_stored_session_consumes_its_queue_again_when_it_goes_on(broker: Broker) -> None:
    client = broker.client("me", clean=False)
    client.subscribe(("queue/q", 1))
    put(broker, b"x")
    assert client.bodies() == [b"x"]
    client.wire.lose()
    put(broker, b"y")
    _, rest = broker.resumed("me")
    assert [frame.payload for frame in rest if isinstance(frame, Publish)] == [b"x", b"y"]
    assert not any(frame.dup for frame in rest if isinstance(frame, Publish))


def test_unsubscribing_from_a_queue_lets_what_is_on_its_way_be_finished(broker: Broker) -> None:
    client, other = broker.client(), broker.client()
    client.subscribe(("queue/q", 1))
    put(broker, b"x")
    client.got()
    assert client.ask(Unsubscribe(2, ("queue/q",))) == [Unsuback(2)]
    other.subscribe(("queue/q", 1))
    put(broker, b"y")
    assert (client.bodies(), other.bodies()) == ([], [b"y"])
    client.send(Puback(1))
    assert len(broker.hub.queue("q")) == 1
    assert broker.hub.queue("q").consumers() == 1


def test_subscribing_to_a_queue_again_goes_on_with_it(broker: Broker) -> None:
    client = broker.client()
    client.subscribe(("queue/q", 1))
    put(broker, b"x")
    client.send(Unsubscribe(2, ("queue/q",))).got()
    put(broker, b"y")
    assert client.subscribe(("queue/q", 2)) == [Publish("queue/q", b"y", 2, packet_id=2)]


@pytest.mark.rule("MQTT-188")
def test_a_queue_that_was_unsubscribed_from_takes_no_place_while_acknowledgements_are_due() -> None:
    broker = Broker(limits=Limits(subscriptions=1))
    client = broker.client()
    client.subscribe(("queue/q", 1))
    put(broker, b"x")
    client.send(Unsubscribe(2, ("queue/q",))).got()
    assert client.ask(Subscribe(3, (("a", 0), ("queue/q", 1)))) == [Suback(3, (0, 128))]
    client.send(Unsubscribe(4, ("a",))).got()
    assert client.ask(Subscribe(5, (("queue/q", 1), ("a", 0)))) == [Suback(5, (1, 128))]
    client.send(Puback(1), Unsubscribe(6, ("queue/q",))).got()
    assert client.ask(Subscribe(7, (("a", 0), ("b", 0)))) == [Suback(7, (0, 128))]
    assert broker.hub.queues == {}


def test_a_wildcard_never_consumes(broker: Broker) -> None:
    put(broker, b"x")
    client = broker.client("me", clean=False)
    assert client.subscribe(("queue/+", 1), ("#", 1)) == []
    client.wire.lose()
    assert broker.resumed("me")[1] == []
    assert len(broker.hub.queue("q")) == 1


def test_a_queue_waits_for_room_among_the_messages_in_flight() -> None:
    broker = Broker(limits=Limits(in_flight=2))
    client = broker.client()
    client.subscribe(("queue/q", 1), ("a", 1))
    broker.publish("a", b"a")
    put(broker, b"1", b"2", b"3")
    assert client.bodies() == [b"a", b"1"]
    client.send(Puback(1))
    assert client.bodies() == [b"2"]
    client.send(Puback(2), Puback(3))
    assert client.bodies() == [b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_queue_is_not_acknowledged_and_closes_so_that_it_is_sent_again(broker: Broker, qos: int) -> None:
    broker.hub.queue_messages = 1
    client = broker.client("me", clean=False)
    frames = numbered(2, "queue/q", qos)
    assert client.ask(*frames) == [Puback(1) if qos == 1 else Pubrec(1)]
    assert client.wire.closed
    client.wire.lose()
    assert broker.dropped == {"queue-full": 1}
    taker = broker.client()
    taker.subscribe(("queue/q", 0))
    again, _ = broker.resumed("me")
    again.send(Publish("queue/q", b"2", qos, dup=True, packet_id=2))
    assert taker.bodies() == [b"2"]


def test_a_full_queue_drops_what_has_no_acknowledgement(broker: Broker) -> None:
    broker.hub.queue_messages = 1
    client: MqttClient = broker.client()
    client.send(Publish("queue/q", b"1"), Publish("queue/q", b"2"))
    assert not client.wire.closed
    assert broker.dropped == {"queue-full": 1}
