"""What outlives an MQTT connection: sessions, with what is stored for offline clients.

``MqttSessions`` is the hub's registry of sessions, by client id. A persistent session stays here while the client is
offline, with subscriptions that store what is published with QoS 1 and 2. It ends when its client ends it, when the
client has been offline for too long, or when its own user needs the space for another: a user's sessions are never
removed for those of another user.

``Ledger`` writes what the journal must know about a persistent session, so that it outlives the hub. Each message due
to the session has a row of its own, whose offset is the delivery's name from then on: later rows refer to it by that
name. The messages of queues stay in their queues; of them only the use of a QoS 2 packet id is recorded, under a
negative name made of the id.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, cast, final

import msgspec.msgpack
from mypy_extensions import i64, mypyc_attr

from polywire.hub.access import NOTHING, Grants, Identity
from polywire.hub.channels import from_mqtt
from polywire.hub.client import UNENCODABLE, Counters
from polywire.hub.hub import SHOWN, Hub, is_queue
from polywire.hub.message import Message
from polywire.hub.outbox import Nowhere, Outbox, Timer
from polywire.hub.peer import Limits
from polywire.hub.queues import Delivery
from polywire.hub.recorder import Recorder
from polywire.hub.routes import Subscription
from polywire.hub.trie import name_cost
from polywire.hub.work import DONE, MORE, Job
from polywire.journal.state import UNRECORDED, session_about
from polywire.protocols.mqtt.connection import OVERHEAD, Receiver, Sender, footprint
from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.frames import Publish, Pubrel, check_publication
from polywire.protocols.mqtt.topics import name_for
from polywire.wire.frame import Frame

SHARED: Final = "mqtt"
"""The key of the registry in ``Hub.shared``."""

MAX_SESSION_OCTETS: Final = 16 * 1024 * 1024
"""What may be stored for one client that is away, as ``connection.footprint`` counts."""

GRACE_SECONDS: Final = 86400.0
"""How long every session is kept after the start of the hub, however old it is by the time of day."""

CHECK_SECONDS: Final = 60.0
"""How long it may take until a changed ``session_age`` applies."""

SLICE: Final = 2_000_000
PAUSE_SECONDS: Final = 0.01
"""Sessions that are too old are ended in slices of so many nanoseconds, with so many seconds in between."""

NANOSECONDS: Final = 1_000_000_000

FREE: Final = 0
ANOTHER: Final = 1
TAKEN: Final = 2
WAITING: Final = 3
"""Whether a client may have a session, as far as other nodes are concerned: it is another user's, the client has
connected to another node meanwhile, or that is not known yet."""

OFFLINE_FULL: Final = "offline-full"
SESSION_EXPIRED: Final = "session-expired"
SESSIONS_FULL: Final = "sessions"
SESSION_AGE: Final = "session-age"
PATTERN_COST: Final = "pattern-cost"


@final
class Ledger:
    """One kept session's rows. ``waiting`` and ``sent`` name the deliveries in ``SessionState`` and its sender."""

    def __init__(
        self,
        recorder: Recorder,
        protocol: int,
        name: str,
        waiting: Iterable[int] = (),
        sent: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._recorder: Final = recorder
        self._protocol: Final = protocol
        self._name: Final = name
        self.waiting: Final[deque[int]] = deque(waiting)
        self.sent: Final[dict[int, int]] = dict(sent)

    def begin(self, who: Identity, *, clean: bool, bridge: bool) -> None:
        """The session's client has connected. Who it is decides later what the session may collect."""
        headers = session_about(who.how, who.groups, bridge=bridge)
        self._recorder.session(self._protocol, self._name, who.name, kept=True, clean=clean, headers=headers)

    def away(self, who: Identity, *, doubtful: int, bridge: bool) -> None:
        """The session's client has gone. What waits under a name below ``doubtful`` may have been sent before.

        The row's time is when the client went. A session without this row had a client when its hub was killed.
        """
        headers = session_about(who.how, who.groups, bridge=bridge, away=doubtful)
        self._recorder.session(self._protocol, self._name, who.name, kept=True, clean=False, headers=headers)

    def end(self) -> None:
        """Nothing is kept any more."""
        end_session(self._recorder, self._protocol, self._name)

    def subscribed(self, topic_filter: str, qos: int) -> None:
        """The client has subscribed."""
        self._recorder.session_subscribed(self._protocol, self._name, topic_filter, qos)

    def unsubscribed(self, topic_filter: str) -> None:
        """The client has unsubscribed."""
        self._recorder.session_unsubscribed(self._protocol, self._name, topic_filter)

    def push(self, topic: str, message: Message, qos: int, *, retain: bool) -> None:
        """One more message waits."""
        offset = self._recorder.stored(
            self._protocol, self._name, topic, message.offset, message.body, qos, 0, retain=retain
        )
        self.waiting.append(offset)

    def drop(self, count: int) -> None:
        """The newest of those that wait are not kept."""
        for _ in range(min(count, len(self.waiting))):
            self._finish(self.waiting.pop())

    def pop(self, packet: int) -> None:
        """The message that has waited longest was sent under a packet id."""
        offset = self.waiting.popleft()
        self.sent[packet] = offset
        if offset != UNRECORDED:
            self._recorder.sent(self._protocol, self._name, offset, packet)

    def send(self, topic: str, message: Message, qos: int, packet: int, *, retain: bool) -> None:
        """A message was sent that did not have to wait."""
        self.sent[packet] = self._recorder.stored(
            self._protocol, self._name, topic, message.offset, message.body, qos, packet, retain=retain
        )

    def lend(self, packet: int) -> None:
        """A queue's message is sent under a packet id: however that ends, the client must release the id."""
        name = UNRECORDED - packet
        self.sent[packet] = name
        self._recorder.received(self._protocol, self._name, name, packet)

    def received(self, packet: int) -> None:
        """The client has what was sent under a packet id, and the id is still in use."""
        name = self.sent.get(packet, UNRECORDED)
        if name >= 0:
            self._recorder.received(self._protocol, self._name, name, packet)
        elif name == UNRECORDED:
            self.lend(packet)

    def finished(self, packet: int) -> None:
        """A packet id is free again."""
        offset = self.sent.pop(packet, None)
        if offset is not None:
            self._finish(offset)

    def together(self, *, on: bool) -> None:
        """While this is on, what is recorded is written as a whole or not at all."""
        self._recorder.together(on=on)

    def hold(self, packet: int) -> None:
        """The client has published with QoS 2."""
        self._recorder.held(self._protocol, self._name, packet)

    def release(self, packet: int) -> None:
        """The client has released the packet id."""
        self._recorder.released(self._protocol, self._name, packet)

    def _finish(self, offset: int) -> None:
        if offset != UNRECORDED:
            self._recorder.finished(self._protocol, self._name, offset)


def end_session(recorder: Recorder, protocol: int, name: str) -> None:
    """Record that nothing of a session is kept."""
    recorder.session(protocol, name, "", kept=False, clean=True)


@final
@mypyc_attr(acyclic=True)
class Snapshot(Frame):
    """All there is to know of a session that is kept, as a value.

    The names are those of a ``Ledger``: of the packets in ``unfinished`` by their ids, and of those in ``waiting``.
    ``away_since`` is the time of day at which its client went, 0 where the client was there to the end; ``doubtful`` is
    as in ``SessionState``. ``groups`` and ``how`` are the user's, as in ``Identity``, as far as they are known.
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
        "away_since",
        "doubtful",
        "bridge",
        "groups",
        "how",
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
        away_since: int = 0,
        doubtful: int = 0,
        bridge: bool = False,  # noqa: FBT001, FBT002 - frames are built by position
        groups: tuple[str, ...] = (),
        how: str = "",
    ) -> None:
        self.client_id: Final = client_id
        self.user: Final = user
        self.filters: Final = filters
        self.unfinished: Final = unfinished
        self.held: Final = held
        self.waiting: Final = waiting
        self.sent_names: Final = sent_names
        self.waiting_names: Final = waiting_names
        self.away_since: Final = away_since
        self.doubtful: Final = doubtful
        self.bridge: Final = bridge
        self.groups: Final = groups
        self.how: Final = how


@final
class Owner:
    """One user's kept sessions: the stored ones by client id, how many are live, the bytes stored."""

    def __init__(self) -> None:
        self.stored: Final[OrderedDict[str, SessionState]] = OrderedDict()
        self.live = 0
        self.octets: i64 = 0

    def count(self) -> int:
        """How many sessions are kept."""
        return len(self.stored) + self.live


@final
class SessionState:
    """One session: its subscriptions with their QoS, the flows both ways, and what waits to be sent.

    ``deliveries`` are the queues' messages among the packets in flight, which stay the queues'. ``end`` ends the
    connection that has the session at the moment. ``since`` is when the client went, by the monotonic clock, ``began``
    when the session began, by the time of day, or 0. What waits
    under a name of the ledger below ``doubtful`` may have been sent before a restart of the hub.

    ``identity`` is who the client was when it was last here. ``away`` are the subscriptions of a client that is away,
    by filter; those in ``suspended`` are not allowed at the moment. When the client returns or goes, its subscriptions
    are exchanged one by one, and ``handing`` is true meanwhile. ``send`` is the connection's way to its client.
    ``reach`` is as in ``Client``, ``names_size`` what the names of a stored session take.
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
        self.identity = Identity(user)
        self.away: Final[dict[str, AwaySubscription]] = {}
        self.suspended: Final[set[str]] = set()
        self.handing = False
        self.over = False  # nothing of it is kept any more
        self.stored = False
        self.group = 0
        self.send: Callable[[Message, str, i64, bool], None] | None = None
        self.reach = 0
        self.names_size = 0
        self._seen: Message | None = None
        self.most = 0
        self.since = 0
        self.began = 0
        self.doubtful = 0
        self.bridge = False
        self.ledger: Ledger | None = None

    def octets(self) -> i64:
        """About how many bytes its messages take."""
        return self.waiting_octets + self.sender.octets

    def has_seen(self, message: Message) -> bool:
        """Whether this message was the last one to come, by any of its filters."""
        if self._seen is message:
            return True
        self._seen = message
        return False

    def handed(self) -> None:
        """All its subscriptions are stored, or all are a connection's."""
        self.handing = False
        self._seen = None

    def push(self, frame: Publish) -> None:
        """Let one more message wait."""
        self.waiting.append(frame)
        self.waiting_octets += footprint(frame)

    def pop(self) -> Publish:
        """The message that has waited longest."""
        frame = self.waiting.popleft()
        self.waiting_octets -= footprint(frame)
        return frame

    def trim(self, room: i64) -> int:
        """Keep no more than may wait for a client that is away, and no more than ``room`` bytes if that is possible.

        Returns how many newer messages that cost.
        """
        cost = 0
        while self.waiting and (
            len(self.waiting) > self.most or self.waiting_octets > MAX_SESSION_OCTETS or self.octets() > room
        ):
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
        self.since = state.began
        self._state: Final = state
        self._sessions: Final = sessions

    def deliver(self, message: Message) -> None:
        """MQTT-034: store it, unless it is one with QoS 0."""
        state = self._state
        qos = min(message.qos, self.rank)
        if qos == 0 or state.over or (state.handing and state.has_seen(message)):
            return
        if state.send is not None:
            state.send(message, self.pattern, qos, state.bridge and message.retain)
        else:
            self._sessions.keep(state, message, self.pattern, qos)


@final
class MqttSessions:
    """All sessions of a hub: ``live`` ones have a connection, ``stored`` ones wait for their client's return.

    Those that are stored are in the order in which their clients went.
    """

    def __init__(self, hub: Hub, protocol: int) -> None:
        self._hub: Final = hub
        self._counters: Final[Counters] = hub.counters[protocol]
        self.protocol: Final = protocol
        self.nowhere: Final = Outbox(Nowhere(), hub.flusher)
        self.live: Final[dict[str, SessionState]] = {}
        self.stored: Final[OrderedDict[str, SessionState]] = OrderedDict()
        self.octets: i64 = 0
        self.limits = Limits()
        self._owners: Final[dict[str, Owner]] = {}
        self._live_kept = 0
        self._timer: Timer | None = None
        self._last_away = 0
        self._last_name = 0
        self._parting: Final[dict[str, list[object]]] = {}  # who waits for sessions that are being stored
        self.elsewhere: Callable[[str, str, object, bool], int] | None = None

    def admits(self, client_id: str, user: str, limits: Limits) -> bool:
        """MQTT-196: whether a client may have a session that is kept. Past a limit, its user's oldest one ends."""
        live = self.live.get(client_id)
        if limits.sessions == 0 or client_id in self.stored or (live is not None and not live.clean):
            return True
        owner = self._owners.get(user)
        while True:
            mine = 0 if owner is None else owner.count()
            if mine < limits.sessions_per_user and len(self.stored) + self._live_kept < limits.sessions:
                return True
            if owner is None or not owner.stored:
                self._hub.warn(
                    SESSIONS_FULL,
                    f"MQTT client {client_id!r} of {_named(user)} is refused: the user has {mine} persistent sessions, "
                    f"the hub {len(self.stored) + self._live_kept}, and no more are allowed",
                )
                return False
            self._give_up(owner)

    def claim(
        self,
        client_id: str,
        user: str,
        limits: Limits,
        end: Callable[[], None],
        *,
        clean: bool,
        bridge: bool = False,
        identity: Identity | None = None,
    ) -> SessionState:
        """The session a client that connects is to have.

        Ask ``belongs_to_another``, ``admits`` and ``take_over`` first.
        """
        self.limits = limits
        if not client_id:
            client_id = self._own_name()
        self.take_over(client_id)
        state = self._take(client_id)
        recorder = self._hub.recorder
        if recorder is not None and clean and state is not None:
            end_session(recorder, self.protocol, client_id)
        if state is not None and clean:
            self._abandon(state)
        if state is None or clean:
            sender = Sender(max_in_flight=limits.in_flight)
            state = SessionState(client_id, user, sender, Receiver(max_held=limits.in_flight))
            state.began = self._hub.clock()
        else:
            state.present = True
            state.handing = len(state.away) > 0
        state.identity = Identity(user) if identity is None else identity
        if recorder is not None and not clean:
            if state.ledger is None:
                state.ledger = Ledger(recorder, self.protocol, client_id)
            state.ledger.begin(state.identity, clean=not state.present, bridge=bridge)
        if not clean:
            self._owner(user).live += 1
            self._live_kept += 1
        state.bridge = bridge
        state.clean = clean
        state.end = end
        self.live[client_id] = state
        return state

    def take_over(self, client_id: str) -> None:
        """MQTT-071: disconnect the client that has this session now. It may take a while until it is stored."""
        live = self.live.get(client_id)
        if live is not None and live.end is not None:
            live.end()

    def must_wait(self, client_id: str, owner: object) -> bool:
        """Whether a session is still being stored; if so, the owner of the work that needs it is woken then."""
        waiting = self._parting.get(client_id)
        if waiting is None:
            return False
        waiting.append(owner)
        return True

    def parted(self, state: SessionState) -> None:
        """All subscriptions of a session are stored."""
        state.handed()
        if state.stored:
            self._make_room(self._owner(state.user))
        for owner in self._parting.pop(state.client_id, []):
            self._hub.work.wake(owner)

    def asked(self, client_id: str, user: str, owner: object, *, clean: bool) -> int:
        """Whether other nodes let a client have its session. While that is ``WAITING``, the owner of the work waits."""
        if self.elsewhere is None or not client_id:
            return FREE
        return self.elsewhere(client_id, user, owner, clean)

    def belongs_to_another(self, client_id: str, user: str) -> bool:
        """Whether another user has a session under this client id."""
        state = self.live.get(client_id) or self.stored.get(client_id)
        return state is not None and state.user != user

    def part(self, state: SessionState, limits: Limits) -> None:
        """A session's connection has ended: store what is to be kept.

        Its subscriptions follow by ``put_away``. Where this returns with the session in ``stored``, call ``parted``
        when all of them have.
        """
        state.end = None
        state.send = None
        self.limits = limits
        if self.live.get(state.client_id) is state:
            del self.live[state.client_id]
        if state.clean:
            return
        owner = self._owner(state.user)
        owner.live -= 1
        self._live_kept -= 1
        if limits.sessions == 0:
            if state.ledger is not None:
                state.ledger.end()
            self._forget_if_idle(state.user)
            return
        state.since = self._hub.monotonic()
        state.handing = True
        self._parting.setdefault(state.client_id, [])
        self._store(state, owner)
        if state.ledger is not None:
            state.ledger.away(state.identity, doubtful=state.doubtful, bridge=state.bridge)
        self._make_room(owner)

    def put_away(self, state: SessionState, topic_filter: str, qos: int, *, allowed: bool = True) -> None:
        """Store one of a session's subscriptions; one that is not allowed collects nothing before it is."""
        pattern = from_mqtt(topic_filter)
        if not state.stored or state.over or is_queue(pattern):
            return
        cost = name_cost(topic_filter)
        state.names_size += cost
        self._count(state, cost)
        if qos == 0 or topic_filter in state.away:
            return
        subscription = AwaySubscription(pattern, qos, state, state.group, self)
        state.away[topic_filter] = subscription
        if not allowed:
            state.suspended.add(topic_filter)
            return
        table = self._hub.table
        before = table.reach()
        table.add(subscription)
        grown = table.reach() - before
        if grown > 0 and before + grown > self._hub.most_reach_together:
            table.discard(subscription)
            state.suspended.add(topic_filter)
            words = (
                "{!r} of MQTT client {!r} of {}, which is offline, is not active: limits.pattern_cost_total is reached"
            )
            self._hub.warn(
                PATTERN_COST, words.format(topic_filter[:SHOWN], state.client_id[:SHOWN], _named(state.user))
            )

    def give_back(self, state: SessionState, topic_filter: str) -> None:
        """A connection's subscription has taken the place of a stored one."""
        subscription = state.away.pop(topic_filter, None)
        if subscription is not None:
            self._hub.table.discard(subscription)
        state.suspended.discard(topic_filter)

    def regranting(self, grants: Callable[[SessionState], Grants]) -> "Regranting":
        """Let stored sessions collect what their users may subscribe to, and nothing else, in steps."""
        return Regranting(self, list(self.stored.values()), grants)

    def regrant_one(self, state: SessionState, topic_filter: str, grants: Grants) -> None:
        """Suspend or resume one subscription of a stored session."""
        subscription = state.away.get(topic_filter)
        if subscription is None or state.over:
            return
        allowed = self._hub.allows(grants, subscription)
        if allowed and topic_filter in state.suspended:
            state.suspended.discard(topic_filter)
            self._hub.table.add(subscription)
        elif not allowed and topic_filter not in state.suspended:
            state.suspended.add(topic_filter)
            self._hub.table.discard(subscription)

    def keep_if_stored(self, state: SessionState, message: Message, pattern: str, qos: int) -> None:
        """Store a message that has come by a subscription of a connection that has ended."""
        if qos > 0 and state.stored and not state.over:
            self.keep(state, message, pattern, qos)

    def keep(self, state: SessionState, message: Message, pattern: str, qos: int) -> None:
        """Store a message for an offline client, if there is room."""
        topic = name_for(message.channel, pattern)
        size: i64 = OVERHEAD + i64(len(topic)) + i64(len(message.body))
        owner = self._owner(state.user)
        if (
            len(state.waiting) >= state.most
            or state.waiting_octets + size > MAX_SESSION_OCTETS
            or owner.octets + size > self.limits.sessions_size_per_user
            or self.octets + size > self.limits.sessions_size
        ):
            self._counters.drop(OFFLINE_FULL)
            words = "a message on {!r} is not stored for MQTT client {!r} of {}, which is offline: the limit is reached"
            self._hub.warn(OFFLINE_FULL, words.format(topic, state.client_id, _named(state.user)))
            return
        try:
            check_publication(topic, message.body)
        except LocalProtocolError:
            self._counters.drop(UNENCODABLE)
            return
        retain = state.bridge and message.retain
        state.push(Publish(topic, message.body, qos, retain))
        if state.ledger is not None:
            state.ledger.push(topic, message, qos, retain=retain)
        owner.octets += size
        self.octets += size

    def snapshot(self) -> list[Snapshot]:
        """All sessions that are to be kept, the stored ones in the order in which they would expire."""
        kept = [state for state in self.live.values() if not state.clean]
        return [state.snapshot() for state in [*self.stored.values(), *kept]]

    def restore(self, snapshot: Snapshot, limits: Limits) -> None:
        """Store a session from before a restart of the hub. To be called in the order of ``away_since``, 0 last.

        MQTT-195: its age is what the time of day says, but a clock that was set wrong, or a hub that was down for long,
        does not end it: it is kept for another ``GRACE_SECONDS`` at least.
        """
        self.limits = limits
        sender = Sender(max_in_flight=limits.in_flight, unfinished=snapshot.unfinished)
        receiver = Receiver(max_held=limits.in_flight, held=snapshot.held)
        state = SessionState(snapshot.client_id, snapshot.user, sender, receiver)
        state.identity = Identity(snapshot.user, snapshot.groups, snapshot.how)
        state.clean = False
        if self._hub.recorder is not None:
            state.ledger = Ledger(
                self._hub.recorder, self.protocol, snapshot.client_id, snapshot.waiting_names, snapshot.sent_names
            )
        state.filters.update(snapshot.filters)
        state.bridge = snapshot.bridge
        state.doubtful = snapshot.doubtful
        for frame in snapshot.waiting:
            state.push(frame)
        if limits.sessions == 0:
            if state.ledger is not None:
                state.ledger.end()
            return
        oldest = max(0.0, limits.session_age - GRACE_SECONDS)
        age = max(0, self._hub.clock() - snapshot.away_since) if snapshot.away_since else 0
        state.since = self._hub.monotonic() - min(age, int(oldest * NANOSECONDS))
        before = self._hub.table.reach()
        self._store(state, self._owner(state.user))
        for topic_filter, qos in snapshot.filters:
            self.put_away(state, topic_filter, qos)
        state.reach = max(0, self._hub.table.reach() - before)
        if state.ledger is not None and not snapshot.away_since:
            state.ledger.away(state.identity, doubtful=state.doubtful, bridge=state.bridge)

    def whereabouts(self) -> list[tuple[str, bool, int]]:
        """The client id of each session that is kept, whether its client is connected, and since when it is not."""
        behind = self._hub.clock() - self._hub.monotonic()
        live = [(client_id, True, 0) for client_id, state in self.live.items() if not state.clean]
        return live + [(client_id, False, state.since + behind) for client_id, state in self.stored.items()]

    def owner_of(self, client_id: str) -> str | None:
        """Whose session this is; None if there is none."""
        state = self.live.get(client_id) or self.stored.get(client_id)
        return None if state is None else state.user

    def pack(self, client_id: str) -> tuple[bytes, tuple[tuple[str, int], ...]] | None:
        """A stored session as bytes, and the patterns of what it collects with their QoS; None if there is none.

        It goes on collecting until it is to be forgotten.
        """
        state = self.stored.get(client_id)
        if state is None:
            return None
        kept = state.snapshot()
        who = state.identity
        packets = [
            (each.topic, each.payload, each.qos, each.retain, each.packet_id)
            if isinstance(each, Publish)
            else ("", b"", 0, False, each.packet_id)
            for each in kept.unfinished
        ]
        waiting = [(each.topic, each.payload, each.qos, each.retain, each.dup) for each in kept.waiting]
        data = msgspec.msgpack.encode(
            (client_id, kept.user, who.how, sorted(who.groups), kept.filters, packets, sorted(kept.held), waiting,
             state.bridge)
        )  # fmt: skip
        patterns = [(from_mqtt(each), qos) for each, qos in kept.filters if qos and each in state.away]
        return data, tuple([(pattern, qos) for pattern, qos in patterns if not is_queue(pattern)])

    def unpack(self, data: bytes, extras: list[tuple[Message, str, int]]) -> None:
        """Store a session that another node has packed, or add to one that is here, and what has come for it since."""
        client_id, user, how, groups, filters, packets, held, waiting, bridge = msgspec.msgpack.decode(data)
        recorder = self._hub.recorder
        if recorder is not None:
            recorder.together(on=True)
        state = self.stored.get(client_id) or self.live.get(client_id)
        if state is None:
            self._unpack_new(client_id, user, how, groups, filters, packets, held, bridge=bridge)
            state = self.stored.get(client_id)
        if state is not None:
            for topic, body, qos, retain, _ in waiting:
                self._deliver_late(state, Message(topic, body, retain=retain, qos=qos), topic, qos)
            for message, pattern, qos in extras:
                self._deliver_late(state, message, pattern, qos)
        if recorder is not None:
            recorder.together(on=False)

    def _unpack_new(
        self,
        client_id: str,
        user: str,
        how: str,
        groups: list[str],
        filters: list[list[object]],
        packets: list[list[object]],
        held: list[int],
        *,
        bridge: bool,
    ) -> None:
        unfinished: list[Publish | Pubrel] = []
        for topic, body, qos, retain, packet in packets:
            if qos:
                unfinished.append(
                    Publish(
                        cast("str", topic), cast("bytes", body), cast("int", qos), cast("bool", retain), dup=False,
                        packet_id=cast("int", packet),
                    )
                )  # fmt: skip
            else:
                unfinished.append(Pubrel(cast("int", packet)))
        wanted = tuple([(cast("str", each[0]), cast("int", each[1])) for each in filters])
        now = self._hub.clock()
        self.restore(
            Snapshot(
                client_id, user, wanted, tuple(unfinished), frozenset(held), (), away_since=now, bridge=bridge,
                groups=tuple(groups), how=how,
            ),
            self.limits,
        )  # fmt: skip
        state = self.stored.get(client_id)
        ledger = None if state is None else state.ledger
        if state is None or ledger is None:
            return
        ledger.begin(state.identity, clean=True, bridge=bridge)
        for topic_filter, qos in wanted:
            ledger.subscribed(topic_filter, qos)
        for packet in held:
            ledger.hold(packet)
        for frame in unfinished:
            if isinstance(frame, Publish):
                message = Message(frame.topic, frame.payload, qos=frame.qos)
                ledger.send(frame.topic, message, frame.qos, cast("int", frame.packet_id), retain=frame.retain)
            else:
                ledger.lend(frame.packet_id)
        ledger.away(state.identity, doubtful=0, bridge=bridge)

    def _deliver_late(self, state: SessionState, message: Message, pattern: str, qos: int) -> None:
        """A message has come for a session by way of another node."""
        if state.send is not None:
            state.send(message, pattern, qos, state.bridge and message.retain)
        elif state.stored:
            self.keep(state, message, pattern, qos)

    def forget(self, client_id: str) -> None:
        """A stored session is another node's now, or is not to be kept."""
        state = self._take(client_id)
        if state is not None:
            self._abandon(state)
            if state.ledger is not None:
                state.ledger.end()

    def _store(self, state: SessionState, owner: Owner) -> None:
        limits = self.limits
        state.most = limits.offline_messages
        room: i64 = min(limits.sessions_size - self.octets, limits.sessions_size_per_user - owner.octets)
        cost = state.trim(room)
        if cost:
            self._counters.drop(OFFLINE_FULL, cost)
        self.stored[state.client_id] = state
        owner.stored[state.client_id] = state
        state.stored = True
        state.names_size = name_cost(state.client_id)
        self._count(state, state.octets() + state.names_size)
        self._wait()
        self._last_away -= 1
        state.group = self._last_away

    def _take(self, client_id: str) -> SessionState | None:
        state = self.stored.pop(client_id, None)
        if state is not None:
            del self._owner(state.user).stored[client_id]
            self._count(state, -(state.octets() + state.names_size))
            state.names_size = 0
            state.stored = False
            self._forget_if_idle(state.user)
        return state

    def _end_stored(self, client_id: str) -> int:
        """Keep a stored session no longer. Returns how many messages that cost."""
        state = self._take(client_id)
        if state is None:
            return 0
        self._abandon(state)
        if state.ledger is not None:
            state.ledger.end()
        lost = len(state.waiting) + state.sender.in_flight()
        self._counters.drop(SESSION_EXPIRED, lost)
        return lost

    def _give_up(self, owner: Owner) -> None:
        """Remove the session of this user that has been offline longest, to make room for another one."""
        client_id, state = next(iter(owner.stored.items()))
        lost = self._end_stored(client_id)
        words = "the stored session of MQTT client {!r} of {} was replaced by a newer one; {} messages are lost"
        self._hub.warn(SESSION_EXPIRED, words.format(client_id, _named(state.user), lost))

    def _wait(self) -> None:
        """Check the sessions when the next one may be too old."""
        if self._timer is None and self.stored and self.limits.session_age > 0:
            since = next(iter(self.stored.values())).since
            left = self.limits.session_age - (self._hub.monotonic() - since) / NANOSECONDS
            self._timer = self._hub.later(min(max(left, 0.0), CHECK_SECONDS), self._age)

    def _age(self) -> None:
        """MQTT-195: end the sessions whose clients have been away for too long, a few at a time."""
        self._timer = None
        age = int(self.limits.session_age * NANOSECONDS)
        begun = self._hub.monotonic()
        ended = lost = 0
        while age and self.stored:
            client_id, state = next(iter(self.stored.items()))
            now = self._hub.monotonic()
            if now - state.since < age:
                break
            if now - begun > SLICE:
                self._timer = self._hub.later(PAUSE_SECONDS, self._age)
                break
            lost += self._end_stored(client_id)
            ended += 1
        if ended:
            words = f"{ended} MQTT sessions ended: their clients were offline for longer than limits.session_age"
            self._hub.warn(SESSION_AGE, f"{words}; {lost} messages are lost")
        self._wait()

    def _count(self, state: SessionState, octets: i64) -> None:
        """A stored session takes so many bytes more, or less."""
        self._owner(state.user).octets += octets
        self.octets += octets

    def _abandon(self, state: SessionState) -> None:
        """Nothing of a session is kept any more: its subscriptions collect nothing, and go one by one."""
        state.over = True
        if state.away:
            self._hub.work.start(state, _Abandoning(self, state))

    def _make_room(self, owner: Owner) -> None:
        while self._too_large(owner) and owner.stored and owner.octets > 0:
            self._give_up(owner)

    def _too_large(self, owner: Owner) -> bool:
        limits = self.limits
        return owner.octets > limits.sessions_size_per_user or self.octets > limits.sessions_size

    def _owner(self, user: str) -> Owner:
        owner = self._owners.get(user)
        if owner is None:
            owner = Owner()
            self._owners[user] = owner
        return owner

    def _forget_if_idle(self, user: str) -> None:
        owner = self._owners.get(user)
        if owner is not None and owner.count() == 0:
            del self._owners[user]

    def _own_name(self) -> str:
        """MQTT-062: a unique client id."""
        while True:
            self._last_name += 1
            name = f"polywire-{self._last_name}"
            if name not in self.live and name not in self.stored:
                return name


@final
class Regranting(Job):
    """Checks stored sessions after the access rules have changed."""

    def __init__(
        self, sessions: MqttSessions, states: list[SessionState], grants: Callable[[SessionState], Grants]
    ) -> None:
        self._sessions: Final = sessions
        self._states: Final = states
        self._grants: Final = grants
        self._filters: list[str] = []
        self._state: SessionState | None = None
        self._its_grants: Grants = NOTHING

    def step(self) -> int:
        """Check one subscription."""
        if self._filters and self._state is not None:
            self._sessions.regrant_one(self._state, self._filters.pop(), self._its_grants)
            return MORE
        if not self._states:
            return DONE
        state = self._states.pop()
        self._state = state
        if state.stored:
            self._its_grants = self._grants(state)
            self._filters = list(state.away)
        return MORE


@final
class _Abandoning(Job):
    """The end of a stored session's subscriptions."""

    def __init__(self, sessions: MqttSessions, state: SessionState) -> None:
        self._sessions: Final = sessions
        self._state: Final = state

    def step(self) -> int:
        """End one of them."""
        if not self._state.away:
            return DONE
        self._sessions.give_back(self._state, next(reversed(self._state.away)))
        return MORE


def _named(user: str) -> str:
    return f"user {user!r}" if user else "the anonymous user"


def sessions_of(hub: Hub, protocol: int) -> MqttSessions:
    """The hub's registry of MQTT sessions, created on first use."""
    found = hub.shared.get(SHARED)
    if isinstance(found, MqttSessions):
        return found
    sessions = MqttSessions(hub, protocol)
    hub.shared[SHARED] = sessions
    return sessions
