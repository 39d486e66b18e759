"""Queues: each message to one consumer, in order, until that consumer has acknowledged it.

A message that its consumer rejects (nacks), or that was not acknowledged when its consumer goes away, returns to the
front of the queue, in its old place; a rejected one may be delayed first, without delaying others.
A queue may have a policy: a message that was delivered too often moves to a dead-letter queue instead. Consumers with
room take turns. A consumer may have a filter: a message that no current consumer accepts is set aside until one does.
A queue is bounded in messages and bytes, and all queues together in memory; what waits for an acknowledgement counts.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from polywire.hub.channels import matches
from polywire.hub.message import HeaderValue, Message
from polywire.hub.peer import Refused

MAX_MESSAGES: Final = 100_000
MAX_OCTETS: Final = 128 * 1024 * 1024
MAX_SIZE: Final = 128 * 1024 * 1024
"""What all queues may hold together."""

OVERHEAD: Final = 512
"""Bytes of memory that a queued message takes beside its names, headers and body."""

BEHIND: Final = 1 << 62
"""The first place of messages without an offset, where the others are placed by theirs."""

MAX_DELAY: Final = 86400.0
"""Seconds a rejected message waits at most."""

MAX_REASON: Final = 256
"""Characters kept of the reason a consumer gives."""

DELIVERIES: Final = "polywire-deliveries"
"""The header that carries the delivery count to consumers, from the second delivery on."""
DEAD_QUEUE: Final = "polywire-dead-queue"
DEAD_REASON: Final = "polywire-dead-reason"
DEAD_DELIVERIES: Final = "polywire-dead-deliveries"
"""The headers of a dead letter: the queue it was in, why it was given up, how often it was delivered."""
DEAD_HEADERS: Final = (DEAD_QUEUE, DEAD_REASON, DEAD_DELIVERIES)

NACKED: Final = "nacked"
UNACKNOWLEDGED: Final = "unacknowledged"
"""Why a message was given up, where its consumer gave no reason of its own."""


@final
class Policy:
    """What becomes of messages that are delivered again and again. ``max_deliveries``: 0 for no limit."""

    def __init__(self, patterns: tuple[str, ...] = (), max_deliveries: int = 0, dead_letter: str = "") -> None:
        self.patterns: Final = patterns
        self.max_deliveries: Final = max_deliveries
        self.dead_letter: Final = dead_letter

    def covers(self, queue: str) -> bool:
        """Whether it is for the queue of this name."""
        for pattern in self.patterns:
            if matches(pattern, queue, dollar=True):
                return True
        return False


NO_POLICY: Final = Policy()


@final
class Totals:
    """What all queues of a hub have in common. ``size`` is their memory in bytes, ``most`` its limit."""

    def __init__(self) -> None:
        self.size: i64 = 0
        self.most: i64 = MAX_SIZE
        self.nacked: i64 = 0
        self.redelivered: i64 = 0
        self.dead_lettered: i64 = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Lender:
    """Where a queue's messages come from if another node owns it; whoever connects the nodes derives one.

    They are on loan: what becomes of each is reported, and the queue forgets it.
    """

    def changed(self, queue: "Queue") -> None:
        """There are other consumers than before, or they want other messages."""
        raise NotImplementedError

    def hungry(self, queue: "Queue") -> None:
        """All messages there were are handed out, and consumers may have room for more."""
        raise NotImplementedError

    def unwanted(self, delivery: "Delivery") -> None:
        """No consumer here wants the message."""
        raise NotImplementedError

    def taken(self, delivery: "Delivery") -> None:
        """A message was handed out."""
        raise NotImplementedError

    def acknowledged(self, delivery: "Delivery") -> None:
        """A consumer has the message."""
        raise NotImplementedError

    def rejected(self, delivery: "Delivery", delay: float, reason: str) -> None:
        """A consumer has rejected the message."""
        raise NotImplementedError

    def abandoned(self, delivery: "Delivery", *, counted: bool) -> None:
        """A consumer has gone without an acknowledgement. ``counted``: it had the chance to look at the message."""
        raise NotImplementedError


@final
class Delivery:
    """A message in a queue. ``number`` is its place; ``attempts`` how often it was handed out."""

    def __init__(self, queue: "Queue", message: Message, number: int, attempts: int = 0) -> None:
        self.queue: Final = queue
        self.message: Final = message
        self.number: Final = number
        self.attempts = attempts
        self.consumer: Consumer | None = None

    def outgoing(self) -> Message:
        """The message as its consumer gets it: with the delivery count in its headers if it was delivered before."""
        message = self.message
        if self.attempts > 1:
            return message.with_headers((DELIVERIES,), ((DELIVERIES, self.attempts),))
        if message.headers and message.header(DELIVERIES) is not None:
            return message.with_headers((DELIVERIES,), ())
        return message

    def ack(self) -> bool:
        """The consumer has it: the queue forgets it. False where it was not handed out, or is acknowledged already."""
        return self.queue.ack(self)

    def nack(self, delay: float = 0.0, reason: str = "") -> bool:
        """The consumer rejects it: it is delivered again, ``delay`` seconds later at the earliest, or given up.

        False where it was not handed out, or is acknowledged already.
        """
        return self.queue.nack(self, delay, reason)


@final
class _Return:
    """The end of a rejected message's delay."""

    def __init__(self, queue: "Queue", delivery: Delivery) -> None:
        self._queue: Final = queue
        self._delivery: Final = delivery

    def due(self) -> None:
        """Let it be delivered again."""
        self._queue.end_delay(self._delivery)


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """Somebody who takes messages from one queue. A session derives its own. ``choosy``: ``wants`` is asked.

    ``queue`` is set by ``Hub.consume``. ``leaving``: it has said that it wants no more. What it does not acknowledge
    is then not held against a message.
    """

    queue: "Queue"

    def __init__(self, *, choosy: bool = False) -> None:
        self.leaving = False
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
    """One queue. ``max_messages`` and ``max_octets`` bound it, ``totals`` all queues together."""

    def __init__(
        self,
        name: str,
        *,
        max_messages: int = MAX_MESSAGES,
        max_octets: int = MAX_OCTETS,
        totals: Totals | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self.name: Final = name
        self.max_messages = max_messages
        self.max_octets = max_octets
        self.totals: Final = Totals() if totals is None else totals
        self.octets = 0
        self.refused: i64 = 0
        self.policy = NO_POLICY
        self.on_ack: Callable[[str, int], None] | None = None  # the journal's, as the next one
        self.on_return: Callable[[str, int, int, str], None] | None = None
        self.on_dead: Callable[[Queue, Delivery, str], bool] | None = None  # the hub's: False where it can't be placed
        self.stopped = False  # nothing is handed out any more
        self.lender: Lender | None = None  # of a queue that another node owns
        self.fence: Callable[[], bool] | None = None  # False: this node may not own the queue any more
        self.offered = -1  # the place of the message that consumers are being asked about
        self.by_offset = False  # a message's place is its offset, which no other message of the queue ever has
        self._later: Final = later
        self._next = 0
        self._waiting: Final[deque[Delivery]] = deque()
        self._returned: Final[list[tuple[int, Delivery]]] = []  # a heap: those that wait again, by their old places
        self._unwanted: list[Delivery] = []  # by any current consumer
        self._delayed: Final[dict[int, Delivery]] = {}
        self._handed_out: Final[dict[int, Delivery]] = {}
        self._consumers: list[Consumer] = []
        self._suspended: Final[list[Consumer]] = []
        self._turn = 0
        self._dispatching = False

    def __len__(self) -> int:
        return self.waiting() + len(self._handed_out)

    def waiting(self) -> int:
        """How many messages no consumer has yet."""
        return len(self._waiting) + len(self._returned) + len(self._unwanted) + len(self._delayed)

    def consumers(self) -> int:
        """How many consumers there are."""
        return len(self._consumers)

    def idle(self) -> bool:
        """Whether the queue is empty and has no consumers."""
        return len(self) == 0 and not self._consumers and not self._suspended

    def has_room(self, message: Message) -> bool:
        """Whether the queue can take the message; it counts those that it can't."""
        if len(self) >= self.max_messages or self.octets + message.size() > self.max_octets:
            self.refused += 1
            return False
        return True

    def put(self, message: Message) -> Delivery | None:
        """Add a message if there is room, and deliver what can be delivered."""
        return self.enter(message) if self.has_room(message) else None

    def enter(self, message: Message) -> Delivery:
        """The same without checking for room."""
        if self.by_offset and message.offset >= 0:
            number = int(message.offset)
        else:
            number = self._next
            self._next = number + 1
        delivery = Delivery(self, message, number)
        self.octets += message.size()
        self.totals.size += footprint(message)
        self._waiting.append(delivery)
        self.dispatch()
        return delivery

    def insert(self, message: Message, number: int, attempts: int) -> None:
        """Put a message into its place, unless it is handed out. It was delivered so often before."""
        if number in self._handed_out:
            return
        self.octets += message.size()
        self.totals.size += footprint(message)
        self._next = max(self._next, number + 1)
        self._wait_again(Delivery(self, message, number, attempts))

    def recall(self) -> list[Delivery]:
        """Forget the messages that no consumer has. Returns them in their order."""
        found = [*self._waiting, *self._unwanted, *self._delayed.values()]
        for _, each in self._returned:
            found.append(each)
        self._waiting.clear()
        self._returned.clear()
        self._delayed.clear()
        self._unwanted = []
        for delivery in found:
            self._forget(delivery.message)
        found.sort(key=_number)
        return found

    def disown(self, first: int = 0) -> None:
        """Forget the messages that consumers have from a place on: nothing becomes of their acknowledgements."""
        for delivery in list(self._handed_out.values()):
            if delivery.number >= first:
                self._release(delivery)
                self._forget(delivery.message)

    def place_by_offset(self) -> None:
        """A message's place is its offset from now on. One without an offset comes behind all others."""
        if not self.by_offset:
            self.by_offset = True
            waiting = self.recall()
            self._next = max(self._next, BEHIND)
            for delivery in waiting:
                number = int(delivery.message.offset)
                if number < 0:
                    number = self._next
                self.insert(delivery.message, number, delivery.attempts)

    def held(self) -> list[int]:
        """The places of the messages that consumers have."""
        return list(self._handed_out)

    def hand_back(self, number: int, consumer: Consumer) -> Delivery | None:
        """A consumer has had this message since before the queue was restored. None where it does not wait."""
        delivery = self._waiting_at(number)
        if delivery is None:
            return None
        self._take_out(delivery)
        delivery.attempts += 1
        delivery.consumer = consumer
        consumer.pending[number] = delivery
        self._handed_out[number] = delivery
        return delivery

    def settle(self, number: int) -> bool:
        """Forget a message wherever it is: somebody had it before the queue was restored. False if it is not there."""
        delivery = self._handed_out.get(number)
        if delivery is not None:
            return self.ack(delivery)
        delivery = self._waiting_at(number)
        if delivery is None:
            return False
        self._take_out(delivery)
        self._forget(delivery.message)
        if self.on_ack is not None:
            self.on_ack(self.name, delivery.message.offset)
        return True

    def waits(self, number: int) -> bool:
        """Whether the message at this place waits for a consumer."""
        return self._waiting_at(number) is not None

    def first_place(self) -> int:
        """The place of the message whose turn it is; -1 if there is none."""
        first = self._first()
        return -1 if first is None else first.number

    def _waiting_at(self, number: int) -> Delivery | None:
        delivery = self._delayed.get(number)
        if delivery is not None:
            return delivery
        for each in self._waiting:
            if each.number == number:
                return each
        for each in self._unwanted:
            if each.number == number:
                return each
        for place, each in self._returned:
            if place == number:
                return each
        return None

    def _take_out(self, delivery: Delivery) -> None:
        """Take a message that waits out of the line."""
        if self._delayed.pop(delivery.number, None) is not None:
            return
        if delivery in self._waiting:
            self._waiting.remove(delivery)
        elif delivery in self._unwanted:
            self._unwanted.remove(delivery)
        else:
            self._returned.remove((delivery.number, delivery))
            heapify(self._returned)

    def admit(self, consumer: Consumer) -> None:
        """A consumer that takes part from ``resume`` on."""
        consumer.queue = self
        self._suspended.append(consumer)

    def attach(self, consumer: Consumer) -> None:
        """Let a consumer take part."""
        self._consumers.append(consumer)
        self.reconsider()

    def roomy(self) -> bool:
        """Whether a consumer has room now."""
        for consumer in self._consumers:
            if consumer.room():
                return True
        return False

    def reconsider(self) -> None:
        """A consumer is new or has another filter: offer it the messages that were set aside."""
        if self.lender is not None:
            self.lender.changed(self)
        unwanted, self._unwanted = self._unwanted, []
        for delivery in unwanted:
            heappush(self._returned, (delivery.number, delivery))
        self.dispatch()

    def detach(self, consumer: Consumer) -> None:
        """A consumer goes away: what it had and did not acknowledge returns to its old place, or is given up.

        The deliveries to a consumer that was ``leaving`` do not count, since it need not have looked at them.
        """
        if consumer in self._consumers:
            self._consumers.remove(consumer)
        if consumer in self._suspended:
            self._suspended.remove(consumer)
        self._take_back(list(consumer.pending.values()), counted=not consumer.leaving)
        if self.lender is not None:
            self.lender.changed(self)

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
        """A message was handed out and not sent after all: it returns to its old place, as if it never had been."""
        if self._handed_out.get(delivery.number) is delivery:
            if delivery.attempts > 1 and self.lender is None:
                self.totals.redelivered -= 1
            delivery.attempts -= 1
            self._wait_again(self._again(delivery))

    def nack(self, delivery: Delivery, delay: float, reason: str) -> bool:
        """Take back what its consumer rejects. False where it is not handed out."""
        if self._handed_out.get(delivery.number) is not delivery:
            return False
        reason = _printable(reason[:MAX_REASON])
        if self.lender is not None:
            self._end_loan(delivery)
            self.lender.rejected(delivery, delay, reason)
            self.dispatch()
            return True
        self.totals.nacked += 1
        if self._give_up(delivery, reason or NACKED):
            self.dispatch()
            return True
        again = self._again(delivery)
        if self.on_return is not None:
            self.on_return(self.name, again.message.offset, again.attempts, reason)
        if delay > 0 and self._later is not None:
            self._delayed[again.number] = again
            self._later(min(delay, MAX_DELAY), _Return(self, again).due)
            self.dispatch()
        else:
            self._wait_again(again)
        return True

    def _end_loan(self, delivery: Delivery) -> None:
        self._release(delivery)
        self._forget(delivery.message)

    def end_delay(self, delivery: Delivery) -> None:
        """A rejected message has waited long enough."""
        if self._delayed.pop(delivery.number, None) is not None:
            self._wait_again(delivery)

    def _take_back(self, returned: list[Delivery], *, counted: bool) -> None:
        """Messages were not acknowledged by a consumer that has gone."""
        if not returned:
            return
        returned.sort(key=_number)
        if self.lender is not None:
            for delivery in returned:
                self._end_loan(delivery)
                self.lender.abandoned(delivery, counted=counted and not self.stopped)
            self.dispatch()
            return
        dispatching = self._dispatching
        self._dispatching = True  # all of them are back before the first one is handed out again
        try:
            for delivery in returned:
                if self.stopped or not counted:  # stopped: the hub is going down, which is not the consumer's doing
                    self.give_back(delivery)
                elif not self._give_up(delivery, UNACKNOWLEDGED):
                    again = self._again(delivery)
                    if self.on_return is not None and again.attempts > 0:
                        self.on_return(self.name, again.message.offset, again.attempts, "")
                    self._wait_again(again)
        finally:
            self._dispatching = dispatching
        self.dispatch()

    def _again(self, delivery: Delivery) -> Delivery:
        """Take a message out of its consumer's hands. What is returned waits nowhere yet."""
        self._release(delivery)
        # A new one, so that a late acknowledgement of the old one does not speak for the next consumer.
        return Delivery(self, delivery.message, delivery.number, delivery.attempts)

    def _wait_again(self, delivery: Delivery) -> None:
        """Put a message that came back into its old place."""
        heappush(self._returned, (delivery.number, delivery))
        self.dispatch()

    def _first(self) -> Delivery | None:
        """The message whose turn it is."""
        returned, waiting = self._returned, self._waiting
        if returned and not (waiting and waiting[0].number < returned[0][0]):
            return returned[0][1]
        return waiting[0] if waiting else None

    def _pop(self, delivery: Delivery) -> None:
        """Take the first message out of the line."""
        if self._waiting and self._waiting[0] is delivery:
            self._waiting.popleft()
        else:
            heappop(self._returned)

    def _give_up(self, delivery: Delivery, reason: str) -> bool:
        """Let a message go that was delivered as often as the policy allows. False where it stays."""
        policy = self.policy
        on_dead = self.on_dead
        if policy.max_deliveries == 0 or delivery.attempts < policy.max_deliveries or on_dead is None:
            return False
        if not on_dead(self, delivery, reason):
            return False
        self._release(delivery)
        self._forget(delivery.message)
        self.totals.dead_lettered += 1
        return True

    def ack(self, delivery: Delivery) -> bool:
        """Forget a message that its consumer has. False where it is not handed out."""
        if self._handed_out.get(delivery.number) is not delivery:
            return False
        self._end_loan(delivery)
        if self.lender is not None:
            self.lender.acknowledged(delivery)
        elif self.on_ack is not None:
            self.on_ack(self.name, delivery.message.offset)
        self.dispatch()
        return True

    def _release(self, delivery: Delivery) -> None:
        """A message is not its consumer's any more."""
        del self._handed_out[delivery.number]
        consumer = delivery.consumer
        if consumer is not None:
            consumer.pending.pop(delivery.number, None)
            delivery.consumer = None

    def _forget(self, message: Message) -> None:
        """A message is not in the queue any more."""
        self.octets -= message.size()
        self.totals.size -= footprint(message)

    def dispatch(self) -> None:
        """Deliver as much as the consumers have room for."""
        if self.stopped or (self.fence is not None and not self.fence()):
            return
        if self._dispatching:
            return  # a consumer that acknowledges immediately calls this from below; the loop continues anyway
        self._dispatching = True
        try:
            while self._consumers:
                delivery = self._first()
                if delivery is None or not self._hand_out(delivery):
                    break
        finally:
            self._dispatching = False
        if self.lender is not None and self._consumers and self._first() is None:
            self.lender.hungry(self)

    def _hand_out(self, delivery: Delivery) -> bool:
        """Deliver the first message to a consumer, or set it aside. False if it must wait for room."""
        self.offered = delivery.number
        consumer = self._next_with_room(delivery.message)
        if consumer is None:
            for each in self._consumers:
                if not each.choosy or each.wants(delivery.message):
                    return False
            self._pop(delivery)
            if self.lender is None:
                self._unwanted.append(delivery)
            else:
                self._forget(delivery.message)
                self.lender.unwanted(delivery)
            return True
        self._pop(delivery)
        delivery.attempts += 1
        if delivery.attempts > 1 and self.lender is None:
            self.totals.redelivered += 1
        delivery.consumer = consumer
        consumer.pending[delivery.number] = delivery
        self._handed_out[delivery.number] = delivery
        if self.lender is not None:
            self.lender.taken(delivery)
        consumer.take(delivery)
        delivery.message.forget_encoded()  # it has one consumer, so these forms are not needed again
        return True

    def _next_with_room(self, message: Message) -> Consumer | None:
        consumers = self._consumers
        for step in range(len(consumers)):
            index = (self._turn + step) % len(consumers)
            consumer = consumers[index]
            if consumer.room() and (not consumer.choosy or consumer.wants(message)):
                self._turn = (index + 1) % len(consumers)
                return consumer
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class Sharing:
    """The queues of a hub that is one of several; whoever connects them derives one.

    Each queue has an owner, which hands out its messages. The others pass on to it what their clients do.
    """

    def owns(self, name: str) -> bool:
        """Whether this hub owns the queue, and is ready to."""
        raise NotImplementedError

    def made(self, queue: Queue) -> None:
        """The hub has created a queue, which is empty and has no consumers."""
        raise NotImplementedError

    def refusal(self, name: str, message: Message) -> Refused | None:
        """Why a message can't be taken, apart from what its queue says if this hub owns it."""
        raise NotImplementedError

    def record(self, name: str, message: Message, client: object) -> int:
        """Record a message that a client puts into a queue of this hub. Returns its offset."""
        raise NotImplementedError

    def put(self, name: str, message: Message, client: object, *, acknowledged: bool) -> bool:
        """Put a client's message into a queue of another hub. False where this hub owns it.

        ``acknowledged``: the client will be told when it is safe, which may depend on more than this hub's disk.
        """
        raise NotImplementedError

    def move(self, delivery: Delivery, message: Message) -> bool:
        """Put a dead letter into another queue, and let it leave its own then. False where that is not possible."""
        raise NotImplementedError


def footprint(message: Message) -> int:
    """About how much memory a queued message takes."""
    return OVERHEAD + message.size() + len(message.content_type)


def dead_letter(delivery: Delivery, channel: str, reason: str, time: int) -> Message:
    """The message that goes to a dead-letter queue: the same body, and headers that say where it comes from."""
    attached: tuple[tuple[str, HeaderValue], ...] = (
        (DEAD_QUEUE, delivery.queue.name),
        (DEAD_REASON, reason),
        (DEAD_DELIVERIES, delivery.attempts),
    )
    return delivery.message.with_headers((*DEAD_HEADERS, DELIVERIES), attached, channel, time)


def _printable(text: str) -> str:
    """A text without line ends and other control characters, which not every protocol can carry in a header."""
    return text if text.isprintable() else "".join([each if each.isprintable() else " " for each in text])


def _number(delivery: Delivery) -> int:
    return delivery.number
