"""Queues: order, one receiver, acknowledgement, return to the front, bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.channels import from_stars
from polywire.hub.message import Message
from polywire.hub.queues import DELIVERIES, MAX_DELAY, Consumer, Delivery, Policy, Queue, Totals
from tests.hub.links import Clock, contents


class Worker(Consumer):
    """A consumer that takes up to ``window`` messages at once."""

    def __init__(self, window: int = 1) -> None:
        super().__init__()
        self.window = window
        self.got: list[Delivery] = []

    def room(self) -> bool:
        return len(self.pending) < self.window

    def take(self, delivery: Delivery) -> None:
        self.got.append(delivery)

    def bodies(self) -> list[bytes]:
        return [delivery.message.body for delivery in self.got]


def fill(queue: Queue, *bodies: bytes) -> None:
    for body in bodies:
        assert queue.put(Message("q", body)) is not None


def test_messages_wait_for_a_consumer_and_come_in_order() -> None:
    queue, worker = Queue("q"), Worker(10)
    fill(queue, b"1", b"2", b"3")
    queue.attach(worker)
    assert worker.bodies() == [b"1", b"2", b"3"]


def test_each_message_goes_to_one_consumer_and_they_take_turns() -> None:
    queue, one, other = Queue("q"), Worker(10), Worker(10)
    queue.attach(one)
    queue.attach(other)
    fill(queue, b"1", b"2", b"3", b"4")
    assert (one.bodies(), other.bodies()) == ([b"1", b"3"], [b"2", b"4"])


def test_a_consumer_without_room_is_passed_over_until_it_acknowledges() -> None:
    queue, worker = Queue("q"), Worker(1)
    queue.attach(worker)
    fill(queue, b"1", b"2")
    assert worker.bodies() == [b"1"]
    assert worker.got[0].ack()
    assert worker.bodies() == [b"1", b"2"]


def test_an_acknowledged_message_is_gone_and_can_not_be_acknowledged_twice() -> None:
    queue, worker = Queue("q"), Worker(10)
    queue.attach(worker)
    fill(queue, b"1")
    assert worker.got[0].ack()
    assert not worker.got[0].ack()
    assert (len(queue), queue.octets) == (0, 0)
    queue.detach(worker)
    assert queue.idle()


def test_what_a_lost_consumer_had_returns_to_the_front() -> None:
    queue, worker, next_one = Queue("q"), Worker(2), Worker(10)
    queue.attach(worker)
    fill(queue, b"1", b"2", b"3")
    queue.detach(worker)
    queue.attach(next_one)
    assert next_one.bodies() == [b"1", b"2", b"3"]
    assert [delivery.attempts for delivery in next_one.got] == [2, 2, 1]


def test_a_late_acknowledgement_does_not_speak_for_the_next_consumer() -> None:
    queue, denied, next_one = Queue("q"), Worker(1), Worker(1)
    queue.attach(denied)
    fill(queue, b"1")
    queue.suspend(denied)
    queue.attach(next_one)
    assert next_one.bodies() == [b"1"]
    assert not denied.got[0].ack()
    queue.give_back(denied.got[0])
    assert len(queue) == 1
    assert next_one.got == list(next_one.pending.values())
    assert next_one.got[0].ack()
    queue.detach(next_one)
    assert not queue.idle(), "a suspended consumer may come back to this very queue"
    queue.resume(denied)
    fill(queue, b"2")
    assert denied.bodies() == [b"1", b"2"]


def test_a_message_of_a_lost_consumer_can_not_be_acknowledged_by_it() -> None:
    queue, worker = Queue("q"), Worker(1)
    queue.attach(worker)
    fill(queue, b"1")
    queue.detach(worker)
    assert not worker.got[0].ack()
    assert queue.waiting() == 1


def test_a_full_queue_refuses_and_counts() -> None:
    queue = Queue("q", max_messages=2)
    fill(queue, b"1", b"2")
    assert queue.put(Message("q", b"3")) is None
    assert queue.refused == 1
    small = Queue("q", max_octets=10)
    assert small.put(Message("q", b"x" * 10)) is None


@given(st.lists(st.sampled_from(["put", "attach", "detach", "ack", "ack last"]), max_size=40), st.integers(1, 3))
def test_no_message_is_lost_doubled_or_overtaken_in_the_queue(steps: list[str], window: int) -> None:
    queue = Queue("q")
    workers: list[Worker] = []
    sent, done = 0, []
    for step in steps:
        if step == "put":
            fill(queue, str(sent).encode())
            sent += 1
        elif step == "attach":
            workers.append(Worker(window))
            queue.attach(workers[-1])
        elif step == "detach" and workers:
            queue.detach(workers.pop(0))
        elif step.startswith("ack"):
            pending = [delivery for worker in workers for delivery in worker.pending.values()]
            if pending:
                delivery = pending[-1 if step == "ack last" else 0]
                assert delivery.ack()
                done.append(int(delivery.message.body))
        left = [int(message.body) for message in contents(queue)]
        assert left == sorted(left)
        assert sorted(left + done) == list(range(sent))
        if any(worker.room() for worker in workers):
            assert queue.waiting() == 0
    waiting = [delivery.number for delivery in queue._waiting]
    assert waiting == sorted(waiting)


class Chooser(Worker):
    """A consumer of messages that begin with a letter."""

    def __init__(self, letter: bytes, window: int = 10) -> None:
        Consumer.__init__(self, choosy=True)
        self.window = window
        self.letter = letter
        self.got = []

    def wants(self, message: Message) -> bool:
        return message.body.startswith(self.letter)


class Swallower(Worker):
    """A consumer that acknowledges what it is given at once."""

    def take(self, delivery: Delivery) -> None:
        super().take(delivery)
        delivery.ack()


def test_a_message_nobody_present_wants_is_set_aside_and_keeps_its_place() -> None:
    queue, chooser = Queue("q"), Chooser(b"a")
    queue.attach(chooser)
    fill(queue, b"b1", b"a1", b"b2", b"a2")
    assert chooser.bodies() == [b"a1", b"a2"]
    assert (len(queue), queue.waiting()) == (4, 2)
    assert [message.body for message in contents(queue)] == [b"b1", b"a1", b"b2", b"a2"]
    queue.detach(chooser)
    worker = Worker(10)
    queue.attach(worker)
    assert worker.bodies() == [b"b1", b"a1", b"b2", b"a2"]


def test_a_message_that_is_wanted_waits_for_room_in_order() -> None:
    queue, chooser = Queue("q"), Chooser(b"a", window=1)
    queue.attach(chooser)
    fill(queue, b"a1", b"a2", b"b")
    assert chooser.bodies() == [b"a1"]
    chooser.letter = b""
    queue.reconsider()
    chooser.got[0].ack()
    chooser.got[1].ack()
    assert chooser.bodies() == [b"a1", b"a2", b"b"]


def test_a_long_queue_for_somebody_who_acknowledges_at_once_costs_no_stack() -> None:
    queue, worker = Queue("q"), Swallower()
    fill(queue, *[b"%d" % number for number in range(20_000)])
    queue.attach(worker)
    assert worker.bodies() == [b"%d" % number for number in range(20_000)]
    assert len(queue) == 0


def test_a_message_given_back_goes_to_another_in_its_old_place() -> None:
    queue, one = Queue("q"), Worker(2)
    queue.attach(one)
    fill(queue, b"1", b"2", b"3")
    one.window = 0
    queue.give_back(one.got[1])
    assert list(one.pending) == [0]
    other = Worker(10)
    queue.attach(other)
    assert other.bodies() == [b"2", b"3"]
    assert one.got[0].ack()
    queue.give_back(one.got[0])  # acknowledged: there is nothing to give back
    assert other.bodies() == [b"2", b"3"]


def test_a_stopped_queue_takes_messages_and_acknowledgements_and_hands_out_nothing() -> None:
    queue, worker = Queue("q"), Worker(1)
    queue.attach(worker)
    fill(queue, b"1", b"2")
    queue.stopped = True
    assert worker.got[0].ack()
    fill(queue, b"3")
    queue.reconsider()
    assert worker.bodies() == [b"1"]
    assert queue.waiting() == 2


def test_a_rejected_message_returns_to_its_old_place_and_counts_its_deliveries() -> None:
    queue, worker = Queue("q"), Worker(2)
    queue.attach(worker)
    fill(queue, b"1", b"2", b"3", b"4")
    first, second = worker.got
    assert second.nack()
    assert first.nack(reason="not now")
    assert not first.nack()
    assert not first.ack()
    assert worker.bodies() == [b"1", b"2", b"2", b"1"]
    assert [delivery.attempts for delivery in worker.got] == [1, 1, 2, 2]
    assert (queue.totals.nacked, queue.totals.redelivered, len(queue)) == (2, 2, 4)


def test_the_delivery_count_is_a_header_from_the_second_time_on_and_nobody_else_sets_it() -> None:
    queue, worker = Queue("q"), Worker(1)
    queue.attach(worker)
    queue.put(Message("q", b"1", headers=((DELIVERIES, 7), ("k", "v"))))
    assert worker.got[0].outgoing().headers == (("k", "v"),)
    worker.got[0].nack()
    assert worker.got[1].outgoing().headers == (("k", "v"), (DELIVERIES, 2))
    assert worker.got[1].message.headers == ((DELIVERIES, 7), ("k", "v"))


def test_a_message_rejected_with_a_delay_waits_and_keeps_nobody_waiting() -> None:
    clock = Clock()
    queue, worker = Queue("q", later=clock.later), Worker(1)
    queue.attach(worker)
    fill(queue, b"1", b"2", b"3")
    worker.got[0].nack(5.0)
    worker.got[1].ack()
    assert worker.bodies() == [b"1", b"2", b"3"]
    assert (queue.waiting(), len(queue), queue.idle()) == (1, 2, False)
    assert [message.body for message in contents(queue)] == [b"1", b"3"]
    clock.advance(5.0)
    worker.got[2].ack()
    assert worker.bodies() == [b"1", b"2", b"3", b"1"]


def test_a_delay_has_an_end() -> None:
    clock = Clock()
    queue, worker = Queue("q", later=clock.later), Worker(1)
    queue.attach(worker)
    fill(queue, b"1")
    worker.got[0].nack(1e300)
    clock.advance(MAX_DELAY)
    assert len(worker.got) == 2


def test_what_is_delivered_too_often_is_given_up_or_stays_where_it_can_not_be_placed() -> None:
    given_up: list[tuple[bytes, int, str]] = []
    room = False

    def dead(_: Queue, delivery: Delivery, reason: str) -> bool:
        given_up.append((delivery.message.body, delivery.attempts, reason))
        return room

    queue, worker = Queue("q"), Worker(1)
    queue.policy = Policy((from_stars("*"),), 2, "dead")
    queue.on_dead = dead
    queue.attach(worker)
    fill(queue, b"1")
    worker.got[0].nack(reason="first")
    worker.got[1].nack(reason="bad\nline")
    assert (given_up, len(queue)) == ([(b"1", 2, "bad line")], 1)
    room = True
    queue.detach(worker)
    assert given_up[1:] == [(b"1", 3, "unacknowledged")]
    assert (len(queue), queue.octets, queue.totals.size, queue.totals.dead_lettered) == (0, 0, 0, 1)


def test_deliveries_that_the_end_of_the_hub_cut_short_do_not_count() -> None:
    queue, worker = Queue("q"), Worker(1)
    returned: list[tuple[str, int, int, str]] = []
    queue.on_return = lambda *row: returned.append(row)
    queue.attach(worker)
    fill(queue, b"1")
    queue.stopped = True
    queue.detach(worker)
    queue.stopped = False
    queue.attach(worker)
    assert (worker.got[1].attempts, returned) == (1, [])


def test_deliveries_to_a_consumer_that_is_leaving_do_not_count() -> None:
    queue, worker, next_one = Queue("q"), Worker(2), Worker(2)
    queue.attach(worker)
    fill(queue, b"1", b"2")
    worker.leaving = True
    queue.detach(worker)
    queue.attach(next_one)
    assert [(delivery.message.body, delivery.attempts) for delivery in next_one.got] == [(b"1", 1), (b"2", 1)]


def test_what_was_handed_out_and_not_sent_does_not_count() -> None:
    queue, worker = Queue("q"), Worker(1)
    queue.attach(worker)
    fill(queue, b"1")
    queue.give_back(worker.got[0])
    assert [delivery.attempts for delivery in worker.got] == [0, 1]


def test_the_forms_of_a_message_are_not_kept_once_it_is_sent() -> None:
    queue, worker = Queue("q"), Worker(1)
    queue.attach(worker)
    message = Message("q", b"1")
    message.encoded[3] = b"a form"
    queue.put(message)
    assert message.encoded == {}


@pytest.mark.parametrize("size", [0, 1000])
def test_all_queues_together_know_the_memory_of_their_messages(size: int) -> None:
    totals = Totals()
    one, other, worker = Queue("q", totals=totals), Queue("r", totals=totals), Worker(1)
    one.put(Message("q", bytes(size), "text/plain", (("key", "value"),)))
    other.put(Message("r", bytes(size)))
    assert totals.size == 2 * 512 + 2 * size + len("q" + "r" + "text/plain" + "key" + "value")
    for queue in (one, other):
        queue.attach(worker)
        worker.got[-1].ack()
    assert totals.size == 0
