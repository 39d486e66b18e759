"""FMQP on the hub: what clients of one hub see of each other."""

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.channels import from_stars
from polywire.hub.message import Message
from polywire.hub.peer import Limits, Refused
from polywire.hub.recorder import Recorder as HubRecorder
from polywire.hub.trie import name_cost
from polywire.journal.committer import BatchMaker
from polywire.protocols.fmqp.delivery import CLIENTS, MESSAGES, BrokerInfo
from polywire.protocols.fmqp.frames import (
    CACHE,
    DEBUG,
    FEEDBACK,
    LAST_WILL,
    Decoder,
    Publication,
    Subscription,
    Unsubscription,
    decode_count,
    encode,
)
from polywire.protocols.fmqp.session import FmqpSession
from polywire.wire.frame import Frame
from tests.hub.links import FakeLink, Recorder
from tests.hub.test_queues import Worker
from tests.sessions import Site, Wire


@pytest.fixture
def site() -> Site:
    return Site()


def join(site: Site, *frames: Frame, limits: Limits | None = None, local: bool = True) -> Wire:
    """A client that sends these frames at once."""
    wire = site.connect("fmqp", FmqpSession, limits=limits, local=local)
    return say(wire, *frames)


def say(wire: Wire, *frames: Frame) -> Wire:
    return wire.feed(b"".join(map(encode, frames)))


def heard(wire: Wire) -> list[Frame]:
    return Decoder().feed(wire.taken())


def other_protocol(site: Site, pattern: str, *, client: Wire | None = None) -> Recorder:
    """A subscriber that speaks something else."""
    wire = client or Wire(site, "mqtt", cap=1 << 20, local=True)
    recorder = Recorder(from_stars(pattern), FakeLink(site.loop), 10_000 + wire.client.number)
    site.hub.subscribe(wire.client, pattern, recorder)
    return recorder


@pytest.mark.rule("FMQP-22", "FMQP-02")
def test_a_message_goes_to_every_client_with_an_equivalent_subscription(site: Site) -> None:
    exact, wild, deaf = (join(site, Subscription(topic)) for topic in ("a/b", "a/*", "a/*/c"))
    publisher = join(site, Publication("a/b", b"x"))
    assert [heard(wire) for wire in (exact, wild, deaf, publisher)] == [
        [Publication("a/b", b"x")],
        [Publication("a/b", b"x")],
        [],
        [],
    ]


@pytest.mark.rule("FMQP-55", "FMQP-02")
def test_a_publisher_that_is_subscribed_gets_its_own_message(site: Site) -> None:
    # Subscribing and publishing arrive in one chunk: the subscription counts for what stands behind it.
    client = join(site, Publication("a", b"before"), Subscription("a"), Publication("a", b"after"))
    assert heard(client) == [Publication("a", b"after")]


def test_an_unsubscription_counts_for_what_stands_behind_it(site: Site) -> None:
    client = join(site, Subscription("a"), Publication("a", b"1"), Unsubscription("a"), Publication("a", b"2"))
    assert heard(client) == [Publication("a", b"1")]


@pytest.mark.rule("FMQP-56")
def test_a_client_with_several_matching_subscriptions_gets_a_message_once(site: Site) -> None:
    client = join(site, Subscription("a/b"), Subscription("a/*"), Subscription("*/*"))
    join(site, Publication("a/b", b"x"))
    assert heard(client) == [Publication("a/b", b"x")]


@pytest.mark.rule("FMQP-49")
def test_a_published_wildcard_reaches_what_it_is_equivalent_to(site: Site) -> None:
    one, two = join(site, Subscription("a/b")), join(site, Subscription("a/b/c"))
    join(site, Publication("a/*", b"x"))
    assert heard(one) == [Publication("a/*", b"x")]
    assert heard(two) == []


@pytest.mark.rule("FMQP-04")
def test_a_message_is_not_kept_without_the_cache_flag(site: Site) -> None:
    join(site, Publication("a", b"x"))
    assert heard(join(site, Subscription("a"))) == []


