"""Topics on the hub's side of MicroMsg2: subscribers, patterns, filters."""

import pytest

from polywire.hub.message import Message
from polywire.protocols.micromsg.frames import Error
from polywire.protocols.micromsg.frames import Message as Frame
from tests.protocols.micromsg.talk import Talker, published
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


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
