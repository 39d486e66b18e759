"""What the hub sends to one connected MQTT client: its subscriptions, and the messages on their way to it.

With QoS 0 messages go straight to the outbox. With QoS 1 and 2 they take a packet id, as many at once as the limit of
unacknowledged messages allows, and wait in order behind that; the outbox's cap limits the bytes of both.

Where the journal remembers the session, a packet id of QoS 2 is sent only when the journal has it on disk, and so is
its PUBREL: a hub that had forgotten it would give the id to another message, and the client would take that for the
first. Messages with QoS 1 stay behind those.
"""

from collections.abc import Callable
from typing import Final, cast, final

from mypy_extensions import i64

from polywire.hub.access import SUBSCRIBE
from polywire.hub.channels import from_mqtt
from polywire.hub.client import UNENCODABLE, Client
from polywire.hub.hub import QUEUE_PREFIX, Hub, is_queue
from polywire.hub.message import Message
from polywire.hub.outbox import Outbox
from polywire.hub.peer import Refused
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.hub.work import DONE, MORE, Job
from polywire.protocols.mqtt.connection import Connection, Sender, footprint, suback, unsuback
from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.frames import (
    FAILURE,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Subscribe,
    Unsubscribe,
    check_publication,
    encode,
    publication,
)
from polywire.protocols.mqtt.kept import SessionState, sessions_of
from polywire.protocols.mqtt.topics import RESERVED, name_for

FORMS: Final = 16
"""How many slots of ``Message.encoded`` a protocol has; MQTT uses the first, for QoS 0."""


