"""What outlives an MQTT connection: sessions, those of clients that are away included.

``MqttSessions`` is the hub's one book of them, by client id. A session that its client wants kept stays here while
the client is away, with subscriptions that store what is published with QoS 1 and 2. Nothing ends it but its client,
or the bounds: the session that has been away longest makes room for the next.
"""

from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final, cast, final

from mypy_extensions import i64, mypyc_attr

from polywire.hub.channels import from_mqtt
from polywire.hub.counters import Counters
from polywire.hub.hub import Hub, is_queue
from polywire.hub.message import Message
from polywire.hub.outbox import Nowhere, Outbox
from polywire.hub.peer import Limits
from polywire.hub.queues import Delivery
from polywire.hub.routes import Subscription
from polywire.protocols.frame import Frame
from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.flows import OVERHEAD, Receiver, Sender, footprint
from polywire.protocols.mqtt.ledger import Ledger, end_session
from polywire.protocols.mqtt.packets import Publish, Pubrel
from polywire.protocols.mqtt.topics import name_for
from polywire.protocols.mqtt.writing import check_publication

SHARED: Final = "mqtt"
"""Where the hub keeps the book, in ``Hub.shared``."""

MAX_SESSION_OCTETS: Final = 16 * 1024 * 1024
MAX_OCTETS: Final = 256 * 1024 * 1024
"""What may be stored for one client that is away, and for all of them, as ``flows.footprint`` counts."""

OFFLINE_FULL: Final = "offline-full"
SESSION_EXPIRED: Final = "session-expired"
UNENCODABLE: Final = "unencodable"


@final
@mypyc_attr(acyclic=True)
class Snapshot(Frame):
    """All there is to know of a session that is kept, as a value.

    The names are those of a ``Ledger``: of the packets in ``unfinished`` by their ids, and of those in ``waiting``.
    """

    __match_args__: ClassVar[tuple[str, ...]] = (
        "client_id",
        "user",
        "filters",
        "unfinished",
        "held",
        "waiting",
        "sent_names",
        "waiting_names",
    )

    def __init__(
        self,
        client_id: str,
        user: str,
        filters: tuple[tuple[str, int], ...],
        unfinished: tuple[Publish | Pubrel, ...],
        held: frozenset[int],
        waiting: tuple[Publish, ...],
        sent_names: tuple[tuple[int, int], ...] = (),
        waiting_names: tuple[int, ...] = (),
    ) -> None:
        self.client_id: Final = client_id
        self.user: Final = user
        self.filters: Final = filters
        self.unfinished: Final = unfinished
        self.held: Final = held
        self.waiting: Final = waiting
        self.sent_names: Final = sent_names
        self.waiting_names: Final = waiting_names


@final
class SessionState:
    """One session: its subscriptions with their QoS, the flows both ways, and what waits to be sent.

    ``deliveries`` are the queues' messages among the packets in flight, which stay the queues'. ``end`` ends the
    connection that has the session at the moment.
    """

    def __init__(self, client_id: str, user: str, sender: Sender, receiver: Receiver) -> None:
        self.client_id: Final = client_id
        self.user: Final = user
        self.sender: Final = sender
        self.receiver: Final = receiver
        self.clean = True
        self.present = False
        self.filters: Final[dict[str, int]] = {}
        self.waiting: Final[deque[Publish]] = deque()
        self.waiting_octets: i64 = 0
        self.deliveries: Final[dict[int, Delivery]] = {}
        self.end: Callable[[], None] | None = None
        self.away: list[Subscription] = []
        self.most = 0
        self.ledger: Ledger | None = None

    def octets(self) -> i64:
        """About what its messages take."""
        return self.waiting_octets + self.sender.octets

    def push(self, frame: Publish) -> None:
        """Let one more message wait."""
        self.waiting.append(frame)
        self.waiting_octets += footprint(frame)

    def pop(self) -> Publish:
        """The message that has waited longest."""
        frame = self.waiting.popleft()
        self.waiting_octets -= footprint(frame)
        return frame

    def trim(self) -> int:
        """Keep no more than may wait for a client that is away. Returns how many newer messages that cost."""
        cost = 0
        while self.waiting and (len(self.waiting) > self.most or self.waiting_octets > MAX_SESSION_OCTETS):
            self.waiting_octets -= footprint(self.waiting.pop())
            cost += 1
        if self.ledger is not None:
            self.ledger.drop(cost)
        return cost

    def snapshot(self) -> Snapshot:
        """The session as a value."""
        unfinished = [
            frame
            for frame in self.sender.resume()
            if isinstance(frame, Pubrel) or cast("int", frame.packet_id) not in self.deliveries
        ]
        return Snapshot(
            self.client_id,
            self.user,
            tuple(self.filters.items()),
            tuple(unfinished),
            self.receiver.held(),
            tuple(self.waiting),
        )


@final
class AwaySubscription(Subscription):
    """What a client that is away has subscribed to."""

    def __init__(self, pattern: str, qos: int, state: SessionState, group: int, sessions: "MqttSessions") -> None:
        super().__init__(
            pattern, sessions.nowhere, group, protocol=sessions.protocol, rank=qos, counted=False, away=True
        )
        self._state: Final = state
        self._sessions: Final = sessions

    def deliver(self, message: Message) -> None:
        """MQTT-034: store it, unless it is one with QoS 0."""
        qos = min(message.qos, self.rank)
        if qos > 0:
            self._sessions.keep(self._state, message, self.pattern, qos)


