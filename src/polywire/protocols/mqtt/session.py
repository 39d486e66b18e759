"""MQTT on the hub's side of one connection: packets in, hub operations, packets out.

Plain publications with QoS 0 go through as they are, in runs; those with QoS 1 are recorded and acknowledged in runs;
everything else is looked at packet by packet. What outlives the connection is in ``stored``, what is on its way to the
client in ``outgoing``, and what the client wants in ``subscriptions``.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, cast, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.hub.access import Identity
from polywire.hub.client import Client
from polywire.hub.hub import DRAINING, QUEUE_FULL, SERVICE_CHANNEL, TOO_MANY_QUEUES, UNAVAILABLE, Hub
from polywire.hub.message import Message
from polywire.hub.outbox import Timer
from polywire.hub.peer import Limits, Login, Peer, Refusal
from polywire.hub.recorder import Recorder
from polywire.hub.routes import Route
from polywire.hub.runs import Runs
from polywire.protocols.frame import Frame, Run
from polywire.protocols.mqtt.errors import RemoteProtocolError
from polywire.protocols.mqtt.frames import MAX_HEADER, Decoder, acknowledge, locate, publications_in
from polywire.protocols.mqtt.outgoing import SLOW_READER, Outgoing
from polywire.protocols.mqtt.packets import (
    ACCEPTED,
    BAD_USER_NAME_OR_PASSWORD,
    IDENTIFIER_REJECTED,
    MAX_OCTETS,
    NOT_AUTHORIZED,
    PUBACK,
    PUBCOMP,
    PUBREC,
    SERVER_UNAVAILABLE,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from polywire.protocols.mqtt.stored import MqttSessions, SessionState, sessions_of
from polywire.protocols.mqtt.subscriptions import Subscriptions
from polywire.protocols.mqtt.topics import RESERVED
from polywire.protocols.mqtt.writing import encode, write_acknowledgement

LOGIN: Final = "login"
KEEP_ALIVE: Final = "MQTT-054"
TOO_LARGE: Final = "MQTT-179"
WRONG_OWNER: Final = "MQTT-065"
NANOSECONDS: Final = 1_000_000_000
NO_ROOM: Final = (QUEUE_FULL, TOO_MANY_QUEUES, UNAVAILABLE)

PINGRESP: Final = encode(Pingresp())

# What a connection is doing.
NEW: Final = 0  # no CONNECT yet
LOGGING_IN: Final = 1
CONNECTED: Final = 2
CLOSED: Final = 3  # by us, or by DISCONNECT: nothing more is handled


@final
class MqttRuns(Runs):
    """What MQTT's publications look like."""

    def locate(self, data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
        """Where their topics and payloads stand."""
        locate(data, start, end, base, places)


@final
class MqttSession:
    """One MQTT connection, over whatever carries octets."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        self._max_payload: i64 = limits.message_size
        largest = MAX_HEADER + 2 + min(MAX_OCTETS, limits.header_size) + 2 + limits.message_size
        self._decoder: Final = Decoder(max_packet=largest, max_packet_before_connect=limits.message_size_before_auth)
        self._sessions: Final[MqttSessions] = sessions_of(hub, client.protocol)
        self._phase: i64 = NEW
        self._draining = False
        self._ended = False
        self._connect: Connect | None = None
        self._early: Sequence[object] = ()  # what came in one chunk with CONNECT, until the login is done
        self._early_failure: RemoteProtocolError | None = None
        self._state: SessionState | None = None
        self._outgoing: Outgoing | None = None
        self._subscriptions: Subscriptions | None = None
        self._acks = BytesWriter()
        self._runs: Final = MqttRuns(client)
        self._unsafe: Final[deque[bytes]] = deque()  # acknowledgements of what is not safe yet
        self._now = 0
        self._last = b""  # the newest chunk, to show where it can't be read
        self._silence = 0  # nanoseconds without a packet after which the client is gone, 0 for ever
        self._alarm: Timer | None = None

    def received(self, data: bytes) -> None:
        """Handle what the peer has sent."""
        client = self._client
        client.counters.octets_in += len(data)
        if self._phase == CLOSED:
            return
        self._now = self._hub.clock()
        self._last = data
        items: Sequence[object]
        failure: RemoteProtocolError | None = None
        version = self._hub.table.version
        try:
            if self._phase == CONNECTED and not self._draining:
                view = self._hub.view(client)
                items = self._decoder.feed_runs(data, view.current(), view.resolve, 1)
                version = self._hub.table.version
            else:
                # What it may do is not known before its login: no runs yet.
                items = self._decoder.feed(data)
        except RemoteProtocolError as error:
            items = error.frames
            version = self._hub.table.version
            failure = error
        self._handle(items, version, failure)
        self._last = b""

    def lost(self) -> None:
        """The connection has ended, for whatever reason."""
        self._phase = CLOSED
        self._end()

    def drain(self) -> None:
        """The hub is going down: who connects is told so, who is connected can send nothing new."""
        self._draining = True

    def busy(self) -> bool:
        """Whether the hub owes an acknowledgement, or the client has yet to get or acknowledge what is due to it.

        What was sent with QoS 1 or 2 from a topic is the client's; what a queue gave out is not, before it says so.
        """
        state = self._state
        if self._phase != CONNECTED or state is None:
            return False
        return len(self._unsafe) > 0 or state.waiting_octets != 0 or len(state.deliveries) > 0

    def goodbye(self, *, expired: bool = False) -> None:  # noqa: ARG002 - MQTT 3.1.1 has no words for either
        """Close: MQTT 3.1.1 gives a server no last words."""
        if self._phase != CLOSED:
            self._close()

    def timed_out(self) -> None:
        """MQTT-076: no CONNECT in time, or nothing heard for too long: close."""
        self.goodbye()

    def _handle(self, items: Sequence[object], version: i64, failure: RemoteProtocolError | None) -> None:
        index: i64 = 0
        recorder = self._hub.recorder
        try:
            for item in items:
                index += 1
                if isinstance(item, Run):
                    # A subscription earlier in this chunk may have changed the routes the scanner found.
                    self._run(item, same=self._hub.table.version == version)
                else:
                    if recorder is not None:
                        self._runs.record(recorder, self._now)
                    self._frame(cast("Frame", item))
                if self._phase == LOGGING_IN:
                    self._early = items[index:]
                    self._early_failure = failure
                    return
                if self._phase == CLOSED:
                    break
        except RemoteProtocolError as error:
            failure = error
        if recorder is not None:
            self._runs.record(recorder, self._now)
        if len(self._acks) > 0:
            self._send_acks()
        if failure is not None and self._phase != CLOSED:
            self._fail(failure)
        elif self._subscriptions is not None and self._phase == CONNECTED:
            self._subscriptions.dispatch()

    def _frame(self, frame: Frame) -> None:
        if isinstance(frame, Publish):
            self._publish(frame)
        elif isinstance(frame, (Puback, Pubrec, Pubcomp)):
            self._acknowledged(frame)
        elif isinstance(frame, Pubrel):
            state = cast("SessionState", self._state)
            state.receiver.released(frame)
            if state.ledger is not None:
                state.ledger.release(frame.packet_id)
            write_acknowledgement(self._acks, PUBCOMP, frame.packet_id)
        elif isinstance(frame, Pingreq):
            self._client.outbox.put(PINGRESP)
        elif isinstance(frame, Subscribe):
            cast("Subscriptions", self._subscriptions).subscribe(frame, draining=self._draining)
        elif isinstance(frame, Unsubscribe):
            cast("Subscriptions", self._subscriptions).unsubscribe(frame)
        elif isinstance(frame, Connect):
            self._log_in(frame)
        elif isinstance(frame, Disconnect):
            # MQTT-137: no will, and no more connection.
            self._client.wills.clear()
            self._close()

    def _log_in(self, frame: Connect) -> None:
        if self._draining or self._hub.draining:
            self._refuse(SERVER_UNAVAILABLE, DRAINING)
            return
        self._phase = LOGGING_IN
        self._connect = frame
        self._peer.login(Login(frame.user_name or "", frame.password), self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        frame = self._connect
        if frame is None or self._phase != LOGGING_IN:
            return
        self._connect = None
        if isinstance(who, Refusal):
            self._refuse(NOT_AUTHORIZED if frame.user_name is None else BAD_USER_NAME_OR_PASSWORD, LOGIN)
        elif frame.client_id and self._sessions.belongs_to_another(frame.client_id, who.name):
            self._refuse(IDENTIFIER_REJECTED, WRONG_OWNER)
        else:
            self._accept(frame, who.name)
        early = self._early
        failure = self._early_failure
        self._early = ()
        self._early_failure = None
        if self._phase == CONNECTED and (early or failure is not None):
            self._handle(early, self._hub.table.version, failure)

    def _accept(self, frame: Connect, user: str) -> None:
        hub, client = self._hub, self._client
        state = self._sessions.claim(
            frame.client_id, user, self._limits, self._taken_over, clean=frame.clean_session
        )  # MQTT-072
        outgoing = Outgoing(hub, client, state)
        subscriptions = Subscriptions(hub, client, state, outgoing, self._limits.subscriptions)
        self._state = state
        self._outgoing = outgoing
        self._subscriptions = subscriptions
        self._phase = CONNECTED
        self._peer.established()
        client.name = state.client_id
        hub.join(client)
        client.outbox.on_room = self._room
        will = frame.will
        if will is not None and will.topic.startswith(RESERVED):
            client.counters.drop(SERVICE_CHANNEL)
        elif will is not None:
            client.wills[will.topic] = self._message(will.topic, will.payload, will.qos, will.retain)
        if frame.keep_alive:
            self._silence = frame.keep_alive * NANOSECONDS * 3 // 2
            self._alarm = hub.later(frame.keep_alive * 1.5, self._listen)
        client.outbox.put(encode(Connack(state.present, ACCEPTED)))
        subscriptions.resume_topics()
        if state.ledger is None:
            self._resume()
        else:  # nothing of the session is sent again before it is safe, as nothing of it was sent for the first time
            hub.safe(self._resume, self._resume)

    def _resume(self) -> None:
        """Go on with what the session's last connection left."""
        outgoing, subscriptions = self._outgoing, self._subscriptions
        if outgoing is not None and subscriptions is not None and not outgoing.ended:
            outgoing.resume()
            subscriptions.resume_queues()

    def _refuse(self, code: int, reason: str) -> None:
        self._client.counters.fault(reason)
        self._client.outbox.put(encode(Connack(False, code)))
        self._close()

    def _listen(self) -> None:
        """MQTT-054: is the client still there? One alarm at a time, set anew for what is left of the silence."""
        self._alarm = None
        # A client the hub does not read can't be heard: that time does not count.
        heard = max(self._now, self._peer.unread_until)
        left = self._silence - (self._hub.clock() - heard)
        if self._phase != CONNECTED:
            return
        if left > 0:
            self._alarm = self._hub.later(left / NANOSECONDS, self._listen)
            return
        self._client.counters.fault(KEEP_ALIVE)
        self._phase = CLOSED
        self._peer.abort()

    def _taken_over(self) -> None:
        """MQTT-071: the same client has connected anew."""
        self._close()
        self._end()

    def _fail(self, error: RemoteProtocolError) -> None:
        """MQTT-165: a violation ends the connection."""
        self._hub.fault(self._client, error.rule, error.reason, self._last)
        self._client.reason = error.rule
        reply = error.reply
        if isinstance(reply, Frame):
            self._client.outbox.put(encode(reply))
        self._close()

    def _close(self) -> None:
        self._phase = CLOSED
        if len(self._acks) > 0:
            self._send_acks()
        self._peer.close()

    def _end(self) -> None:
        """Undo everything, once."""
        if self._ended:
            return
        self._ended = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._client.outbox.on_room = None
        state = self._state
        if state is not None:
            cast("Outgoing", self._outgoing).give_back()
            cast("Subscriptions", self._subscriptions).stop_consuming()
            # Before the will, which may be for the session itself.
            self._sessions.part(state, self._limits)
        now = self._hub.clock()
        for topic, will in list(self._client.wills.items()):
            self._client.wills[topic] = Message(
                topic, will.body, retain=will.retain, time=now, origin=will.origin, qos=will.qos
            )
        self._hub.leave(self._client)

    def _run(self, run: Run, *, same: bool) -> None:
        client = self._client
        size: i64 = run.end - run.start
        recorder = self._hub.recorder
        failed = recorder is not None and recorder.failed
        if not same or size > self._max_payload or (failed and (run.qos != 0 or self._hub.strict)):
            if recorder is not None:
                self._runs.record(recorder, self._now)
            for frame in publications_in(run.data, run.start, run.end):
                if self._phase == CONNECTED:
                    self._publish(frame)
            return
        if recorder is not None:
            self._runs.add(run, recorder, self._now)
        if run.qos != 0:
            self._confirmed_run(run, recorder)
            return
        refused = self._hub.forward(run, client)
        cooked = cast("Route", run.route).cooked(client.protocol)
        if not cooked and not refused:
            return
        offset: i64 = -1
        if recorder is not None and cooked:
            offset = self._runs.record(recorder, self._now) - run.count
        for frame in publications_in(run.data, run.start, run.end):
            for outbox in refused:
                outbox.count_dropped(frame.topic, 1)
            if cooked:
                message = self._message(frame.topic, frame.payload, 0, False)
                if offset >= 0:
                    message.offset = offset
                    offset += 1
                for subscription in cooked:
                    subscription.deliver(message)
        if refused:
            client.counters.drop(SLOW_READER, run.count * len(refused))

    def _confirmed_run(self, run: Run, recorder: Recorder | None) -> None:
        """Pass on publications with QoS 1, where anybody wants them, and acknowledge them all."""
        self._client.counters.messages_in += run.count
        subscriptions = cast("Route", run.route).subscriptions
        if subscriptions:
            offset: i64 = -1
            if recorder is not None:
                offset = self._runs.record(recorder, self._now) - run.count
            for frame in publications_in(run.data, run.start, run.end):
                message = self._message(frame.topic, frame.payload, 1, False)
                if offset >= 0:
                    message.offset = offset
                    offset += 1
                for subscription in subscriptions:
                    subscription.deliver(message)
        acknowledge(run.data, run.start, run.end, self._acks)

    def _message(self, topic: str, body: bytes, qos: int, retain: bool) -> Message:
        return Message(topic, body, "", (), (), retain, self._now, self._client.number, qos)

    def _publish(self, frame: Publish) -> None:
        client = self._client
        qos: i64 = frame.qos
        if self._draining:
            # Without an acknowledgement the client knows to send it again.
            client.counters.drop(DRAINING)
            return
        if i64(len(frame.payload)) > self._max_payload:
            client.counters.fault(TOO_LARGE)
            self._close()
            return
        accepted = True
        if qos != 2:
            accepted = self._pass_on(frame)
        else:
            state = cast("SessionState", self._state)
            ledger = state.ledger
            if state.receiver.published(frame).new:
                if ledger is None:
                    accepted = self._pass_on(frame)
                else:
                    # The id without the message would be a message that is taken for known, and lost.
                    ledger.together(True)
                    ledger.hold(cast("int", frame.packet_id))
                    accepted = self._pass_on(frame)
                    ledger.together(False)
        if not accepted:
            self._refuse_publication(frame)
        elif qos != 0:
            write_acknowledgement(self._acks, PUBACK if qos == 1 else PUBREC, cast("int", frame.packet_id))

    def _pass_on(self, frame: Publish) -> bool:
        """Give a publication to the hub. False where it can't be taken now."""
        if frame.topic.startswith(RESERVED):
            self._client.counters.drop(SERVICE_CHANNEL)
            return True
        message = self._message(frame.topic, frame.payload, frame.qos, frame.retain)
        refused = self._hub.publish(message, self._client, acknowledged=frame.qos > 0)
        return refused is None or refused not in NO_ROOM

    def _refuse_publication(self, frame: Publish) -> None:
        """What can't be taken now: MQTT 3.1.1 says so by not acknowledging, and closing, so that it is sent again."""
        if frame.qos == 0:
            return
        if frame.qos == 2:
            self._forget(cast("int", frame.packet_id))
        self._close()

    def _forget(self, packet_id: int) -> None:
        """A QoS 2 message was not accepted after all: sent again, it is a new one."""
        state = self._state
        if state is not None:
            state.receiver.released(Pubrel(packet_id))
            if state.ledger is not None:
                state.ledger.release(packet_id)

    def _send_acks(self) -> None:
        """Acknowledge what this chunk brought, once it is safe."""
        self._unsafe.append(self._acks.getvalue())
        self._acks = BytesWriter()
        self._hub.safe(self._safe, self._failed)

    def _safe(self) -> None:
        """MQTT-193: what came with the oldest chunk that is not acknowledged is safe now."""
        self._client.outbox.put(self._unsafe.popleft())

    def _failed(self) -> None:
        """It is not yet: close without acknowledging it, so that it is sent again.

        It was accepted, and becomes safe when the journal can be written again: with QoS 2 it is known from now on.
        """
        self._unsafe.popleft()
        if self._phase != CLOSED:
            self._client.counters.fault(UNAVAILABLE)
            self._client.reason = UNAVAILABLE
            self._phase = CLOSED
            self._peer.close()

    def _acknowledged(self, frame: Puback | Pubrec | Pubcomp) -> None:
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.acknowledged(frame)

    def _room(self) -> None:
        """Everything has been written: go on with what waits."""
        if self._phase != CONNECTED:
            return
        state = self._state
        if state is not None and state.waiting_octets != 0:
            cast("Outgoing", self._outgoing).pump()
        if self._subscriptions is not None:
            self._subscriptions.dispatch()