@pytest.mark.rule("FMQP-05", "FMQP-06", "FMQP-58")
def test_a_late_subscriber_gets_the_newest_cached_message_before_newer_ones(site: Site) -> None:
    publisher = join(site, Publication("a", b"1", CACHE), Publication("a", b"2", CACHE))
    late = join(site, Subscription("a"))
    say(publisher, Publication("a", b"3"))
    assert heard(late) == [Publication("a", b"2", CACHE), Publication("a", b"3")]


@pytest.mark.rule("FMQP-58", "FMQP-61")
def test_each_subscription_and_each_repetition_delivers_the_cached_message(site: Site) -> None:
    join(site, Publication("a", b"x", CACHE))
    watcher = join(site, Subscription("a", FEEDBACK))
    cached = Publication("a", b"x", CACHE)
    client = join(site, Subscription("a"), Subscription("*"), Subscription("a"))
    assert heard(client) == [cached, cached, cached]
    assert counts(watcher) == [("a", 1), ("*", 1), ("a", 1)]


@pytest.mark.rule("FMQP-57", "FMQP-09")
def test_an_empty_body_clears_the_cache_and_is_forwarded_to_nobody(site: Site) -> None:
    listener, other = join(site, Subscription("a")), other_protocol(site, "a")
    join(site, Publication("a", b"x", CACHE), Publication("a", b"", CACHE), Publication("a", b""))
    assert heard(listener) == [Publication("a", b"x", CACHE)]
    assert [message.body for message in other.got] == [b"x"]
    assert heard(join(site, Subscription("a"))) == []


@pytest.mark.rule("FMQP-60")
def test_a_message_cached_under_a_wildcard_is_kept_under_that_string(site: Site) -> None:
    join(site, Publication("a/*", b"x", CACHE))
    assert heard(join(site, Subscription("a/b"))) == [Publication("a/*", b"x", CACHE)]
    assert heard(join(site, Subscription("b/b"))) == []


@pytest.mark.rule("FMQP-07", "FMQP-63")
def test_a_last_will_is_published_when_its_client_is_gone_cache_flag_included(site: Site) -> None:
    listener = join(site, Subscription("a"))
    client = join(site, Publication("a", b"will", LAST_WILL | CACHE))
    assert heard(listener) == []
    client.lose()
    assert heard(listener) == [Publication("a", b"will", CACHE)]
    assert heard(join(site, Subscription("a"))) == [Publication("a", b"will", CACHE)]


@pytest.mark.rule("FMQP-62")
def test_every_last_will_is_published_in_order_but_for_empty_ones(site: Site) -> None:
    listener, other = join(site, Subscription("*")), other_protocol(site, "*")
    client = join(
        site,
        Publication("a", b"1", LAST_WILL),
        Publication("b", b"2", LAST_WILL),
        Publication("a", b"3", LAST_WILL),
        Publication("b", b"", LAST_WILL),
        Publication("a", b"3", LAST_WILL),
    )
    client.lose()
    assert heard(listener) == [Publication(*each) for each in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"3"))]
    assert [message.body for message in other.got] == [b"1", b"2", b"3", b"3"]


@pytest.mark.rule("FMQP-57", "FMQP-63")
def test_an_empty_last_will_with_the_cache_flag_clears_the_cache_when_its_client_is_gone(site: Site) -> None:
    listener, other = join(site, Subscription("a")), other_protocol(site, "a")
    client = join(site, Publication("a", b"x", CACHE), Publication("a", b"", CACHE | LAST_WILL))
    assert site.hub.retained.get("a") is not None
    client.lose()
    assert site.hub.retained.get("a") is None
    assert (len(heard(listener)), len(other.got)) == (1, 1)


WILL = name_cost("a")
"""What a last will takes besides its topic and body."""


@pytest.mark.rule("FMQP-76")
@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(wills=0), []),
        (Limits(wills=2), [b"123", b"45"]),
        (Limits(wills_size=WILL + 4), [b"123"]),
        (Limits(wills_size=2 * WILL + 6), [b"123", b"6"]),
        (Limits(wills_size=WILL + 3), [b"45"]),
    ],
)
def test_last_wills_past_a_limit_are_discarded_and_counted(site: Site, limits: Limits, kept: list[bytes]) -> None:
    listener = join(site, Subscription("a"))
    client = join(site, *(Publication("a", body, LAST_WILL) for body in (b"123", b"45", b"6")), limits=limits)
    assert client.client.counters.faults == {"FMQP-76": 3 - len(kept)}
    client.lose()
    assert heard(listener) == [Publication("a", body) for body in kept]
    assert (len(client.client.wills), client.client.wills.size) == (0, 0)


