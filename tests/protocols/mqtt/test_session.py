"""MQTT on the hub: connecting, publishing, subscribing, leaving."""

from collections.abc import Callable

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.peer import Limits, Refused
from polywire.hub.recorder import Recorder
from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from polywire.protocols.mqtt.session import MqttSession
from tests.protocols.mqtt.broker import Broker
from tests.protocols.mqtt.test_page import LINE, PAGE

ONLY_OPEN = AccessRules([AccessRule(["publish", "subscribe"], ["open/**"])])


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_the_page_s_transcript_is_what_the_hub_says(broker: Broker) -> None:
    wire = broker.wire().wire
    said = [(side, bytes.fromhex(text)) for side, text in LINE.findall(PAGE)]
    written = b""
    for side, data in said:
        if side == ">":
            wire.feed(data)
            written += wire.taken()
    assert written == b"".join(data for side, data in said if side == "<")
    assert wire.closed


@pytest.mark.rule("MQTT-073", "MQTT-079")
def test_a_client_is_welcomed_and_counted(broker: Broker) -> None:
    client = broker.wire()
    assert client.ask(Connect("me")) == [Connack(session_present=False, return_code=0)]
    assert client.wire.is_established
    assert client.wire.client.name == "me"
    assert list(broker.hub.clients.values()) == [client.wire.client]


@pytest.mark.rule("MQTT-062")
def test_clients_without_an_id_get_one_each(broker: Broker) -> None:
    squatter = broker.client("polywire-1")
    one, other = broker.client(), broker.client()
    assert len({each.wire.client.name for each in (squatter, one, other)}) == 3
    assert not any(each.wire.closed for each in (squatter, one, other))


@pytest.mark.rule("MQTT-075")
@pytest.mark.parametrize(("user", "code"), [("anna", 4), (None, 5)])
@pytest.mark.parametrize("slow", [False, True])
def test_a_refused_login_is_answered_and_nothing_behind_it_is_processed(
    user: str | None, code: int, *, slow: bool
) -> None:
    broker = Broker(passwords={"anna": "right"})
    broker.site.slow_logins = slow
    heard = broker.recorder("a")
    client = broker.wire()
    client.send(Connect("me", user_name=user, password=b"wrong" if user else None), Publish("a", b"x"))
    for finish in broker.site.pending_logins:
        finish()
    assert client.got() == [Connack(session_present=False, return_code=code)]
    assert client.wire.closed
    assert heard.got == []
    assert broker.faults == {"login": 1}
    client.wire.lose()
    assert broker.hub.clients == {}


@pytest.mark.parametrize("slow", [False, True])
def test_what_is_sent_right_behind_connect_is_handled_after_the_login(*, slow: bool) -> None:
    broker = Broker(passwords={"anna": "secret"}, rules=ONLY_OPEN)
    broker.site.slow_logins = slow
    heard, secret = broker.recorder("open/a"), broker.recorder("secret")
    client = broker.wire()
    client.send(
        Connect("me", user_name="anna", password=b"secret"),
        Publish("secret", b"x"),
        Publish("open/a", b"y", 1, packet_id=7),
        Pingreq(),
    )
    for finish in broker.site.pending_logins:
        finish()
    assert client.got() == [Connack(session_present=False, return_code=0), Pingresp(), Puback(7)]
    assert [message.body for message in heard.got] == [b"y"]
    assert secret.got == []
    assert client.wire.logins[0].user == "anna"


def test_a_violation_behind_connect_counts_after_the_login() -> None:
    broker = Broker()
    broker.site.slow_logins = True
    client = broker.wire()
    client.wire.feed(encode(Connect("me")) + encode(Pingreq()) + encode(Connect("me")))
    broker.site.pending_logins[0]()
    assert client.got() == [Connack(session_present=False, return_code=0), Pingresp()]
    assert client.wire.closed
    assert broker.faults == {"MQTT-028": 1}


def test_a_connection_lost_during_its_login_leaves_nothing() -> None:
    broker = Broker()
    broker.site.slow_logins = True
    client = broker.wire()
    client.send(Connect("me"))
    client.wire.lose()
    broker.site.pending_logins[0]()
    assert (broker.hub.clients, broker.sessions.live) == ({}, {})


