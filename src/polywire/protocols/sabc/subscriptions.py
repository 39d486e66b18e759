"""What an sABC client listens to: topics, whose messages are send-only, and queues, whose messages it acknowledges."""

from typing import Final, final

from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.refusal import Refused
from polywire.hub.routes import Subscription
from polywire.protocols.sabc.line import Line


@final
class SabcSubscription(Subscription):
    """A topic, or a pattern of topics. Each gets a message on its own, as it names itself in ``subscription``."""

    def __init__(self, pattern: str, group: int, line: Line, msg_id: str) -> None:
        super().__init__(pattern, line.client.outbox, group)
        self._line: Final = line
        self._prefix: Final = line.prefix(msg_id, send_only=True)

    def deliver(self, message: Message) -> None:
        """Push the message."""
        self._line.offer(self._prefix, message)


@final
class Queues:
    """The queues one client takes from, and what it has not acknowledged yet, over all of them at most ``most``."""

    def __init__(self, hub: Hub, line: Line, most: int) -> None:
        self._hub: Final = hub
        self._line: Final = line
        self._most: Final = most
        self._consumers: Final[dict[str, SabcConsumer]] = {}
        self.pending: Final[dict[str, Delivery]] = {}  # by the msg-id
        self._ended = False

    def __len__(self) -> int:
        return len(self._consumers)

    def __contains__(self, name: object) -> bool:
        return name in self._consumers

    def unacknowledged(self) -> int:
        """How many messages the client has been given and not acknowledged."""
        return len(self.pending)

    def room(self) -> bool:
        """Whether the client may be given another message."""
        return not self._ended and self._line.client.outbox.takes_queued() and len(self.pending) < self._most

    def start(self, name: str, msg_id: str) -> Refused | None:
        """Take from a queue, under the id of the message that asked for it. What another id took returns to it.

        The first message comes after ``begin``.
        """
        consumer = SabcConsumer(self, self._line, msg_id)
        old = self._consumers.get(name)
        refused = self._hub.consume(self._line.client, name, consumer, begin=False, replacing=old)
        if refused is None:
            self._consumers[name] = consumer
            if old is not None:
                self._stop(old)
        return refused

    def begin(self, name: str) -> None:
        """Hand out what the queue holds."""
        self._hub.begin_consuming(self._line.client, self._consumers[name])

    def stop(self, name: str) -> bool:
        """Take from it no more. False where the client did not."""
        consumer = self._consumers.pop(name, None)
        if consumer is None:
            return False
        self._stop(consumer)
        return True

    def _stop(self, consumer: "SabcConsumer") -> None:
        for msg_id in [each for each, delivery in self.pending.items() if delivery.consumer is consumer]:
            del self.pending[msg_id]
        consumer.leaving = True
        self._hub.stop_consuming(self._line.client, consumer)
        self.dispatch()

    def end(self, *, leaving: bool) -> None:
        """Take from none any more; what is not acknowledged returns to its queue. ``leaving``: the client said so.

        Its services end as well.
        """
        self._ended = True
        for consumer in self._consumers.values():
            consumer.leaving = leaving
        self._consumers.clear()
        self.pending.clear()
        self._hub.silence(self._line.client, topics=False, calls=False)

    def taken(self, msg_id: str, delivery: Delivery) -> None:
        """A message was pushed under this id."""
        self.pending[msg_id] = delivery

    def acknowledge(self, msg_id: str) -> bool:
        """SABC-115: an answer with this ref-msg-id has come. False where no message of a queue waits for it."""
        delivery = self.pending.pop(msg_id, None)
        if delivery is None:
            return False
        was_full = len(self.pending) + 1 >= self._most
        delivery.ack()
        if was_full:
            self.dispatch()
        return True

    def reject(self, msg_id: str, delay: float, reason: str) -> bool:
        """SABC-141: a rejection with this ref-msg-id has come. False where no message of a queue waits for it."""
        delivery = self.pending.pop(msg_id, None)
        if delivery is None:
            return False
        was_full = len(self.pending) + 1 >= self._most
        delivery.nack(delay, reason)
        if was_full:
            self.dispatch()
        return True

    def dispatch(self) -> None:
        """There may be room again: let the queues hand out what they have."""
        for consumer in list(self._consumers.values()):
            if len(self.pending) >= self._most:
                return
            consumer.queue.dispatch()


@final
class SabcConsumer(Consumer):
    """One client at one queue."""

    def __init__(self, queues: Queues, line: Line, msg_id: str) -> None:
        super().__init__()
        self._queues: Final = queues
        self._line: Final = line
        self._prefix: Final = line.prefix(msg_id, send_only=False)

    def room(self) -> bool:
        """Whether the client keeps up with reading and acknowledging."""
        return self._queues.room()

    def take(self, delivery: Delivery) -> None:
        """Push the message; its answer acknowledges it."""
        msg_id = self._line.next_id()
        self._queues.taken(msg_id, delivery)
        self._line.push(self._prefix, msg_id, delivery.outgoing())