@pytest.mark.rule("FMQP-53")
def test_a_last_will_keeps_its_other_flags_and_they_count_for_its_size(site: Site) -> None:
    listener = join(site, Subscription("a"))
    client = join(site, Publication("a", b"xy", LAST_WILL | DEBUG))
    assert client.client.wills.size == WILL + 5
    client.lose()
    assert heard(listener) == [Publication("a", b"xy", DEBUG)]


@pytest.mark.rule("FMQP-77")
def test_a_signal_that_is_a_last_will_is_given_when_its_client_is_gone(site: Site) -> None:
    signals: list[str] = []
    site.hub.on_signal = signals.append
    far = join(site, Publication("$/signals/stop", b"x", LAST_WILL), local=False)
    near = join(site, Publication("$/signals/stop", b"", LAST_WILL), Publication("$/other", b"x", LAST_WILL))
    assert (signals, len(far.client.wills)) == ([], 0)
    assert near.client.counters.dropped == {"forbidden": 1, "service-channel": 1}
    far.lose()
    assert signals == []
    near.lose()
    assert signals == ["stop"]


def counts(wire: Wire) -> list[tuple[str, int | None]]:
    """The demand a watcher has heard of."""
    found: list[tuple[str, int | None]] = []
    for frame in heard(wire):
        assert isinstance(frame, Publication)
        assert frame.feedback
        found.append((frame.topic, decode_count(frame.body) if frame.body else None))
    return found


@pytest.mark.rule("FMQP-32", "FMQP-64", "FMQP-65")
def test_a_watcher_hears_how_many_subscribe_to_exactly_its_topic(site: Site) -> None:
    watcher = join(site, Subscription("a", FEEDBACK))
    one, two = join(site, Subscription("a")), join(site, Subscription("a"), Subscription("b"))
    say(one, Unsubscription("a"))
    two.lose()
    assert counts(watcher) == [("a", 1), ("a", 2), ("a", 1), ("a", None)]


@pytest.mark.rule("FMQP-33", "FMQP-66")
def test_a_late_watcher_learns_todays_demand_and_which_topics_are_deserted(site: Site) -> None:
    client = join(site, Subscription("a"), Subscription("b"))
    say(client, Unsubscription("b"))
    assert counts(join(site, Subscription("a", FEEDBACK))) == [("a", 1)]
    assert counts(join(site, Subscription("b", FEEDBACK), Subscription("b", FEEDBACK))) == [("b", None)] * 2
    assert counts(join(site, Subscription("c", FEEDBACK))) == []
    assert sorted(counts(join(site, Subscription("*", FEEDBACK))), key=str) == [("a", 1), ("b", None)]


@pytest.mark.rule("FMQP-78")
def test_subscribing_again_publishes_the_demand_again_and_debugging_again_does_not(site: Site) -> None:
    watcher = join(site, Subscription("a", FEEDBACK), Subscription("b", FEEDBACK))
    join(site, Subscription("a"), Subscription("a"), Subscription("b", DEBUG), Subscription("b", DEBUG))
    assert counts(watcher) == [("a", 1), ("a", 1)]


@pytest.mark.rule("FMQP-32", "FMQP-34")
def test_a_subscription_that_becomes_a_debugging_one_is_no_demand_any_more(site: Site) -> None:
    watcher = join(site, Subscription("a", FEEDBACK))
    join(site, Subscription("a"), Subscription("a", DEBUG), Subscription("a"))
    assert counts(watcher) == [("a", 1), ("a", None), ("a", 1)]


@pytest.mark.rule("FMQP-67")
def test_a_watcher_with_a_wildcard_hears_each_topic_under_its_own_name(site: Site) -> None:
    watcher = join(site, Subscription("a/*", FEEDBACK))
    join(site, Subscription("a/b"), Subscription("a/c"), Subscription("a/*"))
    assert counts(watcher) == [("a/b", 1), ("a/c", 1), ("a/*", 1)]