@pytest.mark.parametrize(
    ("data", "answer"),
    [("10 0C 00 04 4D 51 54 54 05 02 00 00 00 00", Connack(session_present=False, return_code=1)), ("C0 00", None)],
)
def test_a_violation_is_answered_where_there_are_words_and_closes(
    broker: Broker, data: str, answer: Connack | None
) -> None:
    client = broker.wire()
    client.wire.feed(bytes.fromhex(data))
    assert client.got() == ([answer] if answer else [])
    assert client.wire.closed
    client.wire.feed(encode(Connect("me")))
    assert broker.hub.clients == {}


@pytest.mark.rule("MQTT-166", "MQTT-037")
def test_a_violation_closes_after_what_was_before_it_and_sends_the_will(broker: Broker) -> None:
    heard, will = broker.recorder("a"), broker.recorder("will")
    client = broker.client("me", will=Will("will", b"gone"))
    client.wire.feed(encode(Publish("a", b"0")) + encode(Publish("a", b"1", 1, packet_id=9)) + b"\xf0\x00")
    assert client.got() == [Puback(9)]
    assert client.wire.closed
    client.wire.lose()
    assert [message.body for message in heard.got] == [b"0", b"1"]
    assert [message.body for message in will.got] == [b"gone"]
    assert broker.faults == {"MQTT-009": 1}


@pytest.mark.rule("MQTT-037", "MQTT-039", "MQTT-045", "MQTT-046")
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_published_once_when_the_connection_is_lost(broker: Broker, *, retain: bool) -> None:
    heard = broker.client()
    heard.subscribe(("will", 1))
    client = broker.client("me", will=Will("will", b"gone", 1, retain))
    client.wire.lose()
    client.wire.lose()
    assert heard.got() == [Publish("will", b"gone", 1, packet_id=1)]
    assert broker.client().subscribe(("will", 0)) == ([Publish("will", b"gone", 0, retain=True)] if retain else [])


@pytest.mark.rule("MQTT-039", "MQTT-137", "MQTT-041")
def test_disconnect_voids_the_will_and_closes(broker: Broker) -> None:
    heard = broker.recorder("will")
    leaving, without = broker.client("me", will=Will("will", b"gone")), broker.client("other")
    leaving.send(Disconnect())
    assert leaving.wire.closed
    leaving.wire.lose()
    without.wire.lose()
    assert heard.got == []
    assert broker.hub.clients == {}


def test_a_will_the_client_may_not_publish_is_dropped() -> None:
    broker = Broker(rules=ONLY_OPEN)
    heard, service = broker.recorder("secret"), broker.recorder("$SYS/x")
    broker.client("a", will=Will("secret", b"x")).wire.lose()
    broker.client("b", will=Will("$SYS/x", b"x")).wire.lose()
    assert (heard.got, service.got) == ([], [])
    assert broker.dropped == {"forbidden": 1, "service-channel": 1}


@pytest.mark.rule("MQTT-054", "MQTT-037")
def test_a_silent_client_is_hung_up_on_after_one_and_a_half_keep_alives(broker: Broker) -> None:
    will = broker.recorder("will")
    client = broker.client("me", keep_alive=10, will=Will("will", b"gone"))
    clock = broker.site.clock
    clock.advance(14.9)
    assert not client.closed()
    client.send(Pingreq())
    clock.advance(0.2)
    clock.advance(14.7)
    assert not client.closed()
    assert len([alarm for alarm in clock.alarms if not alarm.cancelled]) == 1
    clock.advance(0.2)
    assert client.closed()
    client.wire.lose()
    assert [message.body for message in will.got] == [b"gone"]
    assert broker.faults == {"MQTT-054": 1}


@pytest.mark.rule("MQTT-199")
@pytest.mark.parametrize("jump", [86400.0, -86400.0])
def test_a_change_of_the_time_of_day_is_no_silence_and_hides_none(broker: Broker, jump: float) -> None:
    client = broker.client("me", keep_alive=10)
    clock = broker.site.clock
    clock.advance(10)
    client.send(Pingreq())
    clock.jump = jump
    clock.advance(5)
    assert not client.closed()
    clock.advance(9.9)
    assert not client.closed()
    clock.advance(0.2)
    assert client.closed()


def test_a_client_that_is_not_read_is_not_silent(broker: Broker) -> None:
    client = broker.client("me", keep_alive=10)
    clock = broker.site.clock
    clock.advance(14)
    client.wire.unread_until = clock.nanoseconds()
    clock.advance(14)
    assert not client.closed()
    clock.advance(1)
    assert client.closed()


