"""What the hub sends over FMQP: messages, demand, jobs from queues, and what the broker itself publishes."""

from typing import Final, cast, final

from polywire.hub.channels import to_stars
from polywire.hub.client import UNENCODABLE, Client
from polywire.hub.demand import Watcher
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.message import Message
from polywire.hub.outbox import Outbox
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.protocols.fmqp.frames import CACHE, FEEDBACK, encode_count, forwarded

EMPTY: Final = "empty"

CLIENTS: Final = "$/info/clients"
MESSAGES: Final = "$/info/messages/second"


@final
class FmqpSubscription(Subscription):
    """A subscription of a client on FMQP."""

    def __init__(self, pattern: str, client: Client, *, counted: bool) -> None:
        super().__init__(pattern, client.outbox, client.number, protocol=client.protocol, dollar=True, counted=counted)
        self.client: Final = client

    def deliver(self, message: Message) -> None:
        """Write the message as a publication. FMQP-72: one without a body is not forwarded."""
        if not message.body:
            return
        key = self.client.protocol * 16  # forms of other protocols have other numbers
        data = message.encoded.get(key)
        if data is None:
            data = forwarded(to_stars(message.channel), message.body, CACHE if message.retain else 0) or b""
            message.encoded[key] = data
        packet = cast("bytes", data)
        if packet:
            self.client.deliver(packet, message.channel)
        else:
            self.client.counters.drop(UNENCODABLE)


@final
class FmqpWatcher(Watcher):
    """A client on FMQP that watches the demand for topics."""

    def __init__(self, pattern: str, outbox: Outbox) -> None:
        super().__init__(pattern)
        self._outbox: Final = outbox

    def demand(self, topic: str, subscribers: int) -> None:
        """FMQP-64: send the number of subscribers, or an empty body if none is left."""
        body = encode_count(subscribers) if subscribers else b""
        data = forwarded(to_stars(topic), body, FEEDBACK)
        if data is not None:
            self._outbox.offer(data)


@final
class FmqpConsumer(Consumer):
    """A client on FMQP that takes from a queue. FMQP has no acknowledgements: what was written is taken."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client: Final = client

    def room(self) -> bool:
        """Whether the client keeps up."""
        return self._client.outbox.takes_queued()

    def take(self, delivery: Delivery) -> None:
        """Write the message, and acknowledge it."""
        message = delivery.message
        data = forwarded(QUEUE_PREFIX + self.queue.name, message.body, 0)
        if data is not None and message.body:
            self._client.push(data)
        else:
            self._client.counters.drop(EMPTY if data is not None else UNENCODABLE)
        delivery.ack()


@final
class BrokerInfo:
    """Publishes to FMQP's service topics, from ``start`` on."""

    def __init__(self, hub: Hub) -> None:
        self._hub: Final = hub
        self._received = 0

    def start(self) -> None:
        """Publish the number of clients now and when it changes (FMQP-27), that of messages each second (FMQP-28)."""
        self._hub.on_presence.append(self._clients)
        self._clients(self._hub.client_count())
        self._received = self._total()
        self._hub.later(1.0, self._second)

    def _clients(self, count: int) -> None:
        self._hub.announce(Message(CLIENTS, encode_count(count), retain=True, time=self._hub.clock()))

    def _second(self) -> None:
        total = self._total()
        self._hub.announce(Message(MESSAGES, encode_count(total - self._received), time=self._hub.clock()))
        self._received = total
        self._hub.later(1.0, self._second)

    def _total(self) -> int:
        return sum([counters.received for counters in self._hub.counters])
