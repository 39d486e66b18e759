"""MQTT on the hub: sessions that outlive their connection."""

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.demand import Watcher
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits
from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Will,
    encode,
    kept,
)
from polywire.protocols.mqtt.kept import MqttSessions
from tests.protocols.mqtt.broker import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


def away(broker: Broker, name: str, *filters: tuple[str, int]) -> None:
    """A client that subscribes and goes away."""
    client = broker.client(name, clean=False)
    client.subscribe(*filters)
    client.send(Disconnect())
    client.wire.lose()


def bodies(frames: object) -> list[bytes]:
    assert isinstance(frames, list)
    return [frame.payload for frame in frames if isinstance(frame, Publish)]


@pytest.mark.rule("MQTT-033", "MQTT-034", "MQTT-080", "MQTT-081", "MQTT-138", "MQTT-139", "MQTT-147")
def test_a_client_finds_its_subscriptions_and_what_it_missed(broker: Broker) -> None:
    away(broker, "me", ("a/+", 1), ("b", 2))
    publisher = broker.client()
    publisher.send(
        Publish("a/1", b"zero"),
        Publish("a/1", b"one", 1, packet_id=1),
        Publish("b", b"two", 2, packet_id=2),
        Publish("a/2", b"two", 2, packet_id=3),
        Publish("c", b"no", 2, packet_id=4),
    )
    client, missed = broker.resumed("me")
    assert missed == [
        Publish("a/1", b"one", 1, packet_id=1),
        Publish("b", b"two", 2, packet_id=2),
        Publish("a/2", b"two", 1, packet_id=3),
    ]
    publisher.send(Publish("a/9", b"now"))
    assert client.bodies() == [b"now"]


@pytest.mark.rule("MQTT-035", "MQTT-079", "MQTT-072")
def test_clean_session_drops_the_old_one_and_leaves_none(broker: Broker) -> None:
    away(broker, "me", ("a", 1))
    broker.publish("a", b"missed")
    client = broker.client("me", clean=True)
    assert client.got() == []
    client.subscribe(("b", 1))
    client.wire.lose()
    assert broker.sessions.stored == {}
    assert len(broker.hub.table) == 0
    broker.client("me", clean=False, present=False)


def test_a_session_kept_once_can_be_made_clean_and_back(broker: Broker) -> None:
    away(broker, "me", ("a", 1))
    broker.client("me", clean=True).wire.lose()
    broker.client("me", clean=False)


@pytest.mark.rule("MQTT-033")
def test_what_was_in_flight_is_sent_again_in_order_with_its_ids(broker: Broker) -> None:
    client = broker.client("me", clean=False)
    client.subscribe(("a", 2), ("b", 1))
    for topic, body in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        broker.publish(topic, body)
    client.send(Pubrec(1)).got()
    client.wire.lose()
    broker.publish("b", b"4")
    client, missed = broker.resumed("me")
    assert missed == [
        Pubrel(1),
        Publish("b", b"2", 1, dup=True, packet_id=2),
        Publish("a", b"3", 2, dup=True, packet_id=3),
        Publish("b", b"4", 1, packet_id=4),
    ]
    assert client.ask(Pubcomp(1), Puback(2), Pubrec(3), Puback(4)) == [Pubrel(3)]
    client.send(Pubcomp(3)).wire.lose()
    assert broker.resumed("me")[1] == []
    assert broker.sessions.octets == 0


def test_a_qos_2_message_is_delivered_once_across_connections(broker: Broker) -> None:
    heard = broker.recorder("a")
    client = broker.client("me", clean=False)
    client.send(Publish("a", b"x", 2, packet_id=7))
    client.wire.lose()
    client, _ = broker.resumed("me")
    assert client.ask(Publish("a", b"x", 2, dup=True, packet_id=7)) == [Pubrec(7)]
    assert [message.body for message in heard.got] == [b"x"]


def test_retained_messages_come_with_new_subscriptions_only(broker: Broker) -> None:
    broker.publish("a", b"kept", retain=True)
    away(broker, "me", ("a", 0))
    assert broker.resumed("me")[1] == []


@pytest.mark.rule("MQTT-071", "MQTT-057", "MQTT-037")
@pytest.mark.parametrize("clean", [False, True])
def test_a_client_that_connects_again_takes_its_own_place(broker: Broker, *, clean: bool) -> None:
    will = broker.recorder("will")
    old = broker.client("me", clean=clean, will=Will("will", b"gone"))
    old.subscribe(("a", 1))
    broker.publish("a", b"x")
    new = broker.wire()
    got = new.ask(Connect("me", clean))
    assert old.wire.closed
    assert [message.body for message in will.got] == [b"gone"]
    again = [Connack(session_present=True, return_code=0), Publish("a", b"x", 1, dup=True, packet_id=1)]
    assert got == ([Connack(session_present=False, return_code=0)] if clean else again)
    old.wire.closed = False
    old.wire.feed(encode(Publish("will", b"from the grave")))
    old.wire.lose()
    assert len(will.got) == 1
    assert len(broker.hub.clients) == 1
    assert list(broker.sessions.live) == ["me"]
    broker.publish("a", b"y")
    assert new.bodies() == ([] if clean else [b"y"])