def test_without_keep_alive_silence_is_no_matter(broker: Broker) -> None:
    client = broker.client("me")
    broker.site.clock.advance(1e6)
    assert not client.wire.closed


def test_a_client_that_left_has_no_alarm(broker: Broker) -> None:
    broker.client("me", keep_alive=10).wire.lose()
    assert all(alarm.cancelled for alarm in broker.site.clock.alarms)


@pytest.mark.rule("MQTT-133")
def test_a_ping_is_answered(broker: Broker) -> None:
    assert broker.client().ask(Pingreq(), Pingreq()) == [Pingresp(), Pingresp()]


@pytest.mark.rule("MQTT-113", "MQTT-116", "MQTT-103", "MQTT-192")
def test_a_message_comes_once_with_the_highest_qos(broker: Broker) -> None:
    client = broker.client()
    filters = (("a/+", 0), ("a/#", 2), ("a/b", 1), ("#", 0))
    assert client.ask(Subscribe(5, filters)) == [Suback(5, (0, 2, 1, 0))]
    assert client.ask(Publish("a/b", b"x", 2, packet_id=3)) == [Publish("a/b", b"x", 2, packet_id=1), Pubrec(3)]


@pytest.mark.rule("MQTT-118")
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_has_the_lower_of_its_own_qos_and_the_one_granted(broker: Broker, sent: int, granted: int) -> None:
    client, other = broker.client(), broker.client()
    client.subscribe(("a", granted))
    other.send(Publish("a", b"x", sent, packet_id=1 if sent else None))
    qos = min(sent, granted)
    assert client.got() == [Publish("a", b"x", qos, packet_id=1 if qos else None)]


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_from_another_protocol_has_the_qos_granted(broker: Broker, granted: int) -> None:
    client = broker.client()
    client.subscribe(("a", granted))
    broker.publish("a", b"x")
    assert client.got() == [Publish("a", b"x", granted, packet_id=1 if granted else None)]


@pytest.mark.rule("MQTT-115", "MQTT-091", "MQTT-093")
def test_subscribing_again_replaces_and_brings_the_retained_messages_again(broker: Broker) -> None:
    client = broker.client()
    client.send(Publish("a/1", b"kept", 1, retain=True, packet_id=1)).got()
    assert client.subscribe(("a/+", 0)) == [Publish("a/1", b"kept", 0, retain=True)]
    assert client.subscribe(("a/+", 1)) == [Publish("a/1", b"kept", 1, retain=True, packet_id=1)]
    assert client.ask(Publish("a/1", b"new", 1, packet_id=2))[0] == Publish("a/1", b"new", 1, packet_id=2)
    assert len(broker.hub.table) == 1


@pytest.mark.rule("MQTT-090", "MQTT-092", "MQTT-094", "MQTT-095", "MQTT-096", "MQTT-097", "MQTT-036")
def test_retained_messages(broker: Broker) -> None:
    publisher, listener = broker.client("p"), broker.client()
    listener.subscribe(("a", 2))
    publisher.send(Publish("a", b"1", 2, retain=True, packet_id=1))
    publisher.send(Publish("a", b"2"))
    publisher.wire.lose()
    assert listener.got() == [Publish("a", b"1", 2, packet_id=1), Publish("a", b"2")]
    assert broker.client().subscribe(("a", 2)) == [Publish("a", b"1", 2, retain=True, packet_id=1)]
    publisher = broker.client("p")
    publisher.send(Publish("a", b"3", 0, retain=True))
    assert broker.client().subscribe(("a", 2)) == [Publish("a", b"3", 0, retain=True)]
    publisher.send(Publish("a", b"", 0, retain=True))
    assert listener.got() == [Publish("a", b"3"), Publish("a", b"")]
    assert broker.client().subscribe(("a", 2)) == []


@pytest.mark.rule("MQTT-126", "MQTT-127", "MQTT-130", "MQTT-131")
def test_unsubscribing_takes_the_very_filter_and_is_always_answered(broker: Broker) -> None:
    client = broker.client()
    client.subscribe(("a/+", 0), ("a/b", 0), ("c", 0))
    assert client.ask(Unsubscribe(9, ("a/+", "A/b", "c"))) == [Unsuback(9)]
    assert client.ask(Publish("a/b", b"x"), Publish("c", b"y")) == [Publish("a/b", b"x")]
    assert client.ask(Unsubscribe(10, ("c",))) == [Unsuback(10)]