@pytest.mark.rule("FMQP-32", "FMQP-49")
def test_a_watcher_of_a_topic_hears_of_wildcards_that_are_equivalent_to_it(site: Site) -> None:
    watcher = join(site, Subscription("a/b", FEEDBACK))
    join(site, Subscription("a/*"))
    assert counts(watcher) == [("a/*", 1)]


@pytest.mark.rule("FMQP-34")
def test_a_debug_subscription_is_not_demand_but_gets_messages(site: Site) -> None:
    watcher = join(site, Subscription("a", FEEDBACK))
    debugger = join(site, Subscription("a", DEBUG))
    join(site, Publication("a", b"x"))
    assert counts(watcher) == []
    assert heard(debugger) == [Publication("a", b"x")]


@pytest.mark.rule("FMQP-68")
def test_subscribers_of_other_protocols_are_demand(site: Site) -> None:
    watcher = join(site, Subscription("a", FEEDBACK))
    other_protocol(site, "a")
    assert counts(watcher) == [("a", 1)]


def test_a_watcher_can_stop_watching(site: Site) -> None:
    watcher = join(site, Subscription("a", FEEDBACK), Unsubscription("a", FEEDBACK))
    join(site, Subscription("a"))
    assert counts(watcher) == []


@pytest.mark.rule("FMQP-31")
def test_a_clients_publication_to_a_feedback_topic_is_discarded(site: Site) -> None:
    watcher = join(site, Subscription("a", FEEDBACK), Subscription("a"))
    heard(watcher)
    publisher = join(site, Publication("a", b"x", FEEDBACK))
    assert heard(watcher) == []
    assert publisher.client.counters.faults == {"FMQP-31": 1}


@pytest.mark.rule("FMQP-31")
def test_the_journal_has_the_packet_of_a_publication_to_a_feedback_topic(site: Site) -> None:
    site.hub.recorder = HubRecorder(0, site.hub.clock, lambda: None)
    packet = encode(Publication("a", b"x", FEEDBACK))
    join(site).feed(packet)
    (columns,) = site.hub.recorder.take()
    rows = BatchMaker("here").make(columns).to_pylist()
    assert [(row["kind"], row["body"], row["size"]) for row in rows[1:]] == [("discard", packet, len(packet))]


@pytest.mark.rule("FMQP-24")
def test_what_a_client_publishes_to_a_service_topic_is_not_forwarded(site: Site) -> None:
    listener = join(site, Subscription("$/info/clients"), Subscription("$/own"))
    publisher = join(site, Publication("$/info/clients", b"x"), Publication("$/own", b"x", CACHE))
    assert heard(listener) == []
    assert publisher.client.counters.dropped == {"service-channel": 2}


@pytest.mark.rule("FMQP-51")
def test_a_published_wildcard_never_reaches_or_acts_as_a_service_topic(site: Site) -> None:
    signals: list[str] = []
    site.hub.on_signal = signals.append
    listener = join(site, Subscription("$/signals/stop"))
    join(site, Publication("*/signals/stop", b"x"), Publication("$/signals/*", b"x"))
    assert (signals, heard(listener)) == ([], [])


@pytest.mark.rule("FMQP-25", "FMQP-69")
@pytest.mark.parametrize("signal", ["stop", "terminate"])
def test_a_signal_from_this_machine_is_passed_on(site: Site, signal: str) -> None:
    signals: list[str] = []
    site.hub.on_signal = signals.append
    join(site, Publication(f"$/signals/{signal}", b"now"))
    assert signals == [signal]


@pytest.mark.rule("FMQP-69")
def test_a_signal_from_elsewhere_is_discarded_unless_a_rule_allows_it(site: Site) -> None:
    signals: list[str] = []
    site.hub.on_signal = signals.append
    far = join(site, Publication("$/signals/stop", b"now"), local=False)
    assert (signals, far.client.counters.dropped) == ([], {"forbidden": 1})
    site.rules = AccessRules([AccessRule(["signal"], ["$/signals/stop"])])
    join(site, Publication("$/signals/terminate", b"now"), Publication("$/signals/stop", b"now"), local=False)
    assert signals == ["stop"]


