"""Queues on the hub's side of MicroMsg2."""

import pytest

from polywire.hub.message import Message
from polywire.protocols.micromsg.frames import Error
from tests.protocols.micromsg.talk import Talker, published
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


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