@pytest.mark.rule("MQTT-128")
def test_what_was_on_its_way_is_delivered_to_the_end_after_unsubscribing(broker: Broker) -> None:
    client = broker.client()
    client.subscribe(("a", 2))
    broker.publish("a", b"x")
    assert client.got() == [Publish("a", b"x", 2, packet_id=1)]
    client.send(Unsubscribe(2, ("a",)))
    client.got()
    assert client.ask(Pubrec(1)) == [Pubrel(1)]
    assert client.ask(Pubcomp(1)) == []


@pytest.mark.rule("MQTT-160")
@pytest.mark.parametrize("topic", ["$SYS/x", "$", "$/info/clients"])
def test_publications_under_dollar_are_discarded_counted_and_acknowledged(broker: Broker, topic: str) -> None:
    client = broker.client()
    client.subscribe(("#", 0))
    assert client.ask(Publish(topic, b"x"), Publish(topic, b"x", 1, retain=True, packet_id=4)) == [Puback(4)]
    assert broker.dropped == {"service-channel": 2}
    assert len(broker.hub.retained) == 0


@pytest.mark.rule("MQTT-202")
def test_filters_that_never_get_anything_are_refused_and_logged(broker: Broker) -> None:
    refused: list[tuple[str, str, str, Refused]] = []
    broker.hub.on_refused = lambda client, *what: refused.append((client.name, *what))
    client = broker.client("me")
    filters = ("$SYS/#", "$share/workers/a", "$SYS", "$/info/clients", "$/#", "$", "a")
    frame = Subscribe(1, tuple((each, 1) for each in filters))
    assert client.ask(frame)[0] == Suback(1, (128, 128, 128, 1, 1, 1, 1))
    assert broker.dropped == {"unsupported": 3}
    assert refused[:2] == [
        ("me", "subscribe", "$SYS/**", Refused.UNSUPPORTED),
        ("me", "subscribe", "$share/workers/a", Refused.UNSUPPORTED),
    ]


@pytest.mark.rule("MQTT-203")
@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("secret", Refused.FORBIDDEN),
        ("$SYS/x", Refused.SERVICE_CHANNEL),
        ("open" + "/x" * 300, Refused.TOO_DEEP),
    ],
)
def test_a_refused_publication_is_logged_and_recorded_with_who_and_where(topic: str, reason: Refused) -> None:
    broker = Broker(rules=ONLY_OPEN, passwords={"anna": "secret"})
    refused: list[tuple[str, str, str, Refused]] = []
    broker.hub.on_refused = lambda client, *what: refused.append((client.name, *what))
    broker.hub.recorder = Recorder(0, broker.hub.clock, lambda: None)
    client = broker.client("me", user="anna")
    assert client.ask(Publish(topic, b"x", 1, packet_id=4)) == [Puback(4)]
    assert refused == [("me", "publish", topic, reason)]
    assert broker.dropped == {reason.label: 1}
    (columns,) = broker.hub.recorder.take()
    assert int(columns.rows) == 2  # connect, discard


@pytest.mark.rule("MQTT-201")
def test_a_bridge_gets_nothing_back_and_sees_what_was_retained(broker: Broker) -> None:
    bridge = broker.wire()
    assert bridge.ask(Connect("bridge", clean_session=False, bridge=True)) == [
        Connack(session_present=False, return_code=0)
    ]
    bridge.subscribe(("#", 1))
    plain = broker.client("plain")
    plain.subscribe(("#", 1))
    own = [
        Publish("own", b"0"),
        Publish("own", b"1", 1, retain=True, packet_id=1),
        Publish("own", b"2", 2, packet_id=2),
    ]
    assert bridge.ask(*own) == [Puback(1), Pubrec(2)]
    assert plain.bodies() == [b"0", b"1", b"2"]
    plain.send(
        Publish("other", b"3"),
        Publish("other", b"4", 0, retain=True),
        Publish("other", b"5", 1, retain=True, packet_id=3),
    )
    got = [frame for frame in bridge.got() if isinstance(frame, Publish)]
    assert [(frame.payload, frame.retain) for frame in got] == [(b"3", False), (b"4", True), (b"5", True)]
    bridge.send(Puback(1)).wire.lose()
    plain.send(Publish("other", b"6", 1, retain=True, packet_id=4), Publish("other", b"7", 1, packet_id=5))
    back = broker.wire()
    sent = back.ask(Connect("bridge", clean_session=False, bridge=True))
    assert [(frame.payload, frame.retain) for frame in sent if isinstance(frame, Publish)] == [
        (b"6", True),
        (b"7", False),
    ]


