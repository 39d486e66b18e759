"""What one connected MQTT client has subscribed to: topics by their filters, and queues by their channels."""

from collections.abc import Callable
from typing import Final, final

from polywire.hub.access import SUBSCRIBE
from polywire.hub.channels import from_mqtt
from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub, is_queue
from polywire.hub.refusal import Refused
from polywire.hub.work import DONE, MORE, Job
from polywire.protocols.mqtt.connection import Connection, suback, unsuback
from polywire.protocols.mqtt.frames import FAILURE, Subscribe, Unsubscribe
from polywire.protocols.mqtt.outgoing import MqttConsumer, MqttSubscription, Outgoing
from polywire.protocols.mqtt.stored import SessionState, sessions_of
from polywire.protocols.mqtt.topics import RESERVED


@final
class Subscriptions:
    """The client's wishes, kept in its session's ``filters``; ``most`` bounds them."""

    def __init__(
        self, hub: Hub, client: Client, state: SessionState, outgoing: Outgoing, connection: Connection, most: int
    ) -> None:
        self._hub: Final = hub
        self._connection: Final = connection
        self._client: Final = client
        self._state: Final = state
        self._sessions: Final = sessions_of(hub, client.protocol)
        self._filters: Final = state.filters
        self._ledger: Final = state.ledger
        self._outgoing: Final = outgoing
        self._most: Final = most
        self._consumers: Final[dict[str, MqttConsumer]] = {}

    def resume_topics(self, done: Callable[[], None]) -> None:
        """Go on with the topics of a stored session, as far as they are still allowed, and call ``done`` then."""
        self._hub.work.start(self._client.number, _Resuming(self, list(self._filters), done))

    def resume_topic(self, topic_filter: str) -> None:
        """Go on with one of them: the connection's subscription takes the place of the stored one."""
        client = self._client
        pattern = from_mqtt(topic_filter)
        if is_queue(pattern):
            refused = self._consume(topic_filter, self._filters[topic_filter])
        else:
            # Retained messages are for new subscriptions.
            subscription = MqttSubscription(pattern, self._filters[topic_filter], client, self._outgoing, topic_filter)
            refused = self._hub.subscribe(client, topic_filter, subscription)
        self._sessions.give_back(self._state, topic_filter)
        if refused is not None:
            del self._filters[topic_filter]
            if self._ledger is not None:
                self._ledger.unwished(topic_filter)

    def resume_queues(self) -> None:
        """Go on with the queues of a stored session."""
        for consumer in list(self._consumers.values()):
            self._hub.begin_consuming(self._client, consumer)

    def resumed(self) -> None:
        """What a stored session has, it keeps. From now on the client's limit holds."""
        self._client.most_subscriptions = self._most

    def subscribe(self, frame: Subscribe, *, draining: bool) -> None:
        """MQTT-116: one filter after the other, one SUBACK; then what is retained and queued."""
        self._hub.work.start(self._client.number, _Subscribing(self, frame, draining=draining))

    def subscribe_one(self, topic_filter: str, qos: int, *, draining: bool) -> int:
        """Subscribe to one filter. Returns its code in the SUBACK."""
        client = self._client
        pattern = from_mqtt(topic_filter)
        if draining:
            refused: Refused | None = self._hub.refuse(client, SUBSCRIBE, pattern, Refused.DRAINING)
        elif topic_filter.startswith(RESERVED) and topic_filter[1:2] not in {"", "/"}:
            refused = self._hub.forbids(client, SUBSCRIBE, pattern, dollar=False)
            if refused is None:  # MQTT-202: nothing is ever published there
                refused = self._hub.refuse(client, SUBSCRIBE, pattern, Refused.UNSUPPORTED)
        elif is_queue(pattern):
            refused = self._consume(topic_filter, qos)
        else:
            subscription = MqttSubscription(pattern, qos, client, self._outgoing, topic_filter)
            refused = self._hub.subscribe(client, topic_filter, subscription)
        if refused is not None:  # MQTT 3.1.1 has one answer to all of them
            return FAILURE
        self._filters[topic_filter] = qos
        if self._ledger is not None:
            self._ledger.wished(topic_filter, qos)
        return qos

    def subscribed(self, frame: Subscribe, codes: list[int]) -> None:
        """All filters are done: answer."""
        self._answer(self._connection.send(suback(frame, tuple(codes))))

    def begin(self, topic_filter: str) -> None:
        """Send what is retained for a new subscription, or what its queue holds."""
        consumer = self._consumers.get(topic_filter)
        if consumer is not None:
            self._hub.begin_consuming(self._client, consumer)
            consumer.queue.dispatch()
            return
        subscription = self._client.subscriptions.get(topic_filter)
        if subscription is not None:
            self._hub.replay(self._client, subscription)

    def unsubscribe(self, frame: Unsubscribe) -> None:
        """MQTT-131: one filter after the other, one UNSUBACK."""
        self._hub.work.start(self._client.number, _Unsubscribing(self, frame))

    def unsubscribe_one(self, topic_filter: str) -> None:
        """End the subscription to one filter, if there is one."""
        if self._filters.pop(topic_filter, None) is None:
            return
        if self._ledger is not None:
            self._ledger.unwished(topic_filter)
        consumer = self._consumers.get(topic_filter)
        if consumer is None:
            self._hub.unsubscribe(self._client, topic_filter)
        elif consumer.leave():
            del self._consumers[topic_filter]

    def unsubscribed(self, frame: Unsubscribe) -> None:
        """All filters are done: answer."""
        self._answer(self._connection.send(unsuback(frame)))

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
        """The connection has ended: what was not acknowledged returns to its queue, by ``Hub.leave``."""
        self._consumers.clear()

    def _answer(self, octets: bytes) -> None:
        """Acknowledge a change, for a session that is kept once that is safe."""
        if self._ledger is None:
            self._client.outbox.put(octets)
        else:
            answer = _Answer(self._client, octets)
            self._hub.safe(answer.safe, answer.failed)

    def _consume(self, channel: str, qos: int) -> Refused | None:
        """Take from a queue, from ``begin`` on; once more for the same: with the new QoS."""
        consumer = self._consumers.get(channel)
        if consumer is None:
            consumer = MqttConsumer(self._hub, self._client, self._outgoing)
        refused = self._hub.consume(self._client, channel[len(QUEUE_PREFIX) :], consumer, begin=False)
        if refused is None:
            consumer.qos = qos
            consumer.leaving = False
            self._consumers[channel] = consumer
        return refused


