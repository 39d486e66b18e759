"""Queues: order, one receiver, acknowledgement, return to the front, bounds."""

from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.message import Message
from polywire.hub.queues import Consumer, Delivery, Queue


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
        left = [int(message.body) for message in queue.contents()]
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
    assert [message.body for message in queue.contents()] == [b"b1", b"a1", b"b2", b"a2"]
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
