"""A UMQ peer that publishes, subscribes and consumes queues on the hub."""

from collections.abc import Callable

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.message import Date, Message
from polywire.hub.outbox import PATIENCE
from polywire.hub.peer import Limits
from polywire.protocols.fmqp.frames import Publication, Subscription, encode
from polywire.protocols.fmqp.session import FmqpSession
from tests.protocols.umq.peers import UmqPeer
from tests.sessions import Site, Wire


@pytest.fixture
def site() -> Site:
    return Site()


def publish(site: Site, message: Message) -> None:
    """A message from some other protocol."""
    site.hub.publish(message, site.connect("fmqp", FmqpSession).client)


@pytest.mark.rule("UMQ-138")
def test_the_conversation_of_the_page(site: Site) -> None:
    peer, other = UmqPeer(site), UmqPeer(site)
    assert peer.say('C1:["subscribe","home/*/temperature",7]') == ["R1:null"]
    assert peer.say('C2:["publish","home/kitchen/temperature","21"]') == ["T7:21", "R2:null"]
    assert peer.say('A1:C3:["publish","home/door/picture",null]', b"\x89PNG") == ["R3:null"]
    assert peer.say('C4:["call","thermostat","set",{"room":"kitchen","to":22}]') == ["E4:6 No RPC server here"]
    assert peer.say('C5:["serve","lamp",5]') == ["R5:null"]
    assert other.say('C1:["call","lamp","toggle","kitchen"]') == []
    assert peer.hears() == ['B1:5:["toggle","kitchen"]']
    assert peer.say("R1:on") == []
    assert other.hears() == ["R1:on"]
    assert peer.say("U7:", "U7:") == ["D7:"]
    assert peer.say('C2:["publish","home/kitchen/temperature","21"]') == ["R2:null"]


