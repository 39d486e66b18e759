"""Who gets messages on MicroMsg2: subscribers of topics and consumers of queues, each with a filter."""

from typing import Final, final

from polywire.hub.client import Client
from polywire.hub.message import Message
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.protocols.micromsg.bridge import filtered_properties
from polywire.protocols.micromsg.filters import Filter, matches
from polywire.protocols.micromsg.outgoing import Outgoing

FILTERED_GROUPS: Final = 1 << 32


@final
class Seen:
    """The last message a connection got through a filter, so that a second filter does not send it again."""

    def __init__(self) -> None:
        self.filters = 0
        self.serial = 0
        self.message: Message | None = None


@final
class MicromsgSubscription(Subscription):
    """A topic, or a pattern of topics, somebody on MicroMsg2 listens to.

    Subscriptions without a filter are interchangeable and share their client's group. One with a filter has a group
    of its own, or another's filter might be asked in its place.
    """

    def __init__(self, pattern: str, client: Client, outgoing: Outgoing, condition: Filter, seen: Seen) -> None:
        group = client.number
        if condition.clauses:
            seen.serial += 1
            group = -(client.number * FILTERED_GROUPS + seen.serial)
        super().__init__(pattern, client.outbox, group)
        self._protocol: Final = client.protocol
        self._outgoing: Final = outgoing
        self._seen: Final = seen
        self.condition: Final = condition

    def deliver(self, message: Message) -> None:
        """MICROMSG-76: send the message, if it passes the filter and was not sent for another subscription."""
        seen = self._seen
        if seen.filters:
            if seen.message is message or not self.lets_through(message):
                return
            seen.message = message
        self._outgoing.topic(message)

    def deliver_retained(self, message: Message) -> None:
        """Send a retained message, which this subscription is to have whatever others had."""
        if self.lets_through(message):
            self._outgoing.topic(message)

    def lets_through(self, message: Message) -> bool:
        """Whether the message passes the filter."""
        condition = self.condition
        return not condition.clauses or matches(condition, filtered_properties(message, self._protocol))


@final
class MicromsgConsumer(Consumer):
    """Somebody on MicroMsg2 who takes from a queue. While ``leaving`` it may acknowledge what was sent."""

    def __init__(self, destination: str, client: Client, outgoing: Outgoing, condition: Filter) -> None:
        super().__init__(choosy=True)
        self.destination: Final = destination
        self._protocol: Final = client.protocol
        self._outgoing: Final = outgoing
        self.condition = condition

    def room(self) -> bool:
        """Whether the connection takes another message now."""
        return not self.leaving and self._outgoing.room()

    def wants(self, message: Message) -> bool:
        """Whether the message passes the filter, and is JSON where that was agreed on."""
        if self.leaving or not self._outgoing.suits(message):
            return False
        condition = self.condition
        return not condition.clauses or matches(condition, filtered_properties(message, self._protocol))

    def take(self, delivery: Delivery) -> None:
        """Send the message."""
        self._outgoing.queued(delivery, self.destination)