@pytest.mark.rule("MQTT-104")
def test_a_forbidden_publication_is_acknowledged_dropped_and_counted() -> None:
    broker = Broker(rules=ONLY_OPEN)
    heard = broker.recorder("secret")
    client = broker.client()
    frames = (Publish("secret", b"0"), Publish("secret", b"1", 1, packet_id=1), Publish("secret", b"2", 2, packet_id=2))
    assert client.ask(*frames) == [Puback(1), Pubrec(2)]
    assert heard.got == []
    assert broker.dropped == {"forbidden": 3}


def test_a_forbidden_subscription_is_refused_in_suback() -> None:
    broker = Broker(rules=ONLY_OPEN)
    client = broker.client()
    filters = (("open/#", 1), ("#", 1), ("secret", 0), ("queue/x", 1))
    assert client.ask(Subscribe(3, filters)) == [Suback(3, (1, 128, 128, 128))]
    assert broker.dropped == {"forbidden": 3}
    assert len(broker.hub.table) == 1


@pytest.mark.rule("MQTT-188")
def test_subscriptions_past_the_limit_are_refused_in_suback() -> None:
    broker = Broker(limits=Limits(subscriptions=2))
    client = broker.client()
    filters = (("a", 0), ("b", 1), ("c", 2), ("a", 1), ("queue/q", 1))
    assert client.ask(Subscribe(3, filters)) == [Suback(3, (0, 1, 128, 1, 128))]
    assert broker.dropped == {"limit": 2}


def test_names_and_filters_with_too_many_levels_are_refused(broker: Broker) -> None:
    client = broker.client()
    deep = "/".join(["a"] * 300)
    assert client.ask(Subscribe(3, ((deep, 0),))) == [Suback(3, (128,))]
    assert client.ask(Publish(deep, b"x"), Publish(deep, b"x", 1, packet_id=1)) == [Puback(1)]
    assert broker.dropped == {"too-deep": 3}


def test_a_payload_over_the_limit_closes() -> None:
    broker = Broker(limits=Limits(message_size=100))
    heard = broker.recorder("a")
    client = broker.client()
    client.send(Publish("a", b"x" * 100), Publish("a", b"y" * 100, 1, packet_id=1))
    assert client.got() == [Puback(1)]
    client.send(Publish("a", b"x" * 101))
    assert client.wire.closed
    assert len(heard.got) == 2
    assert broker.faults == {"MQTT-179": 1}


def test_a_connect_over_the_smaller_limit_closes() -> None:
    broker = Broker(limits=Limits(message_size_before_auth=100))
    client = broker.wire()
    client.send(Connect("x" * 100))
    assert client.wire.closed
    assert broker.faults == {"MQTT-180": 1}


def test_draining_refuses_what_is_new_and_finishes_the_rest(broker: Broker) -> None:
    heard = broker.recorder("a")
    client = broker.client("me", will=Will("a", b"will"))
    client.subscribe(("b", 1))
    broker.publish("b", b"x")
    assert client.ask(Publish("a", b"2", 2, packet_id=1)) == [Publish("b", b"x", 1, packet_id=1), Pubrec(1)]
    session, late = client.wire.session, broker.wire()
    for each in (session, late.wire.session):
        assert isinstance(each, MqttSession)
        each.drain()
    frames = (Publish("a", b"0"), Publish("a", b"1", 1, packet_id=2), Subscribe(4, (("c", 0),)), Pubrel(1), Puback(1))
    assert client.ask(*frames) == [Suback(4, (128,)), Pubcomp(1)]
    assert late.ask(Connect("late")) == [Connack(session_present=False, return_code=3)]
    assert late.wire.closed
    client.wire.lose()
    assert [message.body for message in heard.got] == [b"2", b"will"]
    assert broker.dropped == {"draining": 3}


def test_a_client_is_busy_until_both_sides_have_acknowledged(broker: Broker) -> None:
    done: list[Callable[[], None]] = []
    broker.hub.when_safe = lambda safe, _failed: done.append(safe)
    client, worker, late = broker.client("me"), broker.client("worker"), broker.wire()
    worker.subscribe(("queue/jobs", 1))
    client.send(Publish("queue/jobs", b"x", 1, packet_id=1))
    sessions = [each.wire.session for each in (client, worker, late)]
    assert [each.busy() for each in sessions] == [True, True, False]  # type: ignore[attr-defined]
    done.pop()()
    worker.send(Puback(1))
    assert [each.busy() for each in sessions] == [False, False, False]  # type: ignore[attr-defined]