@pytest.mark.rule("FMQP-70")
def test_a_publication_under_dollar_from_another_protocol_is_discarded(site: Site) -> None:
    listener = join(site, Subscription("$/info/clients"))
    other = Wire(site, "mqtt", cap=1 << 20, local=True)
    assert site.hub.publish(Message("$/info/clients", b"x"), other.client) is Refused.SERVICE_CHANNEL
    assert heard(listener) == []


def told(wire: Wire, topic: str) -> list[int | None]:
    return [
        decode_count(frame.body) for frame in heard(wire) if isinstance(frame, Publication) and frame.topic == topic
    ]


@pytest.mark.rule("FMQP-27", "FMQP-71")
def test_the_number_of_clients_is_told_whenever_it_changes(site: Site) -> None:
    BrokerInfo(site.hub).start()
    listener = join(site, Subscription(CLIENTS))
    assert told(listener, CLIENTS) == [1]
    other = Wire(site, "mqtt", cap=1 << 20, local=True)
    site.hub.join(other.client)
    join(site).lose()
    assert told(listener, CLIENTS) == [2, 3, 2]


@pytest.mark.rule("FMQP-50")
def test_a_wildcard_subscription_receives_service_topics(site: Site) -> None:
    BrokerInfo(site.hub).start()
    assert told(join(site, Subscription("*/info/clients")), CLIENTS) == [1]


@pytest.mark.rule("FMQP-28")
def test_each_second_the_number_of_messages_received_in_it_is_told(site: Site) -> None:
    BrokerInfo(site.hub).start()
    listener = join(site, Subscription(MESSAGES))
    join(site, Publication("a", b"1"), Publication("b", b"2"), Publication("c", b"3", CACHE), Subscription("d"))
    client = join(
        site,
        Publication("a", b""),
        Publication("a", b"x", LAST_WILL),
        Publication("a", b"x", FEEDBACK),
        Publication("$/other", b"x"),
    )
    client.feed(b"\x00\x01\x00\x00\x00\x01/x\x80\x01\x00\x00\x00\x00/")  # without a valid topic
    site.clock.advance(1)
    client.lose()
    site.clock.advance(1)
    assert told(listener, MESSAGES) == [8, 0]


@pytest.mark.rule("FMQP-53")
def test_a_subscriber_gets_the_stripped_topic_and_the_flags_without_the_will(site: Site) -> None:
    listener = join(site, Subscription("a/b"))
    publisher = join(site)
    publisher.feed(b"\x17\x05\x00\x00\x00\x01/a/b/x")
    assert listener.taken() == b"\x14\x03\x00\x00\x00\x01a/bx"


@pytest.mark.rule("FMQP-72")
def test_an_empty_message_from_another_protocol_does_not_reach_fmqp(site: Site) -> None:
    listener, other = join(site, Subscription("a")), other_protocol(site, "a")
    site.hub.publish(Message("a", b""), Wire(site, "mqtt", cap=1 << 20, local=True).client)
    assert heard(listener) == []
    assert len(other.got) == 1


def test_a_name_only_other_protocols_have_arrives_under_that_name(site: Site) -> None:
    listener = join(site, Subscription("*/a"))
    site.hub.publish(Message("/a", b"x"), Wire(site, "mqtt", cap=1 << 20, local=True).client)
    assert listener.taken() == b"\x00\x02\x00\x00\x00\x01/ax"


def test_a_name_too_long_for_fmqp_is_left_out_and_counted(site: Site) -> None:
    listener = join(site, Subscription("*"))
    site.hub.publish(Message("x" * 256, b"x"), Wire(site, "mqtt", cap=1 << 20, local=True).client)
    assert heard(listener) == []
    assert listener.client.counters.dropped == {"unencodable": 1}


def test_other_protocols_get_what_runs_through(site: Site) -> None:
    other = other_protocol(site, "a")
    join(site, Publication("a", b"1"), Publication("a", b"2"))
    assert [(message.channel, message.body) for message in other.got] == [("a", b"1"), ("a", b"2")]


def test_a_queue_is_filled_and_emptied_by_its_channel(site: Site) -> None:
    join(site, Publication("queue/jobs", b"1"), Publication("queue/jobs", b"2"))
    worker = join(site, Subscription("queue/jobs"))
    assert heard(worker) == [Publication("queue/jobs", b"1"), Publication("queue/jobs", b"2")]
    say(worker, Unsubscription("queue/jobs"), Publication("queue/jobs", b"3"))
    other = Worker()
    site.hub.queue("jobs").attach(other)
    assert (other.bodies(), heard(worker)) == ([b"3"], [])