def test_a_will_for_the_session_itself_is_stored_for_it(broker: Broker) -> None:
    client = broker.client("me", clean=False, will=Will("will", b"gone", 1))
    client.subscribe(("will", 1))
    client.wire.lose()
    assert bodies(broker.resumed("me")[1]) == [b"gone"]


def test_a_client_that_is_away_is_no_demand_and_no_reader(broker: Broker) -> None:
    seen: list[int] = []

    class Seen(Watcher):
        def demand(self, topic: str, subscribers: int) -> None:
            assert topic == "a"
            seen.append(subscribers)

    broker.hub.demand.watch(Seen("a"))
    away(broker, "me", ("a", 1))
    publisher = broker.client()
    publisher.send(Publish("a", b"x"))
    assert seen == [1, 0]
    assert broker.dropped == {}
    assert broker.hub.counters[3].messages_out == 0


def test_no_more_is_stored_than_allowed_and_the_oldest_stays() -> None:
    broker = Broker(limits=Limits(offline_messages=3))
    away(broker, "me", ("a", 1))
    for number in range(5):
        broker.publish("a", b"%d" % number)
    assert broker.dropped == {"offline-full": 2}
    assert bodies(broker.resumed("me")[1]) == [b"0", b"1", b"2"]


def test_what_waited_when_the_client_left_is_bounded_too() -> None:
    broker = Broker(limits=Limits(offline_messages=3, in_flight=1))
    client = broker.client("me", clean=False)
    client.subscribe(("a", 1))
    for number in range(6):
        broker.publish("a", b"%d" % number)
    client.wire.lose()
    assert broker.dropped == {"offline-full": 2}
    client, missed = broker.resumed("me")
    assert bodies(missed) == [b"0"]
    assert bodies(client.ask(Puback(1))) == [b"1"]


def test_the_octets_stored_are_bounded(broker: Broker) -> None:
    away(broker, "me", ("a", 1))
    away(broker, "other", ("a", 1))
    for _ in range(20):
        broker.publish("a", b"x" * (1 << 20))
    assert broker.dropped == {"offline-full": 10}
    assert broker.sessions.octets <= 2 * kept.MAX_SESSION_OCTETS
    for name in ("me", "other"):
        broker.resumed(name)
    assert broker.sessions.octets == 0


def test_the_session_that_was_away_longest_makes_room() -> None:
    broker = Broker(limits=Limits(sessions=2))
    for name in ("a", "b"):
        away(broker, name, ("t", 1))
    broker.publish("t", b"x")
    broker.resumed("a")[0].wire.lose()
    away(broker, "c", ("t", 1))
    assert list(broker.sessions.stored) == ["a", "c"]
    assert broker.dropped == {"session-expired": 1}
    assert len(broker.hub.table) == 2


def test_no_session_is_kept_where_none_may_be() -> None:
    broker = Broker(limits=Limits(sessions=0))
    away(broker, "me", ("a", 1))
    assert broker.sessions.stored == {}
    broker.client("me", clean=False)


@pytest.mark.rule("MQTT-195")
def test_a_session_ends_once_its_client_was_away_for_too_long() -> None:
    broker = Broker(limits=Limits(session_age=100.0))
    warnings: list[tuple[str, str]] = []
    broker.hub.on_warning = lambda kind, text: warnings.append((kind, text))
    clock = broker.site.clock
    away(broker, "me", ("a", 1))
    broker.publish("a", b"x")
    clock.advance(50)
    away(broker, "other", ("a", 1))
    clock.advance(49)
    broker.resumed("me")[0].wire.lose()
    clock.advance(50.5)
    clock.advance(0.5)
    assert list(broker.sessions.stored) == ["me"]
    clock.advance(101)
    assert broker.sessions.stored == {}
    assert len(broker.hub.table) == 0
    assert (broker.sessions.octets, broker.sessions._owners) == (0, {})
    assert [kind for kind, _ in warnings] == ["session-age", "session-age"]
    broker.client("me", clean=False, present=False)


@pytest.mark.rule("MQTT-195")
@pytest.mark.parametrize("jump", [86400.0 * 365, -86400.0 * 365])
def test_the_time_of_day_does_not_age_sessions(broker: Broker, jump: float) -> None:
    away(broker, "me", ("a", 1))
    broker.site.clock.jump = jump
    broker.site.clock.advance(61)
    broker.resumed("me")


def test_without_a_session_age_a_session_is_kept_for_good() -> None:
    broker = Broker(limits=Limits(session_age=0.0))
    away(broker, "me", ("a", 1))
    broker.site.clock.advance(1e9)
    broker.resumed("me")


