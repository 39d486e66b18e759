"""What one connected MQTT client has subscribed to: topics by their filters, and queues by their channels."""

from typing import Final, final

from polywire.hub.access import SUBSCRIBE
from polywire.hub.channels import from_mqtt
from polywire.hub.client import Client
from polywire.hub.hub import (
    DRAINING,
    FORBIDDEN,
    QUEUE_PREFIX,
    TOO_DEEP,
    TOO_MANY_QUEUES,
    UNAVAILABLE,
    Hub,
    is_queue,
    is_too_deep,
)
from polywire.hub.message import Message
from polywire.protocols.mqtt.flows import suback, unsuback
from polywire.protocols.mqtt.outgoing import MqttConsumer, MqttSubscription, Outgoing
from polywire.protocols.mqtt.packets import FAILURE, Subscribe, Unsubscribe
from polywire.protocols.mqtt.stored import SessionState
from polywire.protocols.mqtt.topics import RESERVED
from polywire.protocols.mqtt.writing import encode

LIMIT: Final = "limit"
UNSUPPORTED: Final = "unsupported"


@final
class Subscriptions:
    """The client's wishes, kept in its session's ``filters``; ``most`` bounds them."""

    def __init__(self, hub: Hub, client: Client, state: SessionState, outgoing: Outgoing, most: int) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._filters: Final = state.filters
        self._ledger: Final = state.ledger
        self._outgoing: Final = outgoing
        self._most: Final = most
        self._consumers: Final[dict[str, MqttConsumer]] = {}

    def resume_topics(self) -> None:
        """Go on with the topics of a stored session, as far as they are still allowed."""
        client = self._client
        for topic_filter, qos in list(self._filters.items()):
            pattern = from_mqtt(topic_filter)
            if not client.grants.may_subscribe(pattern, dollar=False):
                self._hub.refuse(client, SUBSCRIBE, pattern, FORBIDDEN)
                del self._filters[topic_filter]
                if self._ledger is not None:
                    self._ledger.unwished(topic_filter)
            elif not is_queue(pattern):
                # Retained messages are for new subscriptions.
                self._hub.subscribe(client, topic_filter, MqttSubscription(pattern, qos, client, self._outgoing))

    def resume_queues(self) -> None:
        """Go on with the queues of a stored session."""
        for topic_filter, qos in self._filters.items():
            if is_queue(from_mqtt(topic_filter)):
                self._consume(topic_filter, qos)

    def subscribe(self, frame: Subscribe, *, draining: bool) -> None:
        """MQTT-116: one filter after the other, one SUBACK; then what is retained and queued."""
        client = self._client
        codes: list[int] = []
        retained: list[tuple[MqttSubscription, list[Message]]] = []
        queues: list[tuple[str, int]] = []
        for topic_filter, qos in frame.filters:
            pattern = from_mqtt(topic_filter)
            problem = DRAINING if draining else self._problem(topic_filter, pattern)
            if problem:
                self._hub.refuse(client, SUBSCRIBE, pattern, problem)
                codes.append(FAILURE)
                continue
            if is_queue(pattern):
                self._hub.queue(pattern[len(QUEUE_PREFIX) :])  # so that the next filter's is counted on top of it
                queues.append((topic_filter, qos))
            else:
                subscription = MqttSubscription(pattern, qos, client, self._outgoing)
                messages = self._hub.subscribe(client, topic_filter, subscription)
                if messages is None:
                    codes.append(FAILURE)
                    continue
                retained.append((subscription, messages))
            self._filters[topic_filter] = qos
            if self._ledger is not None:
                self._ledger.wished(topic_filter, qos)
            codes.append(qos)
        self._answer(encode(suback(frame, tuple(codes))))
        for subscription, kept in retained:
            for message in kept:
                subscription.deliver_retained(message)
        for topic_filter, qos in queues:
            self._consume(topic_filter, qos)

    def unsubscribe(self, frame: Unsubscribe) -> None:
        """MQTT-131: one filter after the other, one UNSUBACK."""
        for topic_filter in frame.filters:
            if self._filters.pop(topic_filter, None) is None:
                continue
            if self._ledger is not None:
                self._ledger.unwished(topic_filter)
            consumer = self._consumers.get(topic_filter)
            if consumer is None:
                self._hub.unsubscribe(self._client, topic_filter)
            elif consumer.leave():
                del self._consumers[topic_filter]
        self._answer(encode(unsuback(frame)))

    def dispatch(self) -> None:
        """The client may have acknowledged something, so its queues may hand out more."""
        if not self._consumers:
            return
        for channel, consumer in list(self._consumers.items()):
            if not consumer.leaving:
                consumer.queue.dispatch()
            elif consumer.leave():
                del self._consumers[channel]

    def stop_consuming(self) -> None:
        """The connection has ended."""
        for consumer in list(self._consumers.values()):
            self._hub.stop_consuming(self._client, consumer)
        self._consumers.clear()

    def _answer(self, octets: bytes) -> None:
        """Acknowledge a change, for a session that is kept once that is safe."""
        if self._ledger is None:
            self._client.outbox.put(octets)
        else:
            answer = _Answer(self._client, octets)
            self._hub.safe(answer.safe, answer.failed)

    def _problem(self, topic_filter: str, pattern: str) -> str:
        """Why a subscription is refused, or nothing."""
        if not self._client.grants.may_subscribe(pattern, dollar=False):
            return FORBIDDEN
        if is_too_deep(pattern):
            return TOO_DEEP
        if topic_filter.startswith(RESERVED) and topic_filter[1:2] not in {"", "/"}:
            return UNSUPPORTED  # MQTT-202: nothing is ever published there
        if topic_filter not in self._filters and len(self._filters) >= self._most:
            return LIMIT
        if is_queue(pattern) and not self._hub.takes_queue(pattern):
            return TOO_MANY_QUEUES
        return ""

    def _consume(self, channel: str, qos: int) -> None:
        consumer = self._consumers.get(channel)
        if consumer is not None:
            consumer.qos = qos
            consumer.leaving = False
            consumer.queue.dispatch()
            return
        queue = self._hub.queue(channel[len(QUEUE_PREFIX) :])
        consumer = MqttConsumer(self._hub, self._client, queue, self._outgoing)
        consumer.qos = qos
        self._consumers[channel] = consumer
        self._hub.consume(self._client, queue, consumer)


@final
class _Answer:
    """A SUBACK or UNSUBACK that is due when its subscriptions are safe."""

    def __init__(self, client: Client, octets: bytes) -> None:
        self._client: Final = client
        self._octets: Final = octets

    def safe(self) -> None:
        """Send it."""
        self._client.outbox.put(self._octets)

    def failed(self) -> None:
        """The client gets no answer, and may ask again."""
        self._client.counters.drop(UNAVAILABLE)
