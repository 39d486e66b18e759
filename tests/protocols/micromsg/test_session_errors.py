"""What the hub refuses on MicroMsg2, and how it says so."""

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.peer import Limits
from polywire.protocols.micromsg.frames import Command, Error, Extension, encode
from polywire.protocols.micromsg.frames import Message as Frame
from tests.protocols.micromsg.talk import Talker, heard
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


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
