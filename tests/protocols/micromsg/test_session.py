"""Messages on the hub's side: topics, queues, acks, windows, types, JSON, errors."""

from collections.abc import Callable

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.message import Date, Message
from polywire.hub.peer import Limits
from polywire.protocols.micromsg.frames import Command, Error, Extension, encode
from polywire.protocols.micromsg.frames import Message as Frame
from polywire.protocols.micromsg.session import MicromsgSession
from tests.hub.links import FakeLink, Recorder
from tests.protocols.micromsg.talk import Talker
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


def published(site: Site, message: Message) -> str | None:
    """Publish as a client of another protocol does."""
    link = FakeLink(site.loop)
    refused = site.hub.publish(message, site.hub.client(3, link.outbox))
    site.loop.turn()
    return refused


def heard(site: Site, pattern: str) -> Recorder:
    """A subscriber of another protocol."""
    link = FakeLink(site.loop)
    recorder = Recorder(pattern, link, 10_000)
    site.hub.subscribe(site.hub.client(3, link.outbox), pattern, recorder)
    return recorder


class TestTopics:
    @pytest.mark.rule("MICROMSG-42", "MICROMSG-75")
    def test_the_page_s_example_octet_for_octet(self, site: Site) -> None:
        talker = Talker(site, "json;pub-sub;batch-ack")
        talker.wire.feed(b"\x01\x2dsubscribe;destination=topic%2Frooms%2Fkitchen")
        assert talker.wire.taken() == b""
        other = Talker(site, "")
        other.send("topic/rooms/kitchen", b"21", "room:N1;")
        assert talker.wire.taken() == b"\0\0\x01\x13topic/rooms/kitchen\0\x08room:N1;\x0221"
        talker.wire.feed(b"\2\3\2\0\1")
        assert talker.wire.taken() == b""
        assert not talker.closed

    @pytest.mark.rule("MICROMSG-92")
    def test_a_topic_goes_to_all_its_subscribers_the_sender_included(self, site: Site) -> None:
        talkers = [Talker(site).subscribe("topic/a/b") for _ in range(3)]
        Talker(site).subscribe("topic/a/c")
        talkers[0].send("topic/a/b", b"1").send("topic/a/b", b"2")
        for talker in talkers:
            assert talker.frames() == [Frame(1, "topic/a/b", b"1"), Frame(2, "topic/a/b", b"2")]

    @pytest.mark.rule("MICROMSG-136")
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [("a/*", [b"ab"]), ("**", [b"a", b"ab", b"abc"]), ("a/**", [b"a", b"ab", b"abc"]), ("*/*/c", [b"abc"])],
    )
    def test_a_pattern_stands_for_its_topics(self, site: Site, pattern: str, expected: list[bytes]) -> None:
        talker = Talker(site).subscribe(f"topic/{pattern}")
        Talker(site).send("topic/a", b"a").send("topic/a/b", b"ab").send("topic/a/b/c", b"abc").send("a", b"queue")
        assert [payload for _, payload in talker.messages()] == expected

    @pytest.mark.rule("MICROMSG-76")
    def test_each_client_gets_what_its_own_filter_lets_through(self, site: Site) -> None:
        low = Talker(site).subscribe("topic/t", "room<N10")
        high = Talker(site).subscribe("topic/t", "room>=N10;name<Tkit")
        sender = Talker(site)
        sender.send("topic/t", b"1", "room:N1;").send("topic/t", b"2", "room:N12;name:Tkitchen;")
        sender.send("topic/t", b"3", "room:N12;").send("topic/t", b"4")
        assert low.messages() == [("topic/t", b"1")]
        assert high.messages() == [("topic/t", b"2")]

    @pytest.mark.rule("MICROMSG-181")
    def test_a_message_that_several_subscriptions_let_through_comes_once(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a", "n=N1").subscribe("topic/*", "n>N0").subscribe("topic/**")
        Talker(site).send("topic/a", b"1", "n:N1;").send("topic/a", b"2", "n:N2;").send("topic/a", b"3")
        assert [payload for _, payload in talker.messages()] == [b"1", b"2", b"3"]

    def test_two_topics_with_different_filters_are_not_mixed_up(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a", "n=N1").subscribe("topic/b", "n=N2")
        sender = Talker(site)
        for topic in ("topic/a", "topic/b"):
            sender.send(topic, b"1", "n:N1;").send(topic, b"2", "n:N2;")
        assert talker.messages() == [("topic/a", b"1"), ("topic/b", b"2")]

    def test_subscribing_again_replaces_the_filter(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a", "n=N1").subscribe("topic/a")
        Talker(site).send("topic/a", b"2", "n:N2;")
        assert talker.messages() == [("topic/a", b"2")]

    @pytest.mark.rule("MICROMSG-185")
    def test_a_late_subscriber_gets_the_retained_messages_its_filter_lets_through(self, site: Site) -> None:
        published(site, Message("a/1", b"one", headers=(("n", 1),), retain=True))
        published(site, Message("a/2", b"two", headers=(("n", 2),), retain=True))
        talker = Talker(site).subscribe("topic/a/*", "n=N2")
        assert talker.messages() == [("topic/a/2", b"two")]
        talker.subscribe("topic/a/2")
        assert talker.messages() == [("topic/a/2", b"two")]

    @pytest.mark.rule("MICROMSG-134")
    def test_after_unsubscribing_nothing_comes_and_a_second_time_is_told(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a").unsubscribe("topic/a")
        Talker(site).send("topic/a", b"1")
        assert talker.frames() == []
        talker.unsubscribe("topic/a").unsubscribe("jobs")
        assert talker.frames() == [
            Error("no-such-destination", (("destination", "topic/a"),)),
            Error("no-such-destination", (("destination", "jobs"),)),
        ]
        assert not talker.closed
        assert talker.wire.client.counters.faults == {"MICROMSG-134": 2}

    def test_a_connection_that_ends_leaves_nothing_behind(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a").subscribe("topic/b", "n=N1").subscribe("jobs")
        talker.wire.lose()
        assert not site.hub.clients
        assert not site.hub.queues
        assert len(site.hub.table) == 0
        assert site.hub.demand.count("a") == 0

    def test_a_message_of_several_frames_arrives_as_one_and_leaves_split(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a")
        sender = Talker(site)
        sender.wire.feed(b"\x10\0\1\7topic/a\0\4n:1;\1a", b"\x10\0\1\7topic/a\0\0\1b", b"\0\0\1\7topic/a\0\0\1c")
        assert talker.frames() == [Frame(1, "topic/a", b"abc", "n:T1;")]
        body = bytes(3 * 1024 * 1024 + 1)
        sender.sequence = 1
        sender.send("topic/a", body)
        octets = talker.wire.taken()
        assert octets[0] == 16 | 8
        assert talker.decoder.feed(octets) == [Frame(2, "topic/a", body)]


class TestQueues:
    @pytest.mark.rule("MICROMSG-93", "MICROMSG-140")
    def test_a_queue_gives_each_message_in_order_to_one_receiver(self, site: Site) -> None:
        Talker(site).send("jobs", b"1").send("jobs", b"2").send("jobs", b"3")
        one = Talker(site).subscribe("jobs")
        assert one.messages() == [("jobs", b"1"), ("jobs", b"2"), ("jobs", b"3")]
        other = Talker(site).subscribe("jobs")
        Talker(site).send("jobs", b"4").send("jobs", b"5")
        assert sorted(one.messages() + other.messages()) == [("jobs", b"4"), ("jobs", b"5")]

    def test_other_protocols_reach_it_under_queue_and_so_does_this_one(self, site: Site) -> None:
        published(site, Message("queue/jobs", b"1"))
        assert Talker(site).subscribe("jobs").messages() == [("jobs", b"1")]
        Talker(site).send("queue/work", b"2")
        assert Talker(site).subscribe("queue/work").messages() == [("queue/work", b"2")]
        assert "work" in site.hub.queues

    @pytest.mark.rule("MICROMSG-139")
    def test_what_was_not_acknowledged_is_delivered_again_in_its_place(self, site: Site) -> None:
        first = Talker(site, "pub-sub;batch-ack:max-count=3").subscribe("jobs")
        sender = Talker(site)
        for body in (b"1", b"2", b"3", b"4", b"5"):
            sender.send("jobs", body)
        assert [payload for _, payload in first.messages()] == [b"1", b"2", b"3"]
        first.ack(1)
        assert first.messages() == [("jobs", b"4")]
        second = Talker(site, "pub-sub;batch-ack:max-count=10").subscribe("jobs")
        first.wire.lose()
        assert [payload for _, payload in second.messages()] == [b"2", b"3", b"4", b"5"]

    @pytest.mark.rule("MICROMSG-183")
    def test_without_acks_a_message_is_taken_once_it_is_written(self, site: Site) -> None:
        first = Talker(site).subscribe("jobs")
        Talker(site).send("jobs", b"1")
        first.wire.lose()
        assert Talker(site).subscribe("jobs").messages() == []

    def test_a_long_queue_is_taken_without_acks_at_once(self, site: Site) -> None:
        for number in range(20_000):
            published(site, Message("queue/jobs", b"%d" % number))
        talker = Talker(site).subscribe("jobs")
        assert [payload for _, payload in talker.messages()] == [b"%d" % number for number in range(20_000)]

    def test_a_reader_that_is_stuck_gets_no_more_than_its_outbox_holds(self, site: Site) -> None:
        talker = Talker(site, cap=4096).subscribe("jobs")
        talker.wire.stall_next = True
        sender = Talker(site)
        for _ in range(20):
            sender.send("jobs", bytes(1000))
        assert 0 < site.hub.queue("jobs").waiting() < 20
        got = len(talker.messages())
        talker.wire.stall_next = False
        talker.wire.outbox.drain()
        while more := talker.messages():
            got += len(more)
        assert got == 20
        assert site.hub.queue("jobs").waiting() == 0

    @pytest.mark.rule("MICROMSG-184")
    def test_whoever_unsubscribes_may_still_acknowledge_what_it_has(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;batch-ack:max-count=2").subscribe("jobs")
        Talker(site).send("jobs", b"1").send("jobs", b"2").send("jobs", b"3")
        assert len(talker.messages()) == 2
        talker.unsubscribe("jobs")
        assert len(site.hub.queue("jobs")) == 3
        assert talker.ack(2).frames() == []
        assert site.hub.queue("jobs").consumers() == 0
        assert Talker(site).subscribe("jobs").messages() == [("jobs", b"3")]
        assert len(site.hub.queue("jobs")) == 0

    def test_a_queue_s_message_in_line_returns_when_its_consumer_unsubscribes(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;ack").subscribe("topic/a").subscribe("jobs")
        Talker(site).send("topic/a", b"t").send("jobs", b"1")
        assert talker.messages() == [("topic/a", b"t")]
        talker.unsubscribe("jobs")
        assert Talker(site).subscribe("jobs").messages() == [("jobs", b"1")]
        assert talker.ack(1, "ack").frames() == []

    def test_subscribing_again_before_the_last_ack_stays_a_consumer(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;batch-ack:max-count=2").subscribe("jobs")
        sender = Talker(site).send("jobs", b"1")
        talker.unsubscribe("jobs").subscribe("jobs").ack(1)
        sender.send("jobs", b"2")
        assert [payload for _, payload in talker.messages()] == [b"1", b"2"]

    @pytest.mark.rule("MICROMSG-182")
    def test_a_filter_leaves_the_other_messages_to_others(self, site: Site) -> None:
        picky = Talker(site).subscribe("jobs", "n=N1")
        sender = Talker(site)
        for number in (2, 1, 2, 1):
            sender.send("jobs", b"%d" % number, f"n:N{number};")
        assert [payload for _, payload in picky.messages()] == [b"1", b"1"]
        assert [payload for _, payload in Talker(site).subscribe("jobs").messages()] == [b"2", b"2"]

    def test_topics_and_queues_share_a_closed_window_fairly(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;ack").subscribe("topic/a").subscribe("jobs")
        sender = Talker(site)
        for number in range(3):
            sender.send("topic/a", b"t%d" % number).send("jobs", b"q%d" % number)
        got = []
        for sequence in range(1, 7):
            ((_, payload),) = talker.messages()
            got.append(payload)
            talker.ack(sequence, "ack")
        assert sorted(got) == [b"q0", b"q1", b"q2", b"t0", b"t1", b"t2"]
        assert got.index(b"q0") < got.index(b"t2")

    def test_several_queues_take_turns_at_a_narrow_window(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;ack").subscribe("a").subscribe("b").subscribe("c")
        sender = Talker(site)
        for queue in ("a", "b", "c"):
            for number in range(3):
                sender.send(queue, b"%d" % number)
        got = [destination for destination, _ in talker.messages()]
        for sequence in range(1, 9):
            got += [destination for destination, _ in talker.ack(sequence, "ack").messages()]
        assert {queue: got.count(queue) for queue in got} == {"a": 3, "b": 3, "c": 3}
        assert set(got[2:5]) == {"a", "b", "c"}

    @pytest.mark.rule("MICROMSG-177")
    def test_a_full_queue_is_told_and_the_window_goes_on(self, site: Site) -> None:
        site.hub.queue_messages = 1
        talker = Talker(site, "ack")
        talker.send("jobs", b"1").send("jobs", b"2")
        named = (("destination", "jobs"), ("sequence", "2"), ("reason", "the queue is full"))
        assert talker.frames() == [talker.acked(1, "ack"), Error("forbidden", named), talker.acked(2, "ack")]


class TestAcks:
    @pytest.mark.rule("MICROMSG-129")
    def test_a_message_is_acknowledged_once_it_is_safe(self, site: Site) -> None:
        waiting: list[Callable[[], None]] = []
        site.hub.when_safe = lambda safe, _failed: waiting.append(safe)
        talker = Talker(site, "batch-ack")
        talker.send("jobs", b"1").send("jobs", b"2")
        assert talker.frames() == []
        for safe in waiting:
            safe()
        assert talker.frames()[-1] == Extension(1, b"\x00\x02")

    def test_without_a_journal_a_message_is_acknowledged_at_once_and_many_together(self, site: Site) -> None:
        talker = Talker(site, "batch-ack:max-count=10")
        talker.tell(*[Frame(number, "topic/a", b"") for number in (1, 2, 3)])
        assert talker.frames() == [talker.acked(3)]

    def test_the_eleventh_message_without_an_ack_between_is_too_many(self, site: Site) -> None:
        talker = Talker(site, "batch-ack")
        talker.tell(*[Frame(number, "topic/a", b"") for number in range(1, 12)])
        ack, error = talker.frames()
        assert ack == talker.acked(10)
        assert isinstance(error, Error)
        assert error.name == "window-exceeded"
        assert talker.closed
        assert talker.wire.client.counters.messages_in == 10

    def test_numbers_go_on_behind_65535_both_ways(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;batch-ack:max-count=1000").subscribe("topic/a")
        number = 0
        for _ in range(66):
            numbers = [(number + step) % 65535 + 1 for step in range(1000)]
            number = numbers[-1]
            talker.tell(*[Frame(each, "topic/a", b"") for each in numbers])
            *messages, ack = talker.frames()
            assert [frame.sequence for frame in messages if isinstance(frame, Frame)] == numbers
            assert ack == talker.acked(number)
            talker.ack(number)
        assert not talker.closed

    @pytest.mark.rule("MICROMSG-137")
    def test_beyond_the_window_messages_wait_in_order_within_the_cap(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;batch-ack:max-count=2", cap=10_000).subscribe("topic/a")
        sender = Talker(site)
        for number in range(40):
            sender.send("topic/a", b"%02d" % number + bytes(1000))
        got = [payload[:2] for _, payload in talker.messages()]
        assert got == [b"00", b"01"]
        dropped = talker.wire.outbox.dropped
        assert 18 <= dropped <= 32
        assert talker.wire.outbox.dropped_by_channel == {"a": dropped}
        assert talker.wire.client.counters.dropped == {"slow-reader": dropped}
        while more := [payload[:2] for _, payload in talker.ack(len(got)).messages()]:
            got += more
        assert got == [b"%02d" % number for number in range(40 - dropped)]
        sender.send("topic/a", b"on")
        assert talker.messages() == [("topic/a", b"on")]

    def test_what_waits_is_written_only_as_the_outbox_empties(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;batch-ack:max-count=8", cap=4000).subscribe("topic/a")
        sender = Talker(site)
        for _ in range(10):
            sender.send("topic/a", bytes(1000))
        assert len(talker.messages()) == 8
        talker.wire.stall_next = True
        talker.ack(8)
        assert talker.wire.outbox.size() <= 4000 + 1100
        talker.wire.stall_next = False
        talker.wire.outbox.drain()
        assert len(talker.messages()) == 2

    @pytest.mark.parametrize("number", [0, 2, 65535])
    def test_an_ack_of_what_is_not_pending_ends_the_connection(self, site: Site, number: int) -> None:
        talker = Talker(site, "pub-sub;batch-ack").subscribe("topic/a")
        Talker(site).send("topic/a", b"1")
        talker.frames()
        (error,) = talker.ack(number).frames()
        assert isinstance(error, Error)
        assert error.name == "bad-ack"
        assert talker.closed

    def test_a_dropped_message_leaves_no_gap_in_the_numbers(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;dotnet", cap=2000).subscribe("topic/a")
        talker.wire.stall_next = True
        sender = Talker(site, "dotnet")
        for number in range(12):
            sender.tell(Extension(1, b"T" if number % 2 else b""))
            sender.send("topic/a", bytes(600))
        site.clock.advance(1)
        sender.send("topic/a", bytes(600))
        assert talker.wire.outbox.dropped > 0
        talker.wire.stall_next = False
        talker.wire.outbox.drain()
        sender.tell(Extension(1, b""))
        sender.send("topic/a", b"untyped")
        frames = talker.frames()
        messages = [frame for frame in frames if isinstance(frame, Frame)]
        assert [frame.sequence for frame in messages] == list(range(1, len(messages) + 1))
        assert frames[-1] == messages[-1]
        types = [frame for frame in frames if isinstance(frame, Extension)]
        assert messages[-1].payload == b"untyped"
        assert types[-1].payload == b""


class TestTypes:
    @pytest.mark.rule("MICROMSG-149")
    def test_the_type_is_a_header_elsewhere_and_sticks(self, site: Site) -> None:
        recorder = heard(site, "a")
        sender = Talker(site, "dotnet")
        sender.tell(Extension(1, b"Shop.Order, Shop")).send("topic/a", b"1").send("topic/a", b"2")
        sender.tell(Extension(1, b"")).send("topic/a", b"3")
        assert [message.headers for message in recorder.got] == [
            (("dotnet-type", "Shop.Order, Shop"),),
            (("dotnet-type", "Shop.Order, Shop"),),
            (),
        ]

    def test_a_header_becomes_the_type_and_an_empty_one_is_told(self, site: Site) -> None:
        talker = Talker(site, "dotnet;pub-sub").subscribe("topic/a")
        published(site, Message("a", b"0"))
        published(site, Message("a", b"1", headers=(("dotnet-type", "X"), ("n", 1))))
        published(site, Message("a", b"2"))
        assert talker.frames() == [
            Frame(1, "topic/a", b"0"),
            Extension(1, b"X"),
            Frame(2, "topic/a", b"1", "n:N1;"),
            Extension(1, b""),
            Frame(3, "topic/a", b"2"),
        ]

    def test_without_dotnet_the_type_is_a_property(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a")
        Talker(site, "dotnet").tell(Extension(1, b"X")).send("topic/a", b"1")
        assert talker.frames() == [Frame(1, "topic/a", b"1", "dotnet-type:TX;")]

    def test_a_queue_s_message_has_its_type_too(self, site: Site) -> None:
        talker = Talker(site, "dotnet;pub-sub").subscribe("jobs")
        published(site, Message("queue/jobs", b"1", headers=(("dotnet-type", "X"),)))
        assert talker.frames() == [Extension(1, b"X"), Frame(1, "jobs", b"1")]


class TestHeaders:
    @pytest.mark.rule("MICROMSG-179")
    def test_properties_are_headers_with_their_types(self, site: Site) -> None:
        recorder = heard(site, "a")
        text = "room:N12;share:N1.5;at:D1413198000.5;name:Ta%20b;first_name:jonas;content-type:Ttext%2Fplain;"
        Talker(site).send("topic/a", b"1", text)
        (message,) = recorder.got
        assert message.content_type == "text/plain"
        assert message.headers == (
            ("room", 12),
            ("share", 1.5),
            ("at", Date(1413198000.5)),
            ("name", "a b"),
            ("first_name", "jonas"),
        )

    @pytest.mark.rule("MICROMSG-179")
    def test_headers_are_properties_and_what_can_not_be_one_stays_behind(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a")
        headers = (
            ("X.Name", "é"),
            ("n", 1 << 70),
            ("x", float("nan")),
            ("at", Date(1e300)),
            ("then", Date(1413198000.25)),
            ("half", 0.5),
            ("bad", "\ud800"),
            ("", "nameless"),
            ("much", "x" * 65530),
            ("last", 1),
        )
        published(site, Message("a", b"1", "text/plain", headers, (b"attachment",)))
        text = "x-name:T%C3%A9;then:D1413198000.25;half:N0.5;last:N1;content-type:Ttext%2Fplain;"
        assert talker.frames() == [Frame(1, "topic/a", b"1", text)]

    def test_a_topic_too_long_for_a_destination_is_dropped_and_counted(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/**")
        published(site, Message("a" * 250, b"1"))
        assert talker.frames() == []
        assert talker.wire.client.counters.dropped == {"unencodable": 1}

    def test_a_message_is_encoded_once_for_all_connections_of_a_form(self, site: Site) -> None:
        talkers = [Talker(site).subscribe("topic/a") for _ in range(3)]
        published(site, Message("other", b""))
        message = Message("a", b"1")
        published(site, message)
        assert list(message.encoded) == [16]
        assert [talker.messages() for talker in talkers] == [[("topic/a", b"1")]] * 3


class TestJson:
    def test_what_is_not_json_ends_the_connection_that_agreed_on_it(self, site: Site) -> None:
        recorder = heard(site, "a")
        talker = Talker(site, "json")
        talker.send("topic/a", b'{"a": 1}').send("topic/a", b"{a: 1}")
        (error,) = talker.frames()
        assert isinstance(error, Error)
        assert error.name == "bad-frame"
        assert talker.closed
        assert [(message.body, message.content_type) for message in recorder.got] == [(b'{"a": 1}', "application/json")]

    @pytest.mark.rule("MICROMSG-180")
    def test_what_others_publish_that_is_not_json_is_dropped_and_counted(self, site: Site) -> None:
        talker = Talker(site, "json;pub-sub").subscribe("topic/a")
        published(site, Message("a", b"no"))
        published(site, Message("a", b"[1]", "application/json"))
        assert talker.frames() == [Frame(1, "topic/a", b"[1]")]
        assert talker.wire.client.counters.dropped == {"not-json": 1}

    @pytest.mark.rule("MICROMSG-180")
    def test_a_queue_keeps_what_is_not_json_for_those_who_take_it(self, site: Site) -> None:
        talker = Talker(site, "json;pub-sub").subscribe("jobs")
        published(site, Message("queue/jobs", b"no"))
        published(site, Message("queue/jobs", b"[1]"))
        assert talker.messages() == [("jobs", b"[1]")]
        assert Talker(site).subscribe("jobs").messages() == [("jobs", b"no")]


class TestErrors:
    @pytest.mark.parametrize(
        "destination",
        ["$/x", "topic/$/x", "topic/$", "topic/", "", "topic/a/*", "topic/**", "topic/queue/a", "queue/", "topic/a\0"],
    )
    @pytest.mark.rule("MICROMSG-177", "MICROMSG-188")
    def test_a_message_to_nowhere_is_told_and_acknowledged(self, site: Site, destination: str) -> None:
        talker = Talker(site, "ack").send(destination, b"1").send("topic/a", b"2")
        error, *acks = talker.frames()
        assert isinstance(error, Error)
        assert (error.name, error.value("destination"), error.value("sequence")) == (
            "no-such-destination",
            destination,
            "1",
        )
        assert acks == [talker.acked(1, "ack"), talker.acked(2, "ack")]
        assert talker.wire.client.counters.dropped == {"no-such-destination": 1}

    @pytest.mark.parametrize(
        "destination", ["topic/a/**/b", "topic/queue/a", "topic/$/x", "x" * 256, "topic/\0", "q\0"]
    )
    def test_a_subscription_to_nowhere_is_told(self, site: Site, destination: str) -> None:
        (error,) = Talker(site).subscribe(destination).frames()
        assert isinstance(error, Error)
        assert error.name == "no-such-destination"

    def test_after_errors_of_commands_the_connection_lives_on(self, site: Site) -> None:
        talker = Talker(site)
        talker.tell(Command("dance")).subscribe("topic/a", "n<=Tx").tell(Command("ping"))
        unknown, bad, pong = talker.frames()
        assert unknown == Error("unknown-command", (("name", "dance"),))
        assert isinstance(bad, Error)
        assert bad.name == "bad-filter"
        assert pong == Command("pong")
        assert talker.wire.client.counters.faults == {"MICROMSG-131": 1, "MICROMSG-173": 1}

    def test_without_pub_sub_there_is_no_subscribe(self, site: Site) -> None:
        assert Talker(site, "").subscribe("topic/a").frames() == [Error("unknown-command", (("name", "subscribe"),))]

    def test_a_subscribe_without_destination_ends_the_connection(self, site: Site) -> None:
        talker = Talker(site).tell(Command("subscribe"))
        assert [frame.name for frame in talker.frames() if isinstance(frame, Error)] == ["bad-frame"]
        assert talker.closed

    def test_a_number_out_of_turn_ends_the_connection(self, site: Site) -> None:
        talker = Talker(site).tell(Frame(1, "topic/a", b""), Frame(3, "topic/a", b""))
        assert [frame.name for frame in talker.frames() if isinstance(frame, Error)] == ["bad-frame"]
        assert talker.closed
        assert talker.wire.client.counters.faults == {"MICROMSG-124": 1}

    @pytest.mark.parametrize(
        "frame", [Extension(9, b""), Extension(1, b""), Extension(2, b"\0"), Extension(3, b"\xff")], ids=repr
    )
    def test_an_extension_frame_that_means_nothing_ends_the_connection(self, site: Site, frame: Extension) -> None:
        talker = Talker(site, "pub-sub;ack;dotnet").tell(frame)
        assert [frame.name for frame in talker.frames() if isinstance(frame, Error)] == ["bad-frame"]
        assert talker.closed

    def test_what_was_whole_before_a_violation_counts_and_nothing_after_it(self, site: Site) -> None:
        recorder = heard(site, "a")
        talker = Talker(site, "batch-ack")
        talker.wire.feed(encode(Frame(1, "topic/a", b"1")) + b"\xff" + encode(Frame(2, "topic/a", b"2")))
        ack, error = talker.frames()
        assert ack == talker.acked(1)
        assert isinstance(error, Error)
        assert error.name == "bad-frame"
        assert [message.body for message in recorder.got] == [b"1"]
        talker.wire.closed = False
        talker.wire.feed(encode(Frame(2, "topic/a", b"2")))
        assert len(recorder.got) == 1

    def test_a_message_over_the_limit_is_too_large(self, site: Site) -> None:
        talker = Talker(site, limits=Limits(message_size=100)).send("topic/a", bytes(100)).send("topic/a", bytes(101))
        (error,) = talker.frames()
        assert isinstance(error, Error)
        assert (error.name, error.value("limit")) == ("too-large", "100")
        assert talker.closed

    def test_an_error_from_the_client_ends_the_connection_or_not(self, site: Site) -> None:
        talker = Talker(site).tell(Error("forbidden"), Command("ping"))
        assert talker.frames() == [Command("pong")]
        talker.tell(Error("bad-ack"))
        assert talker.closed
        assert talker.frames() == []

    def test_one_subscription_too_many_is_refused_and_the_others_stay(self, site: Site) -> None:
        talker = Talker(site, limits=Limits(subscriptions=2)).subscribe("topic/a").subscribe("jobs")
        assert talker.subscribe("topic/a").frames() == []
        (error,) = talker.subscribe("topic/b").frames()
        assert isinstance(error, Error)
        assert (error.name, error.value("limit")) == ("forbidden", "2")
        Talker(site).send("topic/a", b"1").send("topic/b", b"2").send("jobs", b"3")
        assert talker.messages() == [("topic/a", b"1"), ("jobs", b"3")]

    def test_the_filters_of_a_connection_are_limited_together(self, site: Site) -> None:
        talker = Talker(site)
        long = "n=T" + "x" * 60_000
        for number in range(4):
            assert talker.subscribe(f"topic/{number}", long).frames() == []
        (error,) = talker.subscribe("topic/5", long).frames()
        assert isinstance(error, Error)
        assert error.name == "bad-filter"
        talker.unsubscribe("topic/0")
        assert talker.subscribe("topic/5", long).frames() == []


