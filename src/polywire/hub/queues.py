"""Queues: each message to one consumer, in order, until that consumer has acknowledged it.

A message that was handed out and not acknowledged when its consumer goes away returns to the front of the queue, in
its old place. Consumers with room take turns. A consumer may be choosy: a message that none of those present wants is
set aside until another comes, and keeps nobody waiting. A queue is bounded in messages and octets; what waits for an
acknowledgement counts.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from polywire.hub.message import Message

MAX_MESSAGES: Final = 100_000
MAX_OCTETS: Final = 256 * 1024 * 1024


@final
class Delivery:
    """A message in a queue. ``number`` is its place; ``attempts`` how often it was handed out."""

    def __init__(self, queue: "Queue", message: Message, number: int) -> None:
        self.queue: Final = queue
        self.message: Final = message
        self.number: Final = number
        self.attempts = 0
        self.consumer: Consumer | None = None

    def ack(self) -> bool:
        """The consumer has it: the queue forgets it. False where it was not handed out, or is acknowledged already."""
        return self.queue.ack(self)


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """Somebody who takes messages from one queue. A session derives its own. ``choosy``: ``wants`` is asked."""

    def __init__(self, *, choosy: bool = False) -> None:
        self.pending: Final[dict[int, Delivery]] = {}
        self.choosy: Final = choosy

    def room(self) -> bool:
        """Whether one more message may be handed out now. When that changes, tell ``Queue.dispatch``."""
        raise NotImplementedError

    def wants(self, message: Message) -> bool:  # noqa: ARG002 - for those who choose
        """Whether this message is for the consumer. When that changes, tell ``Queue.reconsider``."""
        return True

    def take(self, delivery: Delivery) -> None:
        """Send the message to the peer; acknowledge it when the peer has it."""
        raise NotImplementedError


@final
class Queue:
    """One queue. ``max_messages`` and ``max_octets`` bound it."""

    def __init__(self, name: str, *, max_messages: int = MAX_MESSAGES, max_octets: int = MAX_OCTETS) -> None:
        self.name: Final = name
        self.max_messages = max_messages
        self.max_octets = max_octets
        self.octets = 0
        self.refused: i64 = 0
        self.on_ack: Callable[[str, int], None] | None = None  # the journal's
        self.stopped = False  # nothing is handed out any more
        self._next = 0
        self._waiting: Final[deque[Delivery]] = deque()
        self._unwanted: list[Delivery] = []  # by nobody who is here
        self._handed_out: Final[dict[int, Delivery]] = {}
        self._consumers: list[Consumer] = []
        self._suspended: Final[list[Consumer]] = []
        self._turn = 0
        self._dispatching = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unwanted) + len(self._handed_out)

    def waiting(self) -> int:
        """How many messages no consumer has yet."""
        return len(self._waiting) + len(self._unwanted)

    def consumers(self) -> int:
        """How many consumers there are."""
        return len(self._consumers)

    def idle(self) -> bool:
        """Whether the queue holds nothing and nobody consumes it."""
        return len(self) == 0 and not self._consumers and not self._suspended

    def has_room(self, message: Message) -> bool:
        """Whether the queue can take the message; it counts those that it can't."""
        if len(self) >= self.max_messages or self.octets + message.size() > self.max_octets:
            self.refused += 1
            return False
        return True

    def put(self, message: Message) -> Delivery | None:
        """Take a message in, if there is room, and hand out what can be."""
        return self.enter(message) if self.has_room(message) else None

    def enter(self, message: Message) -> Delivery:
        """The same without asking for room."""
        delivery = Delivery(self, message, self._next)
        self._next += 1
        self.octets += message.size()
        self._waiting.append(delivery)
        self.dispatch()
        return delivery

    def attach(self, consumer: Consumer) -> None:
        """Let a consumer take part."""
        self._consumers.append(consumer)
        self.reconsider()

    def reconsider(self) -> None:
        """Somebody wants what nobody wanted before, perhaps."""
        if self._unwanted:
            waiting = sorted([*self._unwanted, *self._waiting], key=_number)
            self._unwanted = []
            self._waiting.clear()
            self._waiting.extend(waiting)
        self.dispatch()

    def detach(self, consumer: Consumer) -> None:
        """A consumer goes away: what it had and did not acknowledge returns to its old place."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)
        if consumer in self._suspended:
            self._suspended.remove(consumer)
        self._take_back(list(consumer.pending.values()))

    def suspend(self, consumer: Consumer) -> None:
        """As ``detach``, but the consumer may ``resume``."""
        self.detach(consumer)
        self._suspended.append(consumer)

    def resume(self, consumer: Consumer) -> None:
        """Let a suspended consumer take part again."""
        if consumer in self._suspended:
            self._suspended.remove(consumer)
            self.attach(consumer)

    def give_back(self, delivery: Delivery) -> None:
        """A consumer that stays does not want a message it was handed after all: it returns to its old place."""
        if self._handed_out.get(delivery.number) is delivery:
            self._take_back([delivery])

    def _take_back(self, returned: list[Delivery]) -> None:
        returned.sort(key=_number, reverse=True)
        for delivery in returned:
            del self._handed_out[delivery.number]
            if delivery.consumer is not None:
                delivery.consumer.pending.pop(delivery.number, None)
            delivery.consumer = None
            # A new one, so that a late acknowledgement of the old one does not speak for the next consumer.
            again = Delivery(self, delivery.message, delivery.number)
            again.attempts = delivery.attempts
            self._waiting.appendleft(again)
        if returned:
            # Others may have returned theirs before: the front is put in order again.
            front = sorted([self._waiting.popleft() for _ in range(self._unordered())], key=_number, reverse=True)
            self._waiting.extendleft(front)
            self.dispatch()

    def ack(self, delivery: Delivery) -> bool:
        """Forget a message that its consumer has. False where it is not handed out."""
        if self._handed_out.get(delivery.number) is not delivery:
            return False
        del self._handed_out[delivery.number]
        consumer = delivery.consumer
        if consumer is not None:
            consumer.pending.pop(delivery.number, None)
        self.octets -= delivery.message.size()
        if self.on_ack is not None:
            self.on_ack(self.name, delivery.message.offset)
        self.dispatch()
        return True

    def dispatch(self) -> None:
        """Hand out as much as the consumers have room for."""
        if self.stopped:
            return
        if self._dispatching:
            return  # a consumer that acknowledges at once comes here from below; the loop goes on anyway
        self._dispatching = True
        try:
            while self._waiting and self._consumers and self._hand_out(self._waiting[0]):
                pass
        finally:
            self._dispatching = False

    def _hand_out(self, delivery: Delivery) -> bool:
        """Give the first message to a consumer, or set it aside. False where it must wait for room."""
        consumer = self._next_with_room(delivery.message)
        if consumer is None:
            for each in self._consumers:
                if not each.choosy or each.wants(delivery.message):
                    return False
            self._unwanted.append(self._waiting.popleft())
            return True
        self._waiting.popleft()
        delivery.attempts += 1
        delivery.consumer = consumer
        consumer.pending[delivery.number] = delivery
        self._handed_out[delivery.number] = delivery
        consumer.take(delivery)
        return True

    def contents(self) -> list[Message]:
        """All messages in order, those handed out included."""
        deliveries = [*self._handed_out.values(), *self._unwanted, *self._waiting]
        deliveries.sort(key=_number)
        return [delivery.message for delivery in deliveries]

    def _unordered(self) -> int:
        """How many messages at the front have been handed out before."""
        count = 0
        for delivery in self._waiting:
            if delivery.attempts == 0:
                break
            count += 1
        return count

    def _next_with_room(self, message: Message) -> Consumer | None:
        consumers = self._consumers
        for step in range(len(consumers)):
            index = (self._turn + step) % len(consumers)
            consumer = consumers[index]
            if consumer.room() and (not consumer.choosy or consumer.wants(message)):
                self._turn = (index + 1) % len(consumers)
                return consumer
        return None


def _number(delivery: Delivery) -> int:
    return delivery.number
