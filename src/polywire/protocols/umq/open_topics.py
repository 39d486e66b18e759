"""The topic ids a peer has open at the hub: subscriptions and queues. Streams have theirs among the same ids."""

from typing import Final, final

from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.refusal import Refused
from polywire.protocols.umq.answers import Answers
from polywire.protocols.umq.connection import Publications
from polywire.protocols.umq.updates import TopicWriter, UmqConsumer, UmqSubscription


@final
class OpenTopics:
    """What one peer listens to, by topic id. ``ids`` holds all of them, at most ``limit``."""

    def __init__(self, hub: Hub, client: Client, answers: Answers, *, limit: int) -> None:
        self.ids: Final = Publications(limit=limit)
        self._hub: Final = hub
        self._client: Final = client
        self._answers: Final = answers
        self._consumers: Final[dict[int, UmqConsumer]] = {}

    def subscribe(self, topic_id: int, pattern: str, *, envelope: bool) -> Refused | None:
        """Send what is published to the pattern from now on. The id is open already."""
        client = self._client
        writer = TopicWriter(client, topic_id, envelope=envelope)
        subscription = UmqSubscription(pattern, client, self._hub.next_number(), writer)
        return self._hub.subscribe(client, topic_id, subscription)

    def consume(self, topic_id: int, channel: str, *, envelope: bool) -> Refused | None:
        """Take from a queue, from ``begin`` on. The id is open already."""
        writer = TopicWriter(self._client, topic_id, envelope=envelope)
        consumer = UmqConsumer(self._client.outbox, writer)
        refused = self._hub.consume(self._client, channel[len(QUEUE_PREFIX) :], consumer, begin=False)
        if refused is None:
            self._consumers[topic_id] = consumer
        return refused

    def begin(self, topic_id: int) -> None:
        """Send a new subscription what is retained, or what its queue holds."""
        consumer = self._consumers.get(topic_id)
        if consumer is not None:
            self._hub.begin_consuming(self._client, consumer)
        else:
            self._hub.replay(self._client, self._client.subscriptions[topic_id])

    def end(self, topic_id: int) -> bool:
        """End a topic with its ``D``. False where the id is not open."""
        closing = self.ids.close(topic_id)
        if closing is None:
            return False
        self._stop(topic_id)
        self._answers.send(closing)
        return True

    def room(self) -> None:
        """The peer has caught up: queues may hand out more."""
        for consumer in list(self._consumers.values()):
            consumer.queue.dispatch()

    def gone(self) -> None:
        """The peer listens to nothing any more, and neither calls nor serves."""
        self._consumers.clear()
        self._hub.silence(self._client)

    def _stop(self, topic_id: object) -> None:
        if isinstance(topic_id, int):
            consumer = self._consumers.pop(topic_id, None)
            if consumer is not None:
                self._hub.stop_consuming(self._client, consumer)
                return
        self._hub.unsubscribe(self._client, topic_id)
