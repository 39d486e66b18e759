"""Acks, windows and the end of a connection on the hub's side of MicroMsg2."""

from collections.abc import Callable

import pytest

from polywire.protocols.micromsg.frames import Command, Error, Extension
from polywire.protocols.micromsg.frames import Message as Frame
from polywire.protocols.micromsg.session import MicromsgSession
from tests.hub.links import contents
from tests.protocols.micromsg.talk import Talker
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


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
            (silent, "no data received within the idle timeout"),
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
        assert [message.body for message in contents(site.hub.queue("jobs"))] == [b"3"]

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
    assert [message.body for message in contents(site.hub.queue("jobs"))] == [b"3"]