@pytest.mark.rule("MQTT-195")
def test_many_sessions_are_ended_a_few_at_a_time() -> None:
    broker = Broker(limits=Limits(session_age=100.0))
    clock = broker.site.clock
    for number in range(50):
        away(broker, f"{number}", ("a", 1))
    book = broker.sessions
    ticks = iter(range(1, 1000))
    clock.now = 200.0
    steady = clock.nanoseconds
    clock.nanoseconds = lambda: steady() + next(ticks) * 100_000  # type: ignore[method-assign]
    slow = MqttSessions(Hub(print, clock.later, clock.nanoseconds, ["mqtt"], monotonic=clock.nanoseconds), 0)
    slow.limits = book.limits
    slow.stored.update(book.stored)
    for client_id, state in book.stored.items():
        state.away.clear()
        slow._owner("").stored[client_id] = state
    slow._age()
    assert 20 <= len(slow.stored) < 50
    clock.advance(0.1)
    clock.advance(0.1)
    assert not slow.stored


@pytest.mark.rule("MQTT-196")
def test_however_many_sessions_one_user_has_they_cost_another_nothing() -> None:
    limits = Limits(sessions=300, sessions_per_user=250)
    broker = Broker(passwords={"anna": "secret", "ben": "secret"}, limits=limits)
    anna = broker.client("anna's", clean=False, user="anna")
    anna.subscribe(("t", 1))
    anna.wire.lose()
    broker.publish("t", b"x")
    for number in range(1000):
        broker.client(f"{number}", clean=False, user="ben").wire.lose()
    assert list(broker.sessions.stored) == ["anna's", *map(str, range(750, 1000))]
    again = broker.wire()
    assert bodies(
        again.ask(Connect("anna's", clean_session=False, keep_alive=0, will=None, user_name="anna", password=b"secret"))
    ) == [b"x"]


@pytest.mark.rule("MQTT-197")
def test_what_waits_for_a_client_that_leaves_is_bounded_for_its_user() -> None:
    limits = Limits(sessions_size_per_user=10_000, in_flight=1)
    broker = Broker(passwords={"anna": "secret"}, limits=limits)
    for name in ("1", "2"):
        client = broker.client(name, clean=False, user="anna")
        client.subscribe((name, 1))
        for _ in range(10):
            broker.publish(name, b"x" * 1000)
        client.wire.lose()
    assert broker.sessions.octets <= 10_000
    assert list(broker.sessions.stored) == ["2"]  # what "2" had in flight is kept, so "1" had to go


def test_a_stored_subscription_that_is_no_longer_allowed_is_not_gone_on_with(broker: Broker) -> None:
    away(broker, "me", ("open/a", 1), ("secret", 1))
    broker.site.rules = AccessRules([AccessRule(["subscribe", "publish"], ["open/**"])])
    client, _ = broker.resumed("me")
    broker.publish("open/a", b"x")
    broker.publish("secret", b"y")
    assert client.bodies() == [b"x"]
    assert broker.dropped == {"forbidden": 1}


def test_a_channel_mqtt_has_no_name_for_is_not_stored(broker: Broker) -> None:
    away(broker, "me", ("#", 1))
    broker.publish("a+b", b"x")
    broker.publish("a/\0", b"y")
    assert broker.resumed("me")[1] == [Publish("a/*", b"y", 1, packet_id=1)]


@pytest.mark.rule("MQTT-033")
def test_a_session_goes_on_with_its_queues_however_many_there_are_by_now(broker: Broker) -> None:
    broker.hub.most_queues = 1
    away(broker, "me", ("queue/mine", 1))
    worker = broker.client()
    worker.subscribe(("queue/other", 1))
    assert broker.client().ask(Subscribe(1, (("queue/third", 1),))) == [Suback(1, (128,))]
    client, rest = broker.resumed("me")
    assert rest == []
    assert broker.publish("queue/mine", b"x") is None
    assert client.got() == [Publish("queue/mine", b"x", 1, packet_id=1)]


def test_sessions_can_be_written_down_and_go_on_in_another_hub(broker: Broker) -> None:
    client = broker.client("live", clean=False)
    client.subscribe(("a", 2), ("queue/q", 1))
    broker.publish("a", b"1")
    broker.publish("queue/q", b"the queue's")
    client.send(Publish("b", b"held", 2, packet_id=9))
    away(broker, "gone", ("a", 1))
    broker.publish("a", b"2")
    broker.client("clean").subscribe(("a", 1))
    snapshots = broker.sessions.snapshot()
    assert [each.client_id for each in snapshots] == ["gone", "live"]
    assert [each.held for each in snapshots] == [frozenset(), frozenset({9})]

    other = Broker()
    sessions = MqttSessions(other.hub, 3)
    other.hub.shared["mqtt"] = sessions
    for snapshot in snapshots:
        sessions.restore(snapshot, Limits())
    other.publish("a", b"3")
    assert other.sessions.snapshot()[0].filters == (("a", 1),)
    assert bodies(other.resumed("gone")[1]) == [b"2", b"3"]
    client, missed = other.resumed("live")
    assert bodies(missed) == [b"1", b"2", b"3"]
    heard = other.recorder("b")
    assert client.ask(Publish("b", b"held", 2, dup=True, packet_id=9)) == [Pubrec(9)]
    assert heard.got == []