def test_an_update_is_one_websocket_message_byte_for_byte(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","**","9A8Z"]')
    publish(site, Message("a", b" update1"))
    assert peer.wire.taken() == b"\x81\x0eT9A8Z: update1"
    publish(site, Message("a", b"x" * 300))
    assert peer.wire.taken() == b"\x81\x7e\x01\x32T9A8Z:" + b"x" * 300
    publish(site, Message("a", b"x" * 70000))
    assert peer.wire.taken() == b"\x81\x7f" + (70006).to_bytes(8, "big") + b"T9A8Z:" + b"x" * 70000


@pytest.mark.rule("UMQ-138")
@pytest.mark.parametrize("size", [0, 1, 118, 119, 120, 121, 122, 123, 124, 255, 256, 8191, 8192, 65529, 65536])
def test_every_size_of_text_arrives(site: Site, size: int) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a",7]')
    for body in (b"x" * size, b"y" * (size + 1), b"x" * size, "é".encode() * size):
        publish(site, Message("a", body))
        assert peer.hears() == [f"T7:{body.decode()}"]
    assert peer.wire.client.counters.messages_out == 4


@pytest.mark.parametrize("size", [1, 300, 9000])
def test_what_is_not_text_comes_as_an_attachment(site: Site, size: int) -> None:
    peer, other = UmqPeer(site), UmqPeer(site)
    for each in (peer, other):
        each.say('C1:["subscribe","a",7]')
    publish(site, Message("a", b"\xff" * size))
    assert peer.hears() == ["A1:T7:", b"\xff" * size]
    assert other.hears() == ["A1:T7:", b"\xff" * size]


def test_a_body_of_text_and_its_attachments_arrive_together(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a",7]')
    assert peer.say('A2:C2:["publish","a","see"]', b"one", b"two") == ["A2:T7:see", b"one", b"two", "R2:null"]
    assert peer.say('A2:C2:["publish","a",null]', b"\x00\xff", b"two") == ["A2:T7:", b"\x00\xff", b"two", "R2:null"]
    assert peer.say('A1:C2:["publish","a",null]', b"text") == ["A1:T7:", b"text", "R2:null"]


def test_a_publication_waits_for_its_attachments_and_delays_nothing_behind_it(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a",7]')
    assert peer.say('A1:C2:["publish","a",null]', 'C3:["publish","a","quick"]') == ["T7:quick", "R3:null"]
    assert peer.say(b"slow") == ["A1:T7:", b"slow", "R2:null"]


@pytest.mark.rule("UMQ-154")
def test_a_failed_attachment_fails_nothing_else(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a",7]', 'C2:["subscribe","a",8,{"envelope":true}]')
    said = peer.say('A3:C3:["publish","a",null]', 'A1:C4:["publish","b",null]', b"1", "-:disk full", b"3", b"good")
    attached: list[str | bytes] = [b"1", "-:disk full", b"3"]
    envelope = '{"channel":"a","headers":{},"body":null,"ts":0}'
    assert said == ["A3:T7:", *attached, f"A3:T8:{envelope}", *attached, "R3:null", "R4:null"]
    said = peer.say('A2:C5:["publish","a",""]', "-:", b"2")
    assert said[:4] == ["A3:T7:", b"", "-:", b"2"]
    assert peer.faults == {}


def fmqp_listener(site: Site) -> Wire:
    return site.connect("fmqp", FmqpSession).feed(encode(Subscription("a")))


@pytest.mark.rule("UMQ-155")
def test_a_body_that_failed_is_relayed_to_umq_and_lost_to_others(site: Site) -> None:
    peer, other = UmqPeer(site), fmqp_listener(site)
    peer.say('C1:["subscribe","a",7]', 'C2:["subscribe","a",8,{"envelope":true}]')
    said = peer.say('A2:C3:["publish","a",null,{"content_type":"image/png"}]', "-:Upstream download error", b"2")
    attached: list[str | bytes] = ["-:Upstream download error", b"2"]
    envelope = '{"channel":"a","headers":{},"body":null,"ts":0}'
    assert said == ["A2:T7:", *attached, f"A2:T8:{envelope}", *attached, "R3:null"]
    assert (other.taken(), peer.drops) == (b"", {"failed-body": 1})
    peer.say('A1:C4:["publish","a","x"]', "-:lost")
    assert other.taken() == encode(Publication("a", b"x"))
    for refused in ('["publish","queue/q",null]', '["publish","a",null,{"retain":true}]'):
        (answer,) = peer.say(f"A1:C5:{refused}", "-:lost")
        assert answer == "E5:11 Bad request: a queued or retained message needs a body, and its body failed"


@pytest.mark.rule("UMQ-154")
def test_failed_attachments_stay_with_what_is_queued_or_retained(site: Site) -> None:
    peer = UmqPeer(site)
    assert peer.say('A1:C1:["publish","queue/q","x"]', "-:lost") == ["R1:null"]
    assert peer.say('A1:C2:["publish","a","x",{"retain":true}]', "-:lost") == ["R2:null"]
    assert peer.say('C3:["subscribe","queue/q",7]') == ["R3:null", "A1:T7:x", "-:lost"]
    assert peer.say('C4:["subscribe","a",8]') == ["R4:null", "A1:T8:x", "-:lost"]


@pytest.mark.rule("UMQ-151")
def test_messages_that_wait_for_attachments_are_bounded_together(site: Site) -> None:
    peer = UmqPeer(site, limits=Limits(message_size=100))
    head = '["publish","a",null]'
    said = peer.say(f"A2:C1:{head}", b"x" * 60, f"A1:C2:{head}", b"x" * 41, b"fits")
    assert said == [
        "E1:9 Limit exceeded: messages that are waiting for attachments have more than 100 bytes",
        "R2:null",
    ]
    assert peer.say(*[f"A1:C{n}:{head}" for n in range(1, 7)]) == [
        "E6:9 Limit exceeded: messages that are waiting for attachments have more than 100 bytes"
    ]
    assert peer.say(*[b""] * 6) == [f"R{n}:null" for n in range(1, 6)]


@pytest.mark.rule("UMQ-132")
def test_a_message_that_matches_two_topic_ids_is_sent_on_both(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a/*",1]', 'C2:["subscribe","a/b",2]', 'C3:["subscribe","a/b",3]')
    publish(site, Message("a/b", b"x"))
    assert sorted(map(str, peer.hears())) == ["T1:x", "T2:x", "T3:x"]
    assert peer.say('C1:["unsubscribe",2]') == ["D2:", "R1:null"]
    publish(site, Message("a/b", b"y"))
    assert sorted(map(str, peer.hears())) == ["T1:y", "T3:y"]


def test_a_topic_id_in_use_is_refused_and_free_after_its_end(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a",7]')
    assert peer.say('C2:["subscribe","b","7"]') == ["E2:11 Bad request: topic id 7 is in use"]
    assert peer.say("U7:", 'C2:["subscribe","b",7]') == ["D7:", "R2:null"]
    publish(site, Message("a", b"x"))
    publish(site, Message("b", b"y"))
    assert peer.hears() == ["T7:y"]


@pytest.mark.rule("UMQ-143")
def test_what_is_not_allowed_is_refused_whatever_topic_id_it_names() -> None:
    site = Site(rules=AccessRules([AccessRule(["subscribe"], ["open"])]))
    peer = UmqPeer(site, limits=Limits(subscriptions=1))
    assert peer.say('C1:["subscribe","open",7]', 'C2:["subscribe","open",7]', 'C3:["subscribe","open",8]') == [
        "R1:null",
        "E2:11 Bad request: topic id 7 is in use",
        "E3:9 Limit exceeded: 1 topics are open",
    ]
    denied = peer.say('C4:["subscribe","secret",7]', 'C5:["subscribe","secret",8]', 'C6:["subscribe","queue/q",7]')
    assert [str(answer)[:15] for answer in denied] == [f"E{call}:12 Forbidden" for call in (4, 5, 6)]
    assert peer.wire.client.counters.denied == {"subscribe": 3}


def test_subscriptions_are_limited(site: Site) -> None:
    peer = UmqPeer(site, limits=Limits(subscriptions=1))
    assert peer.say('C1:["subscribe","a",1]', 'C2:["subscribe","b",2]', 'C3:["subscribe","queue/q",3]') == [
        "R1:null",
        "E2:9 Limit exceeded: 1 topics are open",
        "E3:9 Limit exceeded: 1 topics are open",
    ]
    assert site.hub.queues == {}


@pytest.mark.rule("UMQ-152")
def test_retained_messages_come_behind_the_answer_and_before_newer_ones(site: Site) -> None:
    peer = UmqPeer(site)
    assert peer.say('C1:["publish","a","kept",{"retain":true}]') == ["R1:null"]
    assert peer.say('C1:["subscribe","*",7]', 'C2:["publish","a","new"]') == ["R1:null", "T7:kept", "T7:new", "R2:null"]
    peer.say('C1:["publish","a","",{"retain":true}]')
    assert peer.say('C2:["subscribe","*",8]') == ["R2:null"]


def test_an_envelope_says_what_the_hub_knows(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","**",7,{"envelope":true}]')
    headers = (("place", "roof"), ("level", 3), ("seen", Date(0)), ("never", Date(1e300)))
    publish(site, Message("a/b", b"21", "text/plain", headers, time=1_500_000_000))
    assert peer.hears() == [
        (
            'T7:{"channel":"a/b","headers":{"place":"roof","level":3,"seen":"1970-01-01T00:00:00+00:00"},'
            '"body":"21","ts":1500}'
        )
    ]
    publish(site, Message("a", b'{"x": 1}', "application/json"))
    assert peer.hears() == ['T7:{"channel":"a","headers":{},"body":{"x": 1},"ts":0}']
    publish(site, Message("a", b"\xff"))
    assert peer.hears() == ['A1:T7:{"channel":"a","headers":{},"body":null,"ts":0}', b"\xff"]
    publish(site, Message("\0/x", b"to a pattern"))
    assert peer.hears() == ['T7:{"channel":"*/x","headers":{},"body":"to a pattern","ts":0}']
    publish(site, Message("\ud800", b"x"))
    assert peer.hears() == []
    assert peer.drops == {"unencodable": 1}


def test_what_a_publication_says_reaches_the_hub(site: Site) -> None:
    peer = UmqPeer(site)
    site.clock.now = 2.0
    peer.say('C1:["publish","a",{"x": 1},{"headers":{"Place":"roof","n":1.5},"retain":true}]')
    message = site.hub.retained.get("a")
    assert message is not None
    assert (message.body, message.content_type) == (b'{"x": 1}', "application/json")
    assert message.headers == (("place", "roof"), ("n", 1.5))
    assert (message.time, message.origin) == (2_000_000_000, peer.wire.client.number)
    peer.say('A1:C1:["publish","a",null,{"content_type":"image/png","retain":true}]', b"\x89")
    message = site.hub.retained.get("a")
    assert message is not None
    assert (message.body, message.content_type, message.attachments) == (b"\x89", "image/png", ())


@pytest.mark.rule("UMQ-153")
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ('["publish","a/*","x"]', "a message is published to one channel, not to a pattern"),
        ('["publish","a/**","x"]', "a message is published to one channel, not to a pattern"),
        ('["publish","a\\u0000","x"]', "channel: a channel's name must not contain NUL"),
        ('["subscribe","a\\u0000",1]', "pattern: a channel's name must not contain NUL"),
        ('["subscribe","**/a",1]', "'**' is only allowed at the end of a pattern; '*' is one level"),
        ('["subscribe","queue/*",1]', "a queue is consumed by its name, not by a pattern"),
        ('["unsubscribe",1]', "topic id 1 is not open"),
    ],
)
def test_what_can_not_be_a_channel_or_pattern_is_refused(site: Site, request_: str, reason: str) -> None:
    peer = UmqPeer(site)
    assert peer.say(f"C1:{request_}") == [f"E1:11 Bad request: {reason}"]
    assert sum(peer.faults.values()) == 1


@pytest.mark.rule("UMQ-143")
def test_what_the_hub_can_not_take_is_answered_in_its_words(site: Site) -> None:
    peer = UmqPeer(site)
    site.hub.queue_messages = 1
    site.hub.retained.limit = 0
    assert peer.say(
        'C1:["publish","$/signals/stop","x"]',
        'C2:["publish","queue/q","x"]',
        'C3:["publish","queue/q","x"]',
        'C4:["publish","a","x",{"retain":true}]',
    ) == [
        "E1:12 Forbidden: channels under $ are the hub's own",
        "R2:null",
        "E3:8 Temporarily unavailable: the queue is full",
        "E4:9 Limit exceeded: the limit on retained messages is reached",
    ]
    assert peer.drops == {"service-channel": 1, "queue-full": 1, "retained-full": 1}


def test_headers_are_limited(site: Site) -> None:
    peer = UmqPeer(site, limits=Limits(header_size=10))
    assert peer.say('C1:["publish","a","x",{"headers":{"name":"1234567"}}]') == [
        "E1:9 Limit exceeded: the headers have 11 characters, more than the 10 allowed"
    ]


@pytest.mark.rule("UMQ-144")
def test_a_publication_is_answered_when_it_is_safe(site: Site) -> None:
    waiting: list[Callable[[], None]] = []
    site.hub.when_safe = lambda safe, _failed: waiting.append(safe)
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a",7]')
    assert peer.say('C2:["publish","a","1"]', 'C3:["publish","a","2"]') == ["T7:1", "T7:2"]
    for safe in waiting:
        safe()
    assert peer.hears() == ["R2:null", "R3:null"]
    peer.say('C4:["publish","a","3"]')
    peer.wire.lose()
    waiting[-1]()


@pytest.mark.rule("UMQ-150")
def test_a_queue_gives_each_message_to_one_peer(site: Site) -> None:
    first, second, producer = UmqPeer(site), UmqPeer(site), UmqPeer(site)
    assert producer.say('C1:["publish","queue/jobs","0"]') == ["R1:null"]
    assert first.say('C1:["subscribe","queue/jobs",1]') == ["R1:null", "T1:0"]
    second.say('C1:["subscribe","queue/jobs",2,{"envelope":true}]')
    producer.say(*[f'C{n}:["publish","queue/jobs","{n}"]' for n in range(1, 5)])
    envelope = '{"channel":"queue/jobs","headers":{},"body":"%s","ts":0}'
    got = [*first.hears(), *second.hears()]
    assert sorted(map(str, got)) == sorted(["T1:1", "T1:3", "T2:" + envelope % 2, "T2:" + envelope % 4])
    assert first.say("U1:") == ["D1:"]
    producer.say('C1:["publish","queue/jobs","5"]')
    assert (first.hears(), len(second.hears())) == ([], 1)
    assert len(site.hub.queue("jobs")) == 0


@pytest.mark.rule("UMQ-150")
def test_a_long_queue_is_handed_out_without_deep_calls(site: Site) -> None:
    peer = UmqPeer(site)
    for _ in range(20_000):
        site.hub.queue("jobs").put(Message("queue/jobs", b"x"))
    assert peer.say('C1:["subscribe","queue/jobs",1]') == ["R1:null", *["T1:x"] * 20_000]


@pytest.mark.rule("UMQ-150")
def test_a_peer_that_does_not_read_gets_no_more_of_a_queue(site: Site) -> None:
    peer = UmqPeer(site, cap=1000)
    peer.say('C1:["subscribe","queue/jobs",1]')
    peer.wire.stall_next = True
    publish(site, Message("queue/jobs", b"x" * 500))
    peer.hears()
    for _ in range(5):
        publish(site, Message("queue/jobs", b"x" * 500))
    assert (peer.hears(), site.hub.queue("jobs").waiting()) == ([], 3)
    peer.wire.stall_next = False
    peer.wire.outbox.drain()
    assert len([*peer.hears(), *peer.hears()]) == 5


def test_updates_for_a_slow_reader_are_dropped_and_counted(site: Site) -> None:
    peer = UmqPeer(site, cap=1000)
    peer.say('C1:["subscribe","a",1]')
    peer.wire.stall_next = True
    for body in (b"x" * 500, b"\xff" * 9000):
        publish(site, Message("a", body))
        peer.hears()
    publish(site, Message("a", b"y" * 1000))
    site.clock.advance(PATIENCE)
    for body in (b"short", b"\xff", b"x" * 20_000):
        publish(site, Message("a", body))
    assert peer.drops == {"slow-reader": 4}
    assert peer.wire.outbox.dropped_by_channel == {"a": 4}


def test_a_message_of_a_queue_that_json_can_not_carry_is_counted_and_gone(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","queue/jobs",1,{"envelope":true}]')
    publish(site, Message("queue/jobs", b"x", headers=(("\ud800", 1),)))
    assert (peer.hears(), peer.drops, len(site.hub.queue("jobs"))) == ([], {"unencodable": 1}, 0)


def test_fmqp_and_umq_hear_each_other(site: Site) -> None:
    peer, wire = UmqPeer(site), site.connect("fmqp", FmqpSession)
    peer.say('C1:["subscribe","a/*",1]')
    wire.feed(encode(Subscription("b/*")), encode(Publication("a/x", b"from fmqp")) * 2)
    assert peer.hears() == ["T1:from fmqp", "T1:from fmqp"]
    wire.feed(encode(Publication("a/x", b"\xff")))
    assert peer.hears() == ["A1:T1:", b"\xff"]
    peer.say('C2:["publish","b/x","from umq",{"headers":{"n":1}}]', 'A1:C3:["publish","b/x",null]', b"\xff")
    assert wire.taken() == encode(Publication("b/x", b"from umq")) + encode(Publication("b/x", b"\xff"))
