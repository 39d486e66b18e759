"""Messages on their way to one connected MQTT client.

With QoS 0 they go straight to the outbox. With QoS 1 and 2 they take a packet id, as many at once as the limit of
unacknowledged messages allows, and wait in order behind that; the outbox's cap bounds the octets of both.

Where the journal remembers the session, a packet id of QoS 2 is sent when the journal has it for sure, and so is its
PUBREL: a hub that had forgotten it would give the id to another message, and the client would take that for the first.
Messages with QoS 1 stay behind those.
"""

from typing import Final, cast, final

from mypy_extensions import i64

from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.message import Message
from polywire.hub.outbox import Outbox
from polywire.hub.queues import Consumer, Delivery
from polywire.hub.routes import Subscription
from polywire.protocols.mqtt.connection import Connection, Sender, footprint
from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.frames import Puback, Pubcomp, Publish, Pubrec, check_publication, encode, publication
from polywire.protocols.mqtt.stored import UNENCODABLE, SessionState, sessions_of
from polywire.protocols.mqtt.topics import name_for

FORMS: Final = 16
"""How many slots of ``Message.encoded`` a protocol has; MQTT uses the first, for QoS 0."""

SLOW_READER: Final = "slow-reader"


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
        """MQTT-146: go on where the session's last connection ended. Until then everything waits."""
        self._resumed = True
        for frame in self._sender.resume():
            self._outbox.put(self._connection.send(frame))
        self.pump()

    def send(self, message: Message, pattern: str, qos: i64, retain: bool) -> None:
        """Send a topic's message, now or when the client has acknowledged enough."""
        outbox = self._outbox
        if self.ended:  # the session is being stored, filter by filter
            self._sessions.keep_if_stored(self._state, message, pattern, qos)
            return
        if qos == 0:
            data = self._plain(message, pattern, retain)
            if not data:
                self._client.counters.drop(UNENCODABLE)
            elif outbox.offer(data):
                self._client.counters.messages_out += 1
            else:
                self._dropped(message)
            return
        frame = Publish(name_for(message.channel, pattern), message.body, qos, retain)
        if not self._fit(frame):
            self._client.counters.drop(UNENCODABLE)
        elif not outbox.hold(footprint(frame)):
            self._dropped(message)
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
            self._outbox.push(publication(channel, 0, False, 0, frame.payload))
            self._client.counters.messages_out += 1
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
        """The client has got, or let go of, what was sent under an id. Raises ``RemoteProtocolError``."""
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
            # A queue's message is the client's from PUBREC on: whatever happens, it is not sent to another.
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
        """The connection has ended: the queues' messages the client has not got are theirs again."""
        self.ended = True
        deliveries = self._state.deliveries
        for number in deliveries:
            self._sender.recall(number)
        deliveries.clear()

    def due(self, octets: bytes, *, answer: bool) -> None:
        """What was not to be sent before it is safe can be."""
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
            octets = encode(Publish(frame.topic, frame.payload, frame.qos, frame.retain, True, number))
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

    def _plain(self, message: Message, pattern: str, retain: bool) -> bytes:
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

    def _dropped(self, message: Message) -> None:
        self._client.counters.drop(SLOW_READER)
        self._outbox.count_dropped(message.channel, 1)


@final
class _Due:
    """A packet that waits for the journal; if that can't be written, it does not wait any longer."""

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
            outgoing.send(message, self.pattern, min(message.qos, self.rank), False)
        elif message.origin != self.group:
            outgoing.send(message, self.pattern, min(message.qos, self.rank), message.retain)

    def leave(self) -> None:
        """The connection has ended."""
        self._outgoing.put_away(self._topic_filter, self)

    def deliver_retained(self, message: Message) -> None:
        """MQTT-093: because the subscription is new."""
        self._outgoing.send(message, self.pattern, min(message.qos, self.rank), True)


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
        """Whether the client keeps up."""
        return not self.leaving and self._outgoing.roomy(self.qos)

    def take(self, delivery: Delivery) -> None:
        """Send the message."""
        self._outgoing.send_queued(delivery, QUEUE_PREFIX + self.queue.name, self.qos)

    def leave(self) -> bool:
        """Take nothing more; True once there is nothing to wait for (MQTT-128)."""
        self.leaving = True
        if self.pending:
            return False
        self._hub.stop_consuming(self._client, self)
        return True
