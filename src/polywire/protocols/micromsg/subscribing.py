"""What one MicroMsg2 connection is subscribed to, and the commands that change it."""

from collections import deque
from typing import Final, assert_never, final

from polywire.hub.access import SUBSCRIBE
from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.refusal import Refused
from polywire.protocols.micromsg import places
from polywire.protocols.micromsg.errors import BAD_FILTER, FORBIDDEN
from polywire.protocols.micromsg.filters import Filter, forbidden, no_such_destination
from polywire.protocols.micromsg.frames import Error
from polywire.protocols.micromsg.outgoing import Outgoing
from polywire.protocols.micromsg.receivers import MicromsgConsumer, MicromsgSubscription, Seen

FILTER_OCTETS: Final = 256 * 1024
"""How many octets the filters of one connection may have, all together."""


@final
class Receivers:
    """The subscriptions and consumers of a connection, at most ``limit`` of them. What is refused comes as ERROR."""

    def __init__(self, hub: Hub, client: Client, outgoing: Outgoing, limit: int) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._outgoing: Final = outgoing
        self._limit: Final = limit
        client.most_subscriptions = limit
        self._seen: Final = Seen()
        self._consumers: Final[dict[str, MicromsgConsumer]] = {}  # by channel
        self._turns: Final[deque[MicromsgConsumer]] = deque()  # the same, the next to be served first
        self._leaving = 0
        self._filters: Final[dict[str, int]] = {}  # octets, by channel or pattern
        self._filter_octets = 0

    def subscribe(self, destination: str, condition: Filter, text: str | None) -> Error | None:
        """Subscribe to a topic or pattern, or consume a queue. Once more for the same: with the new filter."""
        channel = places.of_subscription(destination)
        if isinstance(channel, Error):
            return channel
        client = self._client
        octets = len(text) if text and condition.clauses else 0
        if self._filter_octets - self._filters.get(channel, 0) + octets > FILTER_OCTETS:
            refused = self._hub.forbids(client, SUBSCRIBE, channel, dollar=False)
            if refused is not None:
                return self._refusal(destination, refused)
            reason = f"the filters of this connection have more than {FILTER_OCTETS} octets"
            return Error(BAD_FILTER, (("limit", str(FILTER_OCTETS)), ("reason", reason)))
        if channel.startswith(QUEUE_PREFIX):
            refused = self._consume(channel, destination, condition)
            if refused is not None:
                return self._refusal(destination, refused)
            self._count_filter(channel, octets)
            return None
        subscription = MicromsgSubscription(channel, client, self._outgoing, condition, self._seen)
        refused = self._hub.subscribe(client, channel, subscription)
        if refused is not None:
            return self._refusal(destination, refused)
        self._count_filter(channel, octets)
        self._hub.replay(client, subscription)
        return None

    def _refusal(self, destination: str, refused: Refused) -> Error:
        """The ERROR for a subscription that the hub has refused, and counted."""
        named = ("destination", destination)
        match refused:
            case Refused.FORBIDDEN:
                return forbidden(destination)
            case Refused.LIMIT:
                reason = f"{self._limit} subscriptions are allowed"
                return Error(FORBIDDEN, (named, ("limit", str(self._limit)), ("reason", reason)))
            case (
                Refused.TOO_MANY_QUEUES
                | Refused.PATTERN_COST
                | Refused.NAMES_SIZE
                | Refused.SERVICE_CHANNEL
                | Refused.UNSUPPORTED
                | Refused.TOO_DEEP
                | Refused.WATCHERS
                | Refused.WILLS_SIZE
                | Refused.RETAINED_FULL
                | Refused.QUEUE_FULL
                | Refused.QUEUES_FULL
                | Refused.DRAINING
                | Refused.UNAVAILABLE
            ):
                return Error(FORBIDDEN, (named, ("reason", refused.message)))
            case _:
                assert_never(refused)

    def unsubscribe(self, destination: str) -> Error | None:
        """MICROMSG-134: end a subscription, if there is one."""
        channel = places.of_subscription(destination)
        if isinstance(channel, Error):
            return channel
        consumer = self._consumers.get(channel)
        if consumer is not None and not consumer.leaving:
            self._count_filter(channel, 0)
            consumer.leaving = True
            self._leaving += 1
            for delivery in self._outgoing.forget(consumer):
                consumer.queue.give_back(delivery)
            self.resume()
            return None
        if consumer is None and self._hub.unsubscribe(self._client, channel):
            self._count_filter(channel, 0)
            return None
        return no_such_destination(destination)

    def resume(self) -> None:
        """The connection has room again, perhaps: let the queues hand out, in turn."""
        if self._leaving:
            for channel, consumer in list(self._consumers.items()):
                if consumer.leaving:
                    self._leave(channel, consumer)
        turns = self._turns
        for _ in range(len(turns)):
            if not self._outgoing.room():
                return
            turns.rotate(-1)
            turns[-1].queue.dispatch()

    def end(self) -> None:
        """The connection is gone. MICROMSG-139: what was not acknowledged returns to its queue, by ``Hub.leave``."""
        self._consumers.clear()
        self._turns.clear()

    def _consume(self, channel: str, destination: str, condition: Filter) -> Refused | None:
        name = channel[len(QUEUE_PREFIX) :]
        consumer = self._consumers.get(channel)
        if consumer is not None:
            refused = self._hub.consume(self._client, name, consumer)
            if refused is not None:
                return refused
            consumer.condition = condition
            if consumer.leaving:
                consumer.leaving = False
                self._leaving -= 1
            consumer.queue.reconsider()
            return None
        consumer = MicromsgConsumer(destination, self._client, self._outgoing, condition)
        refused = self._hub.consume(self._client, name, consumer, begin=False)
        if refused is None:
            self._consumers[channel] = consumer
            self._turns.append(consumer)
            self._hub.begin_consuming(self._client, consumer)
        return refused

    def _leave(self, channel: str, consumer: MicromsgConsumer) -> None:
        """Stop consuming, unless the peer has messages it may still acknowledge."""
        if not self._outgoing.has_sent_to(consumer):
            del self._consumers[channel]
            self._turns.remove(consumer)
            self._leaving -= 1
            self._hub.stop_consuming(self._client, consumer)

    def _count_filter(self, channel: str, octets: int) -> None:
        self._filter_octets += octets - self._filters.pop(channel, 0)
        if octets:
            self._filters[channel] = octets
        self._seen.filters = len(self._filters)
        if not self._filters:
            self._seen.message = None