@pytest.mark.rule("FMQP-03")
def test_a_client_is_who_its_connection_says_and_a_stranger_is_turned_away() -> None:
    site = Site(passwords={"anna": "secret"})
    wire = site.connect("fmqp", FmqpSession)
    assert wire.closed
    assert site.hub.clients == {}


def test_what_is_not_allowed_is_discarded_and_counted() -> None:
    site = Site(rules=AccessRules([AccessRule(["publish", "subscribe"], ["own/**"])]))
    client = join(site, Subscription("other"), Subscription("own/*"), Publication("other", b"x"))
    say(client, Publication("own/a", b"y"), Publication("own/a", b"z", LAST_WILL), Publication("b", b"z", LAST_WILL))
    assert heard(client) == [Publication("own/a", b"y")]
    assert client.client.counters.dropped == {"forbidden": 3}
    assert [will.channel for will in client.client.wills.take()] == ["own/a"]


def test_more_subscriptions_than_allowed_are_discarded_and_counted(site: Site) -> None:
    client = join(site, *map(Subscription, "abc"), Subscription("a"), limits=Limits(subscriptions=2))
    assert client.client.counters.dropped == {"limit": 1}
    assert len(client.client.subscriptions) == 2


def test_a_watcher_takes_a_place_and_what_a_client_has_does_not_take_another(site: Site) -> None:
    client = join(site, Subscription("a"), Subscription("queue/q"), limits=Limits(subscriptions=2))
    say(client, Subscription("a", FEEDBACK), Subscription("queue/q", FEEDBACK))
    assert client.client.counters.dropped == {"limit": 2}
    say(client, Subscription("a"), Subscription("queue/q"))
    assert client.client.counters.dropped == {"limit": 2}
    say(client, Unsubscription("a"), Subscription("a", FEEDBACK), Subscription("a", FEEDBACK), Subscription("a"))
    assert client.client.counters.dropped == {"limit": 3}
    assert list(client.client.watchers) == ["a"]


def test_a_bad_packet_is_counted_and_the_connection_lives_on(site: Site) -> None:
    client = join(site, Subscription("a"))
    client.feed(b"\x00\x00\x00\x00\x00\x00" + encode(Publication("a", b"x")))
    assert heard(client) == [Publication("a", b"x")]
    assert client.client.counters.faults == {"FMQP-15": 1}


def test_a_slow_reader_loses_messages_and_they_are_counted_by_topic(site: Site) -> None:
    wire = site.connect("fmqp", FmqpSession, cap=20)
    wire.stall_next = True
    say(wire, Subscription("a"))
    publisher = join(site, Publication("a", b"first"))
    for _ in range(3):
        say(publisher, Publication("a", b"0123456789"))
    site.clock.advance(1)
    say(publisher, Publication("a", b"lost"), Publication("a", b"lost"))
    assert wire.outbox.dropped_by_channel["a"] >= 2


def test_a_draining_hub_takes_no_more_messages_from_fmqp(site: Site) -> None:
    listener = join(site, Subscription("a"))
    publisher = join(site)
    publisher.session.drain()  # type: ignore[attr-defined]
    say(publisher, Publication("a", b"x"))
    assert heard(listener) == []
    assert not publisher.closed
    assert not publisher.session.busy()  # type: ignore[attr-defined]


def test_goodbye_and_time_over_close_without_a_word(site: Site) -> None:
    last, idle = join(site), join(site)
    last.session.goodbye()  # type: ignore[attr-defined]
    idle.session.timed_out()  # type: ignore[attr-defined]
    for wire in (last, idle):
        assert wire.closed
        assert wire.taken() == b""


def test_a_lost_client_leaves_nothing_behind(site: Site) -> None:
    client = join(
        site, Subscription("a"), Subscription("a", FEEDBACK), Subscription("queue/q"), Publication("a", b"x", LAST_WILL)
    )
    client.taken()
    client.lose()
    assert (len(site.hub.table), site.hub.queues, site.hub.clients) == (0, {}, {})
    join(site, Subscription("a"))
    assert client.taken() == b""