@final
class Outgoing:
    """What one client is sent."""

    def __init__(self, hub: Hub, client: Client, state: SessionState, connection: Connection) -> None:
        self._hub: Final = hub
        self._connection: Final = connection
        self._client: Final = client
        self._outbox: Final[Outbox] = client.outbox
        self._state: Final = state
        self._sessions: Final = sessions_of(hub, client.protocol)
        self._sender: Final[Sender] = state.sender
        self._forms: i64 = client.protocol * FORMS
        self._resumed = False
        self.bridge: Final = state.bridge
        self.ended = False
        self._unsafe = 0  # messages that wait for the journal
        self._outbox.keep(state.octets())

    def open(self) -> bool:
        """Whether a message with QoS 1 or 2 could be sent at once."""
        return self._resumed and self._state.waiting_octets == 0 and not self._sender.full() and not self._outbox.full()

    def roomy(self, qos: i64) -> bool:
        """Whether a queue may hand out one more."""
        if qos == 0:
            return self._outbox.takes_queued()
        return self._outbox.takes_queued() and self.open() and self._outbox.roomy()

    def resume(self) -> None:
        """MQTT-146: continue where the session's last connection ended. Until then everything waits."""
        self._resumed = True
        for frame in self._sender.resume():
            self._outbox.put(self._connection.send(frame))
        self.pump()

    def send(self, message: Message, pattern: str, qos: i64, retain: bool) -> None:  # noqa: FBT001 - as a Callable too
        """Send a topic's message, now or when the client has acknowledged enough."""
        if self.ended:  # the session is being stored, filter by filter
            self._sessions.keep_if_stored(self._state, message, pattern, qos)
            return
        if qos == 0:
            data = self._plain(message, pattern, retain=retain)
            if data:
                self._client.deliver(data, message.channel)
            else:
                self._client.counters.drop(UNENCODABLE)
            return
        frame = Publish(name_for(message.channel, pattern), message.body, qos, retain)
        if not self._fit(frame):
            self._client.counters.drop(UNENCODABLE)
        elif not self._outbox.hold(footprint(frame)):
            self._client.too_slow(message.channel)
        elif self.open():
            number = self._sender.begin(frame)
            if self._state.ledger is not None:
                self._state.ledger.send(frame.topic, message, qos, number, retain=retain)
            self._write(frame, number)
        else:
            self._state.push(frame)
            if self._state.ledger is not None:
                self._state.ledger.push(frame.topic, message, qos, retain=retain)

    def send_queued(self, delivery: Delivery, channel: str, qos: i64) -> None:
        """Send a queue's message; with QoS 0 it is done when it is written, otherwise when it is acknowledged."""
        frame = Publish(channel, delivery.message.body, qos)
        if not self._fit(frame):
            self._client.counters.drop(UNENCODABLE)
            delivery.ack()
        elif qos == 0:
            self._client.push(publication(channel, 0, retain=False, packet_id=0, payload=frame.payload))
            delivery.ack()
        else:
            size = footprint(frame)
            if not self._outbox.hold(size):
                self._outbox.keep(size)
            number = self._sender.begin(frame)
            self._state.deliveries[number] = delivery
            if qos == 2 and self._state.ledger is not None:
                self._state.ledger.lend(number)
            self._write(frame, number)

    def acknowledged(self, frame: Puback | Pubrec | Pubcomp) -> None:
        """The client has received, or released, what was sent under an id. Raises ``RemoteProtocolError``."""
        before: i64 = self._sender.octets
        answer = self._sender.acknowledged(frame)
        self._outbox.release(before - self._sender.octets)
        number = frame.packet_id
        ledger = self._state.ledger
        known = answer is not None and ledger is not None and self._sender.received(number)
        if ledger is not None:
            if known:
                ledger.received(number)
            elif answer is None:
                ledger.finished(number)
        if self._state.deliveries:
            # A queue's message is the client's from PUBREC on: it is never sent to another.
            delivery = self._state.deliveries.pop(number, None)
            if delivery is not None:
                delivery.ack()
        if answer is not None:
            if known:
                due = _Due(self, self._connection.send(answer), answer=True)
                self._hub.safe(due.write, due.write)
            else:
                self._outbox.put(self._connection.send(answer))
        if self._state.waiting_octets != 0:
            self.pump()

    def handed_over(self, message: Message) -> bool:
        """Whether the session has this message already, by another filter whose subscription is stored."""
        return self._state.handing and self._state.has_seen(message)

    def put_away(self, topic_filter: str, subscription: Subscription) -> None:
        """The connection has ended: where the session is kept, let a stored subscription take the place of one."""
        allowed = self._hub.allows(self._client.grants, subscription)
        self._sessions.put_away(self._state, topic_filter, subscription.rank, allowed=allowed)

    def pump(self) -> None:
        """Send what waits, as far as it may go."""
        state = self._state
        while self._resumed and state.waiting_octets != 0 and not self._sender.full() and not self._outbox.full():
            frame = state.pop()
            number = self._sender.begin(frame)
            if state.ledger is not None:
                state.ledger.pop(number)
            self._write(frame, number)

    def give_back(self) -> None:
        """The connection has ended: messages of queues that the client has not received go back to them."""
        self.ended = True
        deliveries = self._state.deliveries
        for number in deliveries:
            self._sender.recall(number)
        deliveries.clear()

    def due(self, octets: bytes, *, answer: bool) -> None:
        """Send what had to wait until it was on disk."""
        if not answer:
            self._unsafe -= 1
        if self.ended:
            return
        if answer:
            self._outbox.put(octets)
        else:
            self._outbox.push(octets)

    def _write(self, frame: Publish, number: int) -> None:
        """Send a message with QoS 1 or 2 for the first time, as far as is known, under its packet id."""
        self._client.counters.messages_out += 1
        if frame.dup:
            octets = encode(Publish(frame.topic, frame.payload, frame.qos, frame.retain, dup=True, packet_id=number))
        else:
            octets = publication(frame.topic, frame.qos, frame.retain, number, frame.payload)
        if self._state.ledger is not None and (frame.qos == 2 or self._unsafe > 0):
            self._unsafe += 1
            due = _Due(self, octets, answer=False)
            self._hub.safe(due.write, due.write)
        else:
            self._outbox.push(octets)

    @staticmethod
    def _fit(frame: Publish) -> bool:
        """Whether MQTT can carry it."""
        try:
            check_publication(frame.topic, frame.payload)
        except LocalProtocolError:
            return False
        return True

    def _plain(self, message: Message, pattern: str, *, retain: bool) -> bytes:
        """The whole packet with QoS 0; empty where there can be none."""
        if not retain:
            known = message.encoded.get(self._forms)
            if known is not None:
                return cast("bytes", known)
        topic = name_for(message.channel, pattern)
        try:
            data = publication(topic, 0, retain, 0, message.body)
        except LocalProtocolError:
            data = b""
        if not retain and topic is message.channel:
            message.encoded[self._forms] = data
        return data


@final
class _Due:
    """A packet that waits for the journal, but not for one that can't be written."""

    def __init__(self, outgoing: Outgoing, octets: bytes, *, answer: bool) -> None:
        self._outgoing: Final = outgoing
        self._octets: Final = octets
        self._answer: Final = answer

    def write(self) -> None:
        """Send it."""
        self._outgoing.due(self._octets, answer=self._answer)