class TestAccess:
    @pytest.fixture
    def site(self) -> Site:
        rules = [
            AccessRule(["publish"], ["sensors/{user}/**", "queue/in"], user="anna"),
            AccessRule(["subscribe"], ["news/*", "queue/out"], user="anna"),
        ]
        return Site(passwords={"anna": "x"}, rules=AccessRules(rules))

    @pytest.mark.rule("MICROMSG-187")
    def test_what_no_rule_allows_is_forbidden(self, site: Site) -> None:
        talker = Talker(site, "x-auth:user=anna,password=x;pub-sub;batch-ack")
        talker.send("topic/sensors/anna/door").send("in").send("topic/sensors/otto/door").send("out")
        named = [(frame.name, frame.arguments) for frame in talker.frames() if isinstance(frame, Error)]
        assert named == [
            ("forbidden", (("destination", "topic/sensors/otto/door"), ("sequence", "3"))),
            ("forbidden", (("destination", "out"), ("sequence", "4"))),
        ]
        for destination in ("topic/news/*", "topic/news/1", "out"):
            assert talker.subscribe(destination).frames() == []
        for destination in ("topic/news/**", "topic/**", "in"):
            assert talker.subscribe(destination).frames() == [Error("forbidden", (("destination", destination),))]
        assert not talker.closed
        assert talker.wire.client.counters.dropped == {"forbidden": 5}