def test_a_client_is_busy_while_messages_wait_for_their_turn() -> None:
    broker = Broker(limits=Limits(in_flight=1))
    client = broker.client("me")
    client.subscribe(("a", 1))
    broker.publish("a", b"1")
    session = client.wire.session
    assert isinstance(session, MqttSession)
    assert not session.busy()
    broker.publish("a", b"2")
    assert session.busy()
    client.send(Puback(1))
    assert not session.busy()


@pytest.mark.rule("MQTT-076")
def test_goodbye_and_time_over_close_without_a_word(broker: Broker) -> None:
    will = broker.recorder("will")
    silent, idle, last = broker.wire(), broker.client("idle", will=Will("will", b"x")), broker.client("last")
    for each in (silent.wire.session, idle.wire.session):
        assert isinstance(each, MqttSession)
        each.timed_out()
    assert isinstance(last.wire.session, MqttSession)
    last.wire.session.goodbye()
    for client in (silent, idle, last):
        assert client.wire.closed
        assert client.wire.taken() == b""
        client.wire.lose()
    assert [message.body for message in will.got] == [b"x"]


def test_service_topics_are_told_to_whoever_listens_for_them(broker: Broker) -> None:
    told: list[tuple[str, int]] = []
    broker.hub.on_service_topic = lambda message, client: told.append((message.channel, client.number))
    client = broker.client()
    client.subscribe(("/greeter", 0))
    frames = (Publish("/greeter", b"x"), Publish("/greeter/y", b"x"), Publish("greeter", b"x"))
    assert client.ask(*frames) == [Publish("/greeter", b"x")]
    assert told == [("/greeter", client.wire.client.number)]


@pytest.mark.rule("MQTT-100")
@pytest.mark.parametrize(
    ("topic_filter", "name"), [("a/b/c", "a/b/c"), ("+/b/#", "a/b/c"), ("a/+/c", "a/*/c"), ("#", "a/*/c")]
)
def test_a_message_to_a_pattern_arrives_under_a_name_the_filter_matches(
    broker: Broker, topic_filter: str, name: str
) -> None:
    client = broker.client()
    client.subscribe((topic_filter, 0))
    broker.publish("a/\0/c", b"x")
    broker.publish("a/\0/c", b"y")
    assert client.got() == [Publish(name, b"x"), Publish(name, b"y")]


def test_a_channel_mqtt_has_no_name_for_is_left_behind(broker: Broker) -> None:
    client = broker.client()
    client.subscribe(("#", 1))
    broker.publish("a#b", b"x")
    assert client.got() == []
    assert broker.dropped == {"unencodable": 1}


def test_messages_in_and_out_and_octets_are_counted(broker: Broker) -> None:
    client = broker.client("c")
    client.subscribe(("a", 1))
    client.send(Publish("a", b"0"), Publish("a", b"1", 1, packet_id=1))
    counters = client.wire.client.counters
    sent = encode(Connect("c")) + encode(Subscribe(1, (("a", 1),))) + encode(Publish("a", b"0"))
    assert (counters.messages_in, counters.messages_out) == (2, 2)
    assert counters.octets_in == len(sent + encode(Publish("a", b"1", 1, packet_id=1)))


def test_losing_a_connection_leaves_nothing_behind(broker: Broker) -> None:
    client = broker.client("me")
    client.subscribe(("a", 1), ("queue/q", 1))
    client.wire.lose()
    assert len(broker.hub.table) == 0
    assert (broker.hub.queues, broker.hub.clients, broker.sessions.live, broker.sessions.stored) == ({}, {}, {}, {})


@pytest.mark.rule("MQTT-065")
def test_a_client_id_belongs_to_the_user_who_has_it() -> None:
    broker = Broker(passwords={"anna": "secret", "otto": "secret"})
    mine = broker.client("door", clean=False, user="anna")
    for _ in range(2):
        thief = broker.wire()
        assert thief.ask(Connect("door", user_name="otto", password=b"secret")) == [
            Connack(session_present=False, return_code=2)
        ]
        assert thief.wire.closed
        thief.wire.lose()
        mine.wire.lose()
    broker.client("door", clean=False, user="anna", present=True)
