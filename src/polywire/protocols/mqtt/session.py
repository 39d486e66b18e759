"""The hub's side of one MQTT connection: packets in, hub operations, packets out.

Here are its handshake, what the client publishes, and its end. What it subscribes to and is sent is in ``delivery``,
what outlives the connection in ``kept``.

Plain publications with QoS 0 are forwarded as they are, in runs. Those with QoS 1 are recorded and acknowledged in
runs, all others one by one. Nothing is acknowledged before it is on disk.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, assert_never, cast, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.hub.access import PUBLISH, Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.outbox import Timer
from polywire.hub.peer import Limits, Login, Peer, Refusal, Refused
from polywire.hub.recorder import Runs
from polywire.hub.trie import name_cost
from polywire.hub.work import DONE, WAIT, Job
from polywire.protocols.mqtt.connection import Connection
from polywire.protocols.mqtt.delivery import Outgoing, Subscriptions
from polywire.protocols.mqtt.errors import RemoteProtocolError
from polywire.protocols.mqtt.frames import (
    ACCEPTED,
    BAD_USER_NAME_OR_PASSWORD,
    IDENTIFIER_REJECTED,
    MAX_HEADER,
    NOT_AUTHORIZED,
    PUBACK,
    PUBCOMP,
    PUBREC,
    SERVER_UNAVAILABLE,
    Connack,
    Connect,
    Decoder,
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
    acknowledge,
    locate,
    publications_in,
    write_acknowledgement,
)
from polywire.protocols.mqtt.kept import (
    ANOTHER,
    SESSIONS_FULL,
    TAKEN,
    WAITING,
    MqttSessions,
    SessionState,
    sessions_of,
)
from polywire.protocols.mqtt.topics import MAX_STRING, RESERVED
from polywire.wire.frame import Frame, Role, Run

LOGIN: Final = "login"
KEEP_ALIVE: Final = "MQTT-054"
WRONG_OWNER: Final = "MQTT-065"
NANOSECONDS: Final = 1_000_000_000

# What a connection is doing.
NEW: Final = 0  # no CONNECT yet
LOGGING_IN: Final = 1
CONNECTED: Final = 2
CLOSED: Final = 3  # by us, or by DISCONNECT: nothing more is handled

TOO_LARGE: Final = "MQTT-179"


@final
class MqttSession:
    """One MQTT connection, over any transport."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        largest = MAX_HEADER + 2 + min(MAX_STRING, limits.header_size) + 2 + limits.message_size
        self._connection: Final = Connection(
            Role.SERVER, max_packet=largest, max_packet_before_connect=limits.message_size_before_auth
        )
        self._sessions: Final[MqttSessions] = sessions_of(hub, client.protocol)
        self._phase: i64 = NEW
        self._draining = False
        self._ended = False
        self._connect: Connect | None = None
        self._state: SessionState | None = None
        self._incoming: Incoming | None = None
        self._outgoing: Outgoing | None = None
        self._subscriptions: Subscriptions | None = None
        self._version: i64 = 0  # what `Runs.version` is for the runs not yet handled
        self._now = 0  # when the chunk at hand came, for timestamps
        self._heard = 0  # and by the monotonic clock, for keep alive
        self._last = b""  # the newest chunk, to show where it can't be read
        self._silence = 0  # nanoseconds without a packet after which the client is gone, 0 forever
        self._alarm: Timer | None = None

    def received(self, data: bytes) -> None:
        """Handle what the peer has sent."""
        client = self._client
        client.counters.octets_in += len(data)
        if self._phase == CLOSED:
            return
        self._now = self._hub.clock()
        self._heard = self._hub.monotonic()
        self._last = data
        if self._phase == CONNECTED and not self._draining:
            view = self._hub.view(client)
            self._connection.receive_runs(data, view.current(), view.resolve, 1)
        else:
            # What it may do is not known before its login: no runs yet.
            self._connection.receive(data)
        self._version = self._hub.table.changes
        if not self._waits():
            self._handle()
        self._last = b""

    def lost(self) -> None:
        """The connection has ended."""
        self._stop()
        self._end()

    def drain(self) -> None:
        """The hub is shutting down: new clients are refused, and connected ones can publish nothing more."""
        self._draining = True
        if self._incoming is not None:
            self._incoming.draining = True

    def pending(self) -> int:
        """How many bytes of an incomplete packet are held."""
        return self._connection.pending()

    def no_room(self, reason: str) -> None:
        """MQTT-206: MQTT 3.1.1 has no packet for it."""

    def busy(self) -> bool:
        """Whether the hub owes an acknowledgement, or the client has yet to get or acknowledge what is due to it.

        What was sent with QoS 1 or 2 from a topic is the client's; what a queue gave out is not, before it says so.
        """
        state, incoming = self._state, self._incoming
        if self._phase != CONNECTED or state is None or incoming is None:
            return False
        return incoming.owes() or state.waiting_octets != 0 or len(state.deliveries) > 0

    def goodbye(self, *, expired: bool = False) -> None:  # noqa: ARG002 - MQTT 3.1.1 has no packet for either
        """Close: MQTT 3.1.1 has no closing packet for servers."""
        if self._phase != CLOSED:
            self._close()

    def timed_out(self) -> None:
        """MQTT-076: no CONNECT in time, or no data within the idle timeout: close."""
        self.goodbye()

    def go_on(self) -> None:
        """What the client has asked for is done: handle what came after it."""
        if self._phase != CLOSED and not self._waits():
            self._version = -1  # its rights may have changed meanwhile
            self._handle()

    def enter(self, who: Identity) -> int:
        """Let a client in as soon as its session is free: another connection or another node may have it."""
        frame = self._connect
        if frame is None or self._phase != LOGGING_IN:
            return DONE
        if self._sessions.must_wait(frame.client_id, self._client.number):
            return WAIT
        asked = self._sessions.asked(frame.client_id, who.name, self._client.number, clean=frame.clean_session)
        if asked == WAITING:
            return WAIT
        self._connect = None
        if asked == TAKEN:
            self._close()
        elif asked == ANOTHER or (frame.client_id and self._sessions.belongs_to_another(frame.client_id, who.name)):
            self._refuse(IDENTIFIER_REJECTED, WRONG_OWNER)
        elif not frame.clean_session and not self._sessions.admits(frame.client_id, who.name, self._limits):
            self._refuse(SERVER_UNAVAILABLE, SESSIONS_FULL)
        else:
            self._accept(frame, who)
        return DONE

    def _waits(self) -> bool:
        """Whether the login, or a large request, must be done before anything else is handled; ``go_on`` continues."""
        work = self._hub.work
        return self._phase == LOGGING_IN or (work.count != 0 and work.busy(self._client.number))

    def _handle(self) -> None:
        """Handle what has come, until something must be done first."""
        connection = self._connection
        incoming = self._incoming
        work = self._hub.work
        failure: RemoteProtocolError | None = None
        if incoming is not None:
            incoming.begin(self._now, self._version)
        try:
            while True:
                event = connection.next_event()
                if event is None:
                    break
                if isinstance(event, Run):
                    cast("Incoming", incoming).run(event)
                else:
                    if incoming is not None:
                        incoming.record()
                    self._frame(event)
                if self._phase == LOGGING_IN or (work.count != 0 and work.busy(self._client.number)):
                    break  # ``go_on`` handles the rest
                if self._phase == CLOSED:
                    break
        except RemoteProtocolError as error:
            failure = error
        incoming = self._incoming  # which a CONNECT in this chunk has brought
        if incoming is not None:
            incoming.record()
            incoming.acknowledge()
        if failure is not None and self._phase != CLOSED:
            self._fail(failure)
        elif self._subscriptions is not None and self._phase == CONNECTED:
            self._subscriptions.dispatch()

    def _frame(self, frame: Frame) -> None:
        if isinstance(frame, Publish):
            cast("Incoming", self._incoming).publish(frame)
        elif isinstance(frame, (Puback, Pubrec, Pubcomp)):
            self._acknowledged(frame)
        elif isinstance(frame, Pubrel):
            cast("Incoming", self._incoming).release(frame)
        elif isinstance(frame, Pingreq):
            self._client.outbox.put(self._connection.send(Pingresp()))
        elif isinstance(frame, Subscribe):
            cast("Subscriptions", self._subscriptions).subscribe(frame, draining=self._draining)
        elif isinstance(frame, Unsubscribe):
            cast("Subscriptions", self._subscriptions).unsubscribe(frame)
        elif isinstance(frame, Connect):
            self._log_in(frame)
        elif isinstance(frame, Disconnect):
            # MQTT-137: no will, and no more connection.
            self._hub.withdraw_wills(self._client)
            self._close()

    def _log_in(self, frame: Connect) -> None:
        if self._draining or self._hub.draining:
            self._refuse(SERVER_UNAVAILABLE, Refused.DRAINING.label)
            return
        self._phase = LOGGING_IN
        self._connect = frame
        self._peer.login(Login(frame.user_name or "", frame.password), self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        frame = self._connect
        if frame is None or self._phase != LOGGING_IN:
            return
        if isinstance(who, Refusal):
            self._connect = None
            self._refuse(NOT_AUTHORIZED if frame.user_name is None else BAD_USER_NAME_OR_PASSWORD, LOGIN)
            return
        if self._may_take_over(frame, who.name):
            self._sessions.take_over(frame.client_id)
        self._hub.work.start(self._client.number, _Entering(self, who))
        if not self._hub.work.busy(self._client.number):
            self.go_on()

    def _may_take_over(self, frame: Connect, user: str) -> bool:
        """Whether the client gets the session it asks for, so that a connection that has it now must end."""
        if not frame.client_id or self._sessions.belongs_to_another(frame.client_id, user):
            return False
        return frame.clean_session or self._sessions.admits(frame.client_id, user, self._limits)

    def _accept(self, frame: Connect, who: Identity) -> None:
        hub, client = self._hub, self._client
        state = self._sessions.claim(
            frame.client_id,
            who.name,
            self._limits,
            self._taken_over,
            clean=frame.clean_session,
            bridge=frame.bridge,
            identity=who,
        )  # MQTT-072
        incoming = Incoming(hub, client, state, self._limits.message_size, self._close)
        incoming.begin(self._now, self._version)
        outgoing = Outgoing(hub, client, state, self._connection)
        state.send = outgoing.send
        client.reach = state.reach
        subscriptions = Subscriptions(hub, client, state, outgoing, self._connection, self._limits.subscriptions)
        self._state = state
        self._incoming = incoming
        self._outgoing = outgoing
        self._subscriptions = subscriptions
        self._phase = CONNECTED
        self._peer.established()
        client.name = state.client_id
        hub.join(client)
        client.outbox.on_room = self._room
        will = frame.will
        if will is not None:
            client.counters.received += 1
            if will.topic.startswith(RESERVED):
                hub.refuse(client, PUBLISH, will.topic, Refused.SERVICE_CHANNEL, will.payload)
            else:
                message = incoming.message(will.topic, will.payload, will.qos, retain=will.retain)
                hub.leave_will(client, message, name_cost(will.topic) + message.size())
        if frame.keep_alive:
            self._silence = frame.keep_alive * NANOSECONDS * 3 // 2
            self._alarm = hub.later(frame.keep_alive * 1.5, self._listen)
        client.outbox.put(self._connection.send(Connack(state.present, ACCEPTED)))
        subscriptions.resume_topics(self._topics_resumed)

    def _topics_resumed(self) -> None:
        state = self._state
        if state is None or self._ended:
            return
        state.handed()
        hub = self._hub
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
        self._client.outbox.put(self._connection.send(Connack(session_present=False, return_code=code)))
        self._close()

    def _listen(self) -> None:
        """MQTT-054: is the client still there? One alarm at a time, set again for the time that is left."""
        self._alarm = None
        # While the hub does not read a client, the time does not count.
        heard = max(self._heard, self._peer.unread_until)
        left = self._silence - (self._hub.monotonic() - heard)
        if self._phase != CONNECTED:
            return
        if left > 0:
            self._alarm = self._hub.later(left / NANOSECONDS, self._listen)
            return
        self._client.counters.fault(KEEP_ALIVE)
        self._stop()
        self._peer.abort()

    def _taken_over(self) -> None:
        """MQTT-071: the same client has connected again."""
        self._close()
        self._end()

    def _fail(self, error: RemoteProtocolError) -> None:
        """MQTT-165: a violation ends the connection."""
        self._hub.fault(self._client, error.rule, error.reason, self._last)
        self._client.reason = error.rule
        if error.oversize:
            self._hub.oversized(self._client, error.oversize, self._limits.message_size)
        answer = self._connection.close(error)
        if answer:
            self._client.outbox.put(answer)
        self._close()

    def _close(self) -> None:
        self._stop()
        if self._incoming is not None:
            self._incoming.acknowledge()
        self._peer.close()

    def _stop(self) -> None:
        """Handle nothing more."""
        self._phase = CLOSED
        self._connection.close()
        if self._incoming is not None:
            self._incoming.stopped = True

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
            state.reach = self._client.reach
            self._sessions.part(state, self._limits)
        self._hub.leave(self._client)
        if state is not None and state.stored:
            self._hub.work.start(self._client.number, _Parted(self._sessions, state))
        # No reference cycle is left, so that all of a connection is freed at once.
        self._incoming = None
        self._outgoing = None
        self._subscriptions = None

    def _acknowledged(self, frame: Puback | Pubrec | Pubcomp) -> None:
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.acknowledged(frame)

    def _room(self) -> None:
        """Everything has been written: continue with what waits."""
        if self._phase != CONNECTED:
            return
        state = self._state
        if state is not None and state.waiting_octets != 0:
            cast("Outgoing", self._outgoing).pump()
        if self._subscriptions is not None:
            self._subscriptions.dispatch()


@final
class _Entering(Job):
    """A client whose login is done, before its session is free."""

    def __init__(self, session: MqttSession, who: Identity) -> None:
        self._session: Final = session
        self._who: Final = who

    def step(self) -> int:
        """Let it in, if that can be."""
        return self._session.enter(self._who)


@final
class _Parted(Job):
    """The end of a connection whose session is kept: all its subscriptions are stored by now."""

    def __init__(self, sessions: MqttSessions, state: SessionState) -> None:
        self._sessions: Final = sessions
        self._state: Final = state

    def step(self) -> int:
        """Let the session's next connection have it."""
        self._sessions.parted(self._state)
        return DONE


@final
class MqttRuns(Runs):
    """Where the parts of MQTT's publications are."""

    def locate(self, data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
        """Write where their topics and payloads are."""
        locate(data, start, end, base, places)

    def scan(
        self, data: bytes, routes: dict[bytes, object], resolve: Callable[[bytes], object | None]
    ) -> list[Frame | Run]:
        """Scan them again."""
        return Decoder(max_packet=len(data), role="both").feed_runs(data, routes, resolve, 1)


@final
class Incoming:
    """One connection's publications. ``close`` ends it, and sets ``stopped``: nothing more is taken then."""

    def __init__(
        self, hub: Hub, client: Client, state: SessionState, max_payload: int, close: Callable[[], None]
    ) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._state: Final = state
        self._max_payload: i64 = max_payload
        self._close: Final = close
        self._runs: Final = MqttRuns(client)
        self._acks = BytesWriter()
        self._unsafe: Final[deque[bytes]] = deque()  # acknowledgements of what is not safe yet
        self.stopped = False
        self.draining = False

    def begin(self, now: i64, version: i64) -> None:
        """Another chunk is handled: when it came, and what ``Runs.version`` is for it."""
        self._runs.now = now
        self._runs.version = version

    def owes(self) -> bool:
        """Whether the client waits for an acknowledgement."""
        return len(self._unsafe) > 0

    def run(self, run: Run) -> None:
        """Publications to one route, which the scanner found."""
        self._client.counters.received += run.count
        size: i64 = run.end - run.start
        if size <= self._max_payload and self._hub.forward(run, self._runs):
            if run.qos != 0:
                acknowledge(run.data, run.start, run.end, self._acks)
            return
        self.record()
        for frame in publications_in(run.data, run.start, run.end):
            if not self.stopped:
                self._take(frame)

    def publish(self, frame: Publish) -> None:
        """One publication."""
        self._client.counters.received += 1
        self._take(frame)

    def _take(self, frame: Publish) -> None:
        """One publication that has been counted."""
        client = self._client
        qos: i64 = frame.qos
        if self.draining:
            # Without an acknowledgement the client knows to send it again.
            client.counters.drop(Refused.DRAINING.label)
            return
        if i64(len(frame.payload)) > self._max_payload:
            client.counters.fault(TOO_LARGE)
            self._hub.oversized(client, len(frame.payload), int(self._max_payload))
            self._close()
            return
        accepted = True
        if qos != 2:
            accepted = self._pass_on(frame)
        else:
            ledger = self._state.ledger
            if self._state.receiver.published(frame).new:
                if ledger is None:
                    accepted = self._pass_on(frame)
                else:
                    # The id without the message would be a message that is taken for known, and lost.
                    ledger.together(on=True)
                    ledger.hold(cast("int", frame.packet_id))
                    accepted = self._pass_on(frame)
                    ledger.together(on=False)
        if not accepted:
            self._refuse(frame)
        elif qos != 0:
            write_acknowledgement(self._acks, PUBACK if qos == 1 else PUBREC, cast("int", frame.packet_id))

    def release(self, frame: Pubrel) -> None:
        """The client knows that a publication with QoS 2 has come."""
        self._forget(frame)
        write_acknowledgement(self._acks, PUBCOMP, frame.packet_id)

    def message(self, topic: str, body: bytes, qos: int, *, retain: bool) -> Message:
        """A message from this client."""
        return Message(topic, body, "", (), (), retain, self._runs.now, self._client.number, qos)

    def record(self) -> None:
        """Something else is about to be recorded, or nothing: record the runs before it."""
        recorder = self._hub.recorder
        if recorder is not None:
            self._runs.record(recorder)

    def acknowledge(self) -> None:
        """Acknowledge what this chunk brought, once it is safe."""
        if len(self._acks) > 0:
            self._unsafe.append(self._acks.getvalue())
            self._acks = BytesWriter()
            self._hub.safe(self._safe, self._failed, self._client)

    def _pass_on(self, frame: Publish) -> bool:
        """Give a publication to the hub. False where it can't be taken now."""
        if frame.topic.startswith(RESERVED):
            self._hub.refuse(self._client, PUBLISH, frame.topic, Refused.SERVICE_CHANNEL, frame.payload)
            return True
        message = self.message(frame.topic, frame.payload, frame.qos, retain=frame.retain)
        refused = self._hub.publish(message, self._client, acknowledged=frame.qos > 0, must_retain=False)
        return refused is None or not is_retried(refused)

    def _refuse(self, frame: Publish) -> None:
        """Refuse a message for now: MQTT 3.1.1 can only close without acknowledging it, so that it is sent again."""
        if frame.qos == 0:
            return
        if frame.qos == 2:
            # It was not accepted after all: sent again, it is a new one.
            self._forget(Pubrel(cast("int", frame.packet_id)))
        self._close()

    def _forget(self, frame: Pubrel) -> None:
        """Forget the packet id."""
        state = self._state
        state.receiver.released(frame)
        if state.ledger is not None:
            state.ledger.release(frame.packet_id)

    def _safe(self) -> None:
        """MQTT-193: what came with the oldest chunk that is not acknowledged is safe now."""
        self._client.outbox.put(self._unsafe.popleft())

    def _failed(self) -> None:
        """It is not yet: close without acknowledging it, so that it is sent again.

        It was accepted, and becomes safe when the journal can be written again: with QoS 2 it is known from now on.
        """
        self._unsafe.popleft()
        if not self.stopped:
            self._client.counters.fault(Refused.UNAVAILABLE.label)
            self._client.reason = Refused.UNAVAILABLE.label
            self._close()


def is_retried(refused: Refused) -> bool:
    """Whether the client is to send it again: then it is not acknowledged. What can't ever be taken is (MQTT 3.1.1)."""
    match refused:
        case (
            Refused.QUEUE_FULL | Refused.QUEUES_FULL | Refused.TOO_MANY_QUEUES | Refused.UNAVAILABLE | Refused.DRAINING
        ):
            return True
        case (
            Refused.FORBIDDEN
            | Refused.SERVICE_CHANNEL
            | Refused.UNSUPPORTED
            | Refused.TOO_DEEP
            | Refused.RETAINED_FULL
            | Refused.LIMIT
            | Refused.PATTERN_COST
            | Refused.NAMES_SIZE
            | Refused.WATCHERS
            | Refused.WILLS_SIZE
        ):
            return False
        case _:
            assert_never(refused)