class TestDrain:
    def drain(self, talker: Talker) -> MicromsgSession:
        session = talker.wire.session
        assert isinstance(session, MicromsgSession)
        session.drain()
        return session

    def test_a_client_stays_until_goodbye_and_is_told(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a")
        session = self.drain(talker)
        assert not session.busy()
        Talker(site).send("topic/a", b"will")
        assert talker.messages() == [("topic/a", b"will")]
        session.goodbye()
        session.goodbye()
        assert talker.frames() == [Error("shutting-down")]
        assert talker.closed
        assert not session.busy()

    @pytest.mark.rule("MICROMSG-176")
    def test_who_is_silent_for_too_long_or_whose_login_has_expired_hears_why(self, site: Site) -> None:
        silent, expired = Talker(site), Talker(site)
        for talker, reason in (
            (silent, "nothing was heard of you for too long"),
            (expired, "the login has expired"),
        ):
            session = talker.wire.session
            assert isinstance(session, MicromsgSession)
            if talker is silent:
                session.timed_out()
            else:
                session.goodbye(expired=True)
            assert talker.frames() == [Error("shutting-down", (("reason", reason),))]
            assert talker.closed

    @pytest.mark.rule("MICROMSG-186")
    def test_a_client_with_a_queue_s_messages_may_acknowledge_them_first(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;batch-ack").subscribe("jobs")
        sender = Talker(site).send("jobs", b"1").send("jobs", b"2")
        talker.frames()
        session = self.drain(talker)
        sender.send("jobs", b"3")
        assert talker.frames() == []
        talker.tell(Command("ping"))
        assert talker.frames() == [Command("pong")]
        assert session.busy()
        talker.ack(2)
        assert not session.busy()
        assert talker.frames() == []
        talker.wire.lose()
        assert [message.body for message in site.hub.queue("jobs").contents()] == [b"3"]

    @pytest.mark.rule("MICROMSG-186")
    def test_new_work_meanwhile_is_refused(self, site: Site) -> None:
        subscribe = Command("subscribe", (("destination", "topic/a"),))
        for count, work in enumerate((Frame(1, "topic/a", b""), subscribe), 1):
            talker = Talker(site, "pub-sub;batch-ack").subscribe("jobs")
            Talker(site).send("jobs", b"1")
            talker.frames()
            self.drain(talker)
            talker.tell(work)
            assert talker.frames() == [Error("shutting-down")]
            assert talker.closed
            talker.wire.lose()
            assert len(site.hub.queue("jobs")) == count

    def test_what_waits_for_the_window_is_still_sent(self, site: Site) -> None:
        talker = Talker(site, "pub-sub;ack").subscribe("topic/a")
        Talker(site).send("topic/a", b"1").send("topic/a", b"2")
        session = self.drain(talker)
        assert talker.messages() == [("topic/a", b"1")]
        assert session.busy()
        assert talker.ack(1, "ack").frames() == [Frame(2, "topic/a", b"2")]
        assert not session.busy()


def test_a_connection_that_was_hung_up_on_gets_nothing_more(site: Site) -> None:
    talker = Talker(site, "pub-sub;ack").subscribe("topic/a").subscribe("jobs")
    sender = Talker(site).send("topic/a", b"1").send("topic/a", b"2").send("jobs", b"3")
    talker.tell(Frame(7, "topic/a", b""))
    talker.frames()
    assert talker.closed
    sender.send("topic/a", b"4")
    assert talker.wire.outbox.size() == 0
    talker.wire.lose()
    assert [message.body for message in site.hub.queue("jobs").contents()] == [b"3"]


def test_a_type_frame_wins_over_a_property_of_that_name(site: Site) -> None:
    recorder = heard(site, "a")
    Talker(site, "dotnet").tell(Extension(1, b"X")).send("topic/a", b"", "dotnet-type:TY;n:N1;")
    assert recorder.got[0].headers == (("n", 1), ("dotnet-type", "X"))