@final
class MqttSubscription(Subscription):
    """A topic filter of a connected client. What goes to a bridge is never written as it came in."""

    def __init__(self, pattern: str, qos: int, client: Client, outgoing: Outgoing, topic_filter: str) -> None:
        protocol = -1 if outgoing.bridge else client.protocol
        super().__init__(pattern, client.outbox, client.number, protocol=protocol, rank=qos)
        self._outgoing: Final = outgoing
        self._topic_filter: Final = topic_filter

    def deliver(self, message: Message) -> None:
        """MQTT-094: as a message that is not retained. MQTT-118: with the lower QoS. MQTT-201: but to a bridge."""
        outgoing = self._outgoing
        if outgoing.handed_over(message):
            return
        if not outgoing.bridge:
            outgoing.send(message, self.pattern, min(message.qos, self.rank), retain=False)
        elif message.origin != self.group:
            outgoing.send(message, self.pattern, min(message.qos, self.rank), retain=message.retain)

    def leave(self) -> None:
        """The connection has ended."""
        self._outgoing.put_away(self._topic_filter, self)

    def deliver_retained(self, message: Message) -> None:
        """MQTT-093: because the subscription is new."""
        self._outgoing.send(message, self.pattern, min(message.qos, self.rank), retain=True)


@final
class MqttConsumer(Consumer):
    """A queue a connected client takes from, with the QoS of its subscription."""

    def __init__(self, hub: Hub, client: Client, outgoing: Outgoing) -> None:
        super().__init__()
        self._hub: Final = hub
        self._client: Final = client
        self._outgoing: Final = outgoing
        self.qos = 0

    def room(self) -> bool:
        """Whether the client can take another message."""
        return not self.leaving and self._outgoing.roomy(self.qos)

    def take(self, delivery: Delivery) -> None:
        """Send the message."""
        self._outgoing.send_queued(delivery, QUEUE_PREFIX + self.queue.name, self.qos)

    def leave(self) -> bool:
        """Take nothing more; True once there is nothing to wait for (MQTT-128)."""
        self.leaving = True
        if self.pending:
            self._client.parting.add(self)
            return False
        self._hub.stop_consuming(self._client, self)
        return True


@final
class Subscriptions:
    """What the client has subscribed to, at most ``most`` filters, kept in its session's ``filters``."""

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
            refused = self._consume(topic_filter, self._filters[topic_filter], resumed=True)
        else:
            # Retained messages are for new subscriptions.
            subscription = MqttSubscription(pattern, self._filters[topic_filter], client, self._outgoing, topic_filter)
            refused = self._hub.subscribe(client, topic_filter, subscription)
        self._sessions.give_back(self._state, topic_filter)
        if refused is not None:
            del self._filters[topic_filter]
            if self._ledger is not None:
                self._ledger.unsubscribed(topic_filter)

    def resume_queues(self) -> None:
        """Go on with the queues of a stored session."""
        for consumer in list(self._consumers.values()):
            self._hub.begin_consuming(self._client, consumer)

    def resumed(self) -> None:
        """A stored session keeps what it has. From now on the client's limit applies."""
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
            if refused is None:  # MQTT-202: nothing can be published there
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
            self._ledger.subscribed(topic_filter, qos)
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
            self._ledger.unsubscribed(topic_filter)
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

    def _consume(self, channel: str, qos: int, *, resumed: bool = False) -> Refused | None:
        """Take from a queue, from ``begin`` on. A second call for the same queue changes the QoS."""
        consumer = self._consumers.get(channel)
        if consumer is None:
            consumer = MqttConsumer(self._hub, self._client, self._outgoing)
        name = channel[len(QUEUE_PREFIX) :]
        refused = self._hub.consume(self._client, name, consumer, begin=False, resumed=resumed)
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
    """A SUBACK or UNSUBACK that is sent when its subscriptions are on disk."""

    def __init__(self, client: Client, octets: bytes) -> None:
        self._client: Final = client
        self._octets: Final = octets

    def safe(self) -> None:
        """Send it."""
        self._client.outbox.put(self._octets)

    def failed(self) -> None:
        """The client gets no answer, and may ask again."""
        self._client.counters.drop(Refused.UNAVAILABLE.label)