@final
class MqttSessions:
    """All sessions of a hub: ``live`` ones have a connection, ``stored`` ones wait for their client's return."""

    def __init__(self, hub: Hub, protocol: int) -> None:
        self._hub: Final = hub
        self._counters: Final[Counters] = hub.counters[protocol]
        self.protocol: Final = protocol
        self.nowhere: Final = Outbox(Nowhere(), hub.flusher)
        self.live: Final[dict[str, SessionState]] = {}
        self.stored: Final[dict[str, SessionState]] = {}
        self.octets: i64 = 0
        self._last_away = 0
        self._last_name = 0

    def claim(self, client_id: str, user: str, limits: Limits, end: Callable[[], None], *, clean: bool) -> SessionState:
        """The session a client that connects is to have. Ask ``belongs_to_another`` first.

        MQTT-071: whoever has it at the moment is disconnected.
        """
        if not client_id:
            client_id = self._own_name()
        live = self.live.get(client_id)
        if live is not None and live.end is not None:
            live.end()
        state = self._take(client_id)
        recorder = self._hub.recorder
        if recorder is not None and clean and state is not None:
            end_session(recorder, self.protocol, client_id)
        if state is None or clean:
            sender = Sender(max_in_flight=limits.in_flight)
            state = SessionState(client_id, user, sender, Receiver(max_held=limits.in_flight))
        else:
            state.present = True
        if recorder is not None and not clean:
            if state.ledger is None:
                state.ledger = Ledger(recorder, self.protocol, client_id)
            state.ledger.begin(user, anew=not state.present)
        state.clean = clean
        state.end = end
        self.live[client_id] = state
        return state

    def belongs_to_another(self, client_id: str, user: str) -> bool:
        """Whether another user has a session under this client id."""
        state = self.live.get(client_id) or self.stored.get(client_id)
        return state is not None and state.user != user

    def part(self, state: SessionState, limits: Limits) -> None:
        """A session's connection has ended: store what is to be kept."""
        state.end = None
        if self.live.get(state.client_id) is state:
            del self.live[state.client_id]
        if state.clean or limits.sessions == 0:
            if state.ledger is not None:
                state.ledger.end()
            return
        while len(self.stored) >= limits.sessions:
            self._expire()
        state.most = limits.offline_messages
        self._store(state)
        while self.octets > MAX_OCTETS and self.stored:
            self._expire()

    def keep(self, state: SessionState, message: Message, pattern: str, qos: int) -> None:
        """Store a message for a client that is away, if there is room."""
        topic = name_for(message.channel, pattern)
        size: i64 = OVERHEAD + i64(len(topic)) + i64(len(message.body))
        if (
            len(state.waiting) >= state.most
            or state.waiting_octets + size > MAX_SESSION_OCTETS
            or self.octets + size > MAX_OCTETS
        ):
            self._counters.drop(OFFLINE_FULL)
            return
        try:
            check_publication(topic, message.body)
        except LocalProtocolError:
            self._counters.drop(UNENCODABLE)
            return
        state.push(Publish(topic, message.body, qos))
        if state.ledger is not None:
            state.ledger.push(topic, message, qos, retain=False)
        self.octets += size

    def snapshot(self) -> list[Snapshot]:
        """All sessions that are to be kept, the stored ones in the order in which they would expire."""
        kept = [state for state in self.live.values() if not state.clean]
        return [state.snapshot() for state in [*self.stored.values(), *kept]]

    def restore(self, snapshot: Snapshot, limits: Limits) -> None:
        """Store a session that an earlier life of the hub had."""
        sender = Sender(max_in_flight=limits.in_flight, unfinished=snapshot.unfinished)
        receiver = Receiver(max_held=limits.in_flight, held=snapshot.held)
        state = SessionState(snapshot.client_id, snapshot.user, sender, receiver)
        state.clean = False
        if self._hub.recorder is not None:
            state.ledger = Ledger(
                self._hub.recorder, self.protocol, snapshot.client_id, snapshot.waiting_names, snapshot.sent_names
            )
        state.filters.update(snapshot.filters)
        for frame in snapshot.waiting:
            state.push(frame)
        self.part(state, limits)

    def _store(self, state: SessionState) -> None:
        cost = state.trim()
        if cost:
            self._counters.drop(OFFLINE_FULL, cost)
        self.stored[state.client_id] = state
        self.octets += state.octets()
        self._last_away -= 1
        for topic_filter, qos in state.filters.items():
            pattern = from_mqtt(topic_filter)
            if qos > 0 and not is_queue(pattern):
                subscription = AwaySubscription(pattern, qos, state, self._last_away, self)
                state.away.append(subscription)
                self._hub.table.add(subscription)

    def _take(self, client_id: str) -> SessionState | None:
        state = self.stored.pop(client_id, None)
        if state is not None:
            self.octets -= state.octets()
            for subscription in state.away:
                self._hub.table.discard(subscription)
            state.away = []
        return state

    def _expire(self) -> None:
        """The session that has been away longest makes room."""
        state = self._take(next(iter(self.stored)))
        if state is not None:
            if state.ledger is not None:
                state.ledger.end()
            self._counters.drop(SESSION_EXPIRED, len(state.waiting) + state.sender.in_flight())

    def _own_name(self) -> str:
        """MQTT-062: a client id nobody else has."""
        while True:
            self._last_name += 1
            name = f"polywire-{self._last_name}"
            if name not in self.live and name not in self.stored:
                return name


def sessions_of(hub: Hub, protocol: int) -> MqttSessions:
    """The hub's book of MQTT sessions, made when the first session asks for it."""
    found = hub.shared.get(SHARED)
    if isinstance(found, MqttSessions):
        return found
    sessions = MqttSessions(hub, protocol)
    hub.shared[SHARED] = sessions
    return sessions