@final
class _Subscribing(Job):
    """One SUBSCRIBE, filter by filter."""

    def __init__(self, subscriptions: Subscriptions, frame: Subscribe, *, draining: bool) -> None:
        self._subscriptions: Final = subscriptions
        self._frame: Final = frame
        self._draining: Final = draining
        self._codes: Final[list[int]] = []
        self._begun = 0

    def step(self) -> int:
        """Subscribe to one filter; when all are done, begin with one."""
        filters, codes = self._frame.filters, self._codes
        if len(codes) < len(filters):
            topic_filter, qos = filters[len(codes)]
            codes.append(self._subscriptions.subscribe_one(topic_filter, qos, draining=self._draining))
            if len(codes) == len(filters):
                self._subscriptions.subscribed(self._frame, codes)
            return MORE
        if codes[self._begun] != FAILURE:
            self._subscriptions.begin(filters[self._begun][0])
        self._begun += 1
        return MORE if self._begun < len(filters) else DONE


@final
class _Unsubscribing(Job):
    """One UNSUBSCRIBE, filter by filter."""

    def __init__(self, subscriptions: Subscriptions, frame: Unsubscribe) -> None:
        self._subscriptions: Final = subscriptions
        self._frame: Final = frame
        self._ended = 0

    def step(self) -> int:
        """Unsubscribe from one filter."""
        filters = self._frame.filters
        self._subscriptions.unsubscribe_one(filters[self._ended])
        self._ended += 1
        if self._ended < len(filters):
            return MORE
        self._subscriptions.unsubscribed(self._frame)
        return DONE


@final
class _Resuming(Job):
    """The return of a stored session's subscriptions, filter by filter."""

    def __init__(self, subscriptions: Subscriptions, filters: list[str], done: Callable[[], None]) -> None:
        self._subscriptions: Final = subscriptions
        self._filters: Final = filters
        self._done: Final = done
        self._resumed = 0

    def step(self) -> int:
        """Go on with one filter."""
        if self._resumed < len(self._filters):
            self._subscriptions.resume_topic(self._filters[self._resumed])
            self._resumed += 1
        if self._resumed < len(self._filters):
            return MORE
        self._subscriptions.resumed()
        self._done()
        return DONE


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
        self._client.counters.drop(Refused.UNAVAILABLE.label)
