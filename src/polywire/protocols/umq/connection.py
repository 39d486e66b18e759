"""A UMQ connection without its transport, for both ends: what has been received and sent, and what may follow.

``Connection`` takes whole messages and gives frames, checked against the tables of this module: the life of the
connection (``Machine``), requests in flight (``IncomingCalls``, ``OutgoingCalls``), ``Callbacks``, topics
(``Publications``, ``Subscriptions``) and ``Attributes``. The hub's session and a program's peer are built on it.
The diagram in docs/protocols/umq.md is drawn from ``TRANSITIONS``.
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping
from enum import Enum, unique
from types import MappingProxyType
from typing import Final, Generic, TypeVar, final

from polywire.protocols.umq.errors import (
    FatalCode,
    LocalProtocolError,
    MethodError,
    RemoteProtocolError,
    describe,
    error_text,
)
from polywire.protocols.umq.frames import (
    MAX_BINARY,
    MAX_NUMBER,
    MAX_TEXT,
    MAX_UNFINISHED,
    Attachment,
    AttachmentError,
    Call,
    Callback,
    CallException,
    Decoder,
    Fatal,
    Hello,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
    encode,
    violation,
)
from polywire.wire.frame import Frame, Role

VERSION: Final = 1  # UMQ-91

MAX_IN_FLIGHT: Final = 1024
MAX_CALLBACKS: Final = 1024
MAX_TOPICS: Final = 1024
MAX_REFUSED: Final = 1024
MAX_ATTRIBUTES: Final = 256
MAX_SIZE: Final = 1024 * 1024
"""Characters and bytes of all attributes of a connection."""

IDLE: Final = "no data received within the idle timeout"

Waiter = TypeVar("Waiter")
Function = TypeVar("Function")


@unique
class State(Enum):
    """The state of a connection. The first two are the client's, the next two the server's, the rest both sides'."""

    START = "Start"
    HELLO_SENT = "HelloSent"
    AWAIT_HELLO = "AwaitHello"
    HELLO_RECEIVED = "HelloReceived"
    OPEN = "Open"
    CLOSED = "Closed"

    __hash__ = object.__hash__  # members are looked up for every message, and Enum's own hash is Python code


@unique
class Event(Enum):
    """What can happen; ``message`` is any text message but ``H``, ``W``, ``F`` and ``-``."""

    RECEIVE_HELLO = "receive H"
    RECEIVE_WELCOME = "receive W"
    RECEIVE_FATAL = "receive F"
    RECEIVE_ATTACHMENT = "receive attachment"
    RECEIVE_MESSAGE = "receive message"
    SEND_HELLO = "send H"
    SEND_WELCOME = "send W"
    SEND_FATAL = "send F"
    SEND_ATTACHMENT = "send attachment"
    SEND_MESSAGE = "send message"

    __hash__ = object.__hash__  # as above


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.START, Event.SEND_HELLO): State.HELLO_SENT,  # UMQ-17
    (State.START, Event.RECEIVE_FATAL): State.CLOSED,
    (State.START, Event.SEND_FATAL): State.CLOSED,
    (State.HELLO_SENT, Event.SEND_ATTACHMENT): State.HELLO_SENT,  # UMQ-20
    (State.HELLO_SENT, Event.RECEIVE_WELCOME): State.OPEN,  # UMQ-21
    (State.HELLO_SENT, Event.RECEIVE_FATAL): State.CLOSED,  # UMQ-29
    (State.HELLO_SENT, Event.SEND_FATAL): State.CLOSED,
    (State.AWAIT_HELLO, Event.RECEIVE_HELLO): State.HELLO_RECEIVED,  # UMQ-91
    (State.AWAIT_HELLO, Event.SEND_FATAL): State.CLOSED,
    (State.HELLO_RECEIVED, Event.RECEIVE_ATTACHMENT): State.HELLO_RECEIVED,  # UMQ-20
    (State.HELLO_RECEIVED, Event.SEND_WELCOME): State.OPEN,  # UMQ-21
    (State.HELLO_RECEIVED, Event.RECEIVE_FATAL): State.CLOSED,  # UMQ-30
    (State.HELLO_RECEIVED, Event.SEND_FATAL): State.CLOSED,  # UMQ-29
    (State.OPEN, Event.RECEIVE_MESSAGE): State.OPEN,  # UMQ-95
    (State.OPEN, Event.RECEIVE_ATTACHMENT): State.OPEN,
    (State.OPEN, Event.SEND_MESSAGE): State.OPEN,
    (State.OPEN, Event.SEND_ATTACHMENT): State.OPEN,
    (State.OPEN, Event.RECEIVE_FATAL): State.CLOSED,  # UMQ-25
    (State.OPEN, Event.SEND_FATAL): State.CLOSED,
    # What the peer sent before it saw our F is dropped without an answer.
    (State.CLOSED, Event.RECEIVE_HELLO): State.CLOSED,
    (State.CLOSED, Event.RECEIVE_WELCOME): State.CLOSED,
    (State.CLOSED, Event.RECEIVE_FATAL): State.CLOSED,
    (State.CLOSED, Event.RECEIVE_ATTACHMENT): State.CLOSED,
    (State.CLOSED, Event.RECEIVE_MESSAGE): State.CLOSED,
}

START: Final = {Role.CLIENT: State.START, Role.SERVER: State.AWAIT_HELLO}

RECEIVING: Final[dict[type[Frame], Event]] = {
    Hello: Event.RECEIVE_HELLO,
    Welcome: Event.RECEIVE_WELCOME,
    Fatal: Event.RECEIVE_FATAL,
    Attachment: Event.RECEIVE_ATTACHMENT,
    AttachmentError: Event.RECEIVE_ATTACHMENT,
}
SENDING: Final[dict[type[Frame], Event]] = {
    Hello: Event.SEND_HELLO,
    Welcome: Event.SEND_WELCOME,
    Fatal: Event.SEND_FATAL,
    Attachment: Event.SEND_ATTACHMENT,
    AttachmentError: Event.SEND_ATTACHMENT,
}

# What the peer (or this side) did wrong where the table has no entry; for all other events the state says it.
WRONG_EVENT: Final = {
    (State.OPEN, Event.RECEIVE_HELLO): ("UMQ-81", "a second H"),
    (State.HELLO_RECEIVED, Event.RECEIVE_HELLO): ("UMQ-81", "a second H"),
    (State.OPEN, Event.RECEIVE_WELCOME): ("UMQ-21", "a W that answers no H"),
}
WRONG_STATE: Final = {
    State.START: ("UMQ-92", "the first message of a connection is the client's H"),
    State.HELLO_SENT: ("UMQ-92", "only W or F answers an H"),
    State.AWAIT_HELLO: ("UMQ-92", "the first message of a connection is the client's H"),
    State.HELLO_RECEIVED: ("UMQ-135", "only the attachments of H may come before its answer"),
    State.OPEN: ("UMQ-81", "the handshake is over"),
    State.CLOSED: ("UMQ-25", "F was the last message of this connection"),
}


class Machine:
    """The life of one side of a connection: the handshake, the open connection of equal peers, the end.

    ``version`` is the agreed one, 0 until the handshake is done; ``oldest`` and ``newest`` are those this side speaks.
    """

    def __init__(self, role: Role, *, oldest: int = VERSION, newest: int = VERSION) -> None:
        self.role: Final = role
        self.oldest: Final = oldest
        self.newest: Final = newest
        self.state = START[role]
        self.version = 0
        self._offered = 0

    @property
    def offered(self) -> int:
        """The client's offer; at the server capped to what it can speak, so the version to answer (UMQ-93)."""
        return self._offered

    def receive(self, frame: Frame) -> bool:
        """Note a received frame. False: the connection is closing, drop the frame.

        Raises ``RemoteProtocolError``, whose ``reply`` is to be sent before closing.
        """
        event = RECEIVING.get(type(frame), Event.RECEIVE_MESSAGE)
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            rule, reason = WRONG_EVENT.get((self.state, event)) or WRONG_STATE[self.state]
            raise violation(FatalCode.PROTOCOL_ERROR, f"{event.value}: {reason}", rule)
        if following is self.state:
            return following is not State.CLOSED
        if isinstance(frame, Hello):
            if frame.version < self.oldest:
                raise violation(FatalCode.UNSUPPORTED_VERSION, self._not_spoken(frame.version), "UMQ-93")
            self._offered = min(frame.version, self.newest)
        elif isinstance(frame, Welcome):
            if not self.oldest <= frame.version <= self._offered:
                raise violation(FatalCode.UNSUPPORTED_VERSION, self._not_spoken(frame.version), "UMQ-94")
            self.version = frame.version
        self.state = following
        return True

    def send(self, frame: Frame) -> None:
        """Note a frame about to be sent. Raises ``LocalProtocolError``, and changes nothing, where it may not be."""
        event = SENDING.get(type(frame), Event.SEND_MESSAGE)
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            rule, reason = WRONG_STATE[self.state]
            raise LocalProtocolError(f"{event.value} in state {self.state.value}: {reason}", rule=rule)
        if following is self.state:
            return
        if isinstance(frame, Hello):
            if not self.oldest <= frame.version <= self.newest:
                raise LocalProtocolError(self._not_spoken(frame.version), rule="UMQ-91")
            self._offered = frame.version
        elif isinstance(frame, Welcome):
            if not self.oldest <= frame.version <= self._offered:
                raise LocalProtocolError(self._not_spoken(frame.version), rule="UMQ-93")
            self.version = frame.version
        self.state = following

    def _not_spoken(self, version: int) -> str:
        newest = self._offered or self.newest
        spoken = f"{self.oldest}" if self.oldest == newest else f"{self.oldest} to {newest}"
        return f"version {version}, not {spoken}"


def diagram() -> str:
    """The table as a Mermaid state diagram, without the frames that are dropped at the end."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, event), following in TRANSITIONS.items():
        if state is not State.CLOSED:
            arrows.setdefault((state, following), []).append(event.value)
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state.value}: {role.value}" for role, state in START.items()]
    lines += [f"    {one.value} --> {other.value}: {', '.join(events)}" for (one, other), events in arrows.items()]
    return "\n".join([*lines, f"    {State.CLOSED.value} --> [*]"])


class IdSequence:
    """Ids this side chooses: upwards from 1, so that an id comes again only after all others, and none in use."""

    def __init__(self) -> None:
        self._next = 1

    def choose(self, taken: Container[int]) -> int:
        """An id that is not taken."""
        while self._next in taken:
            self._advance()
        chosen = self._next
        self._advance()
        return chosen

    def _advance(self) -> None:
        self._next = self._next + 1 if self._next < MAX_NUMBER else 1


def check_id(number: int) -> None:
    """Raise ``LocalProtocolError`` for a number that can't be an id (UMQ-84)."""
    if not 0 <= number <= MAX_NUMBER:
        raise LocalProtocolError(f"{number} is not an id from 0 to {MAX_NUMBER}", rule="UMQ-84")


class IncomingCalls:
    """The peer's requests that this side still has to answer, at most ``limit`` at a time.

    ``C`` and ``B`` share one space of ids, since their answers look the same (UMQ-99).
    """

    def __init__(self, *, limit: int = MAX_IN_FLIGHT) -> None:
        self.limit: Final = limit
        self._due: set[int] = set()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self._due

    def begin(self, frame: Call | Callback) -> CallException | None:
        """Note a request. Returns what to answer at once where there are too many, else None.

        A request under an id whose answer is still due raises ``RemoteProtocolError``.
        """
        if frame.call_id in self._due:
            reason = f"id {frame.call_id} is used again before its answer"
            raise violation(FatalCode.PROTOCOL_ERROR, reason, "UMQ-99")
        if len(self._due) >= self.limit:
            detail = f"{self.limit} requests are in flight"
            return CallException(frame.call_id, error_text(FatalCode.LIMIT_EXCEEDED, detail))
        self._due.add(frame.call_id)
        return None

    def finish(self, frame: Result | CallException) -> None:
        """Note the answer that is about to be sent: one for each request."""
        if not self.settle(frame.call_id):
            raise LocalProtocolError(f"no request {frame.call_id} awaits an answer", rule="UMQ-41")

    def settle(self, call_id: int) -> bool:
        """Note an answer that is written without a frame. False where none is due under this id."""
        if call_id not in self._due:
            return False
        self._due.remove(call_id)
        return True


class OutgoingCalls(Generic[Waiter]):
    """This side's requests that the peer still has to answer, each with what waits for it.

    Ids count upwards and are not used twice, so a late answer to an abandoned request is ignored. ``ignored``
    counts unexpected answers.
    """

    def __init__(self, *, limit: int = MAX_IN_FLIGHT) -> None:
        self.limit: Final = limit
        self.ignored = 0
        self._waiting: dict[int, Waiter] = {}
        self._ids = IdSequence()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self._waiting

    def start(self, waiter: Waiter, call_id: int | None = None) -> int:
        """Note a request about to be sent, under an id of this object's choice unless one is given."""
        if len(self._waiting) >= self.limit:
            raise LocalProtocolError(f"{self.limit} requests await their answer, no more allowed", rule="UMQ-136")
        if call_id is None:
            call_id = self._ids.choose(self._waiting)
        check_id(call_id)
        if call_id in self._waiting:
            raise LocalProtocolError(f"id {call_id} still awaits its answer", rule="UMQ-99")
        self._waiting[call_id] = waiter
        return call_id

    def answered(self, frame: Result | CallException) -> Waiter | None:
        """What waited for this answer, and no longer does, or None (counted) where nobody did (UMQ-100)."""
        waiter = self._waiting.pop(frame.call_id, None)
        if waiter is None:
            self.ignored += 1
        return waiter

    def abandon(self, call_id: int) -> None:
        """Wait no longer; the answer, should it come, will be ignored."""
        self._waiting.pop(call_id, None)

    def drain(self) -> list[Waiter]:
        """All that still wait, for the end of the connection; none do afterwards."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting


class Callbacks(Generic[Function]):
    """Callback ids and their functions, from ``register`` to ``unregister`` or the connection's end (UMQ-105)."""

    def __init__(self, *, limit: int = MAX_CALLBACKS) -> None:
        self.limit: Final = limit
        self._registered: dict[int, Function] = {}
        self._ids = IdSequence()

    def __len__(self) -> int:
        return len(self._registered)

    def register(self, function: Function, callback_id: int | None = None) -> int:
        """Make a callback known, under an id of this object's choice unless one is given. Returns the id."""
        if len(self._registered) >= self.limit:
            raise LocalProtocolError(f"{self.limit} callbacks are registered, no more allowed", rule="UMQ-136")
        if callback_id is None:
            callback_id = self._ids.choose(self._registered)
        check_id(callback_id)
        if callback_id in self._registered:
            raise LocalProtocolError(f"callback {callback_id} is registered already", rule="UMQ-49")
        self._registered[callback_id] = function
        return callback_id

    def unregister(self, callback_id: int) -> None:
        """Forget a callback. Does nothing where it is not registered."""
        self._registered.pop(callback_id, None)

    def find(self, frame: Callback) -> Function | CallException:
        """What a ``B`` is for, or the answer to send where there is no such callback (UMQ-106)."""
        function = self._registered.get(frame.callback_id)
        if function is None:
            return CallException(frame.call_id, error_text(FatalCode.CALLBACK_NOT_FOUND))
        return function


class Publications:
    """The live topics this side publishes to the peer, at most ``limit``. The subscriber has chosen their ids.

    ``ignored`` counts ``U`` for other topics.
    """

    def __init__(self, *, limit: int = MAX_TOPICS) -> None:
        self.limit: Final = limit
        self.ignored = 0
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._live

    def open(self, topic_id: int) -> None:
        """Accept a subscription under the id the peer chose. Raises ``MethodError`` for the ``E`` to answer."""
        if topic_id in self._live:
            raise MethodError(f"topic id {topic_id} is in use", rule="UMQ-96")
        if len(self._live) >= self.limit:
            reason = f"{self.limit} topics are open"
            raise MethodError(reason, rule="UMQ-136", code=FatalCode.LIMIT_EXCEEDED)
        self._live.add(topic_id)

    def update(self, frame: TopicUpdate) -> None:
        """Check an update about to be sent: its topic must be live."""
        if frame.topic_id not in self._live:
            raise LocalProtocolError(f"topic {frame.topic_id} is not open", rule="UMQ-56")

    def close(self, topic_id: int) -> TopicClose | None:
        """End a topic from this side: the ``D`` to send, or None where it is not live."""
        if topic_id not in self._live:
            return None
        self._live.remove(topic_id)
        return TopicClose(topic_id)

    def unsubscribed(self, frame: Unsubscribe) -> TopicClose | None:
        """Note a ``U``: the ``D`` to answer with, or None (counted) where there is no such topic."""
        answer = self.close(frame.topic_id)
        if answer is None:
            self.ignored += 1
        return answer


@unique
class TopicState(Enum):
    """What a subscriber knows of a topic id. ``UNKNOWN`` is not stored."""

    UNKNOWN = "unknown"
    LIVE = "live"
    LEAVING = "leaving"  # U sent, D not received yet
    REFUSED = "refused"  # never subscribed to, U sent

    __hash__ = object.__hash__  # as above


@unique
class TopicEvent(Enum):
    """What happens to a topic at its subscriber."""

    SUBSCRIBE = "subscribe"
    UPDATE = "T"
    CLOSE = "D"
    LEAVE = "leave"

    __hash__ = object.__hash__  # as above


@unique
class Action(Enum):
    """What the subscriber does then."""

    DELIVER = "deliver"
    DROP = "drop"
    IGNORE = "ignore and count"
    SEND_UNSUBSCRIBE = "send U"
    END = "end of the stream"


TOPIC_TRANSITIONS: Final[dict[tuple[TopicState, TopicEvent], tuple[TopicState, Action]]] = {
    (TopicState.UNKNOWN, TopicEvent.SUBSCRIBE): (TopicState.LIVE, Action.DELIVER),
    (TopicState.UNKNOWN, TopicEvent.UPDATE): (TopicState.REFUSED, Action.SEND_UNSUBSCRIBE),  # UMQ-101
    (TopicState.UNKNOWN, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.IGNORE),  # UMQ-103
    (TopicState.UNKNOWN, TopicEvent.LEAVE): (TopicState.UNKNOWN, Action.DROP),
    (TopicState.LIVE, TopicEvent.UPDATE): (TopicState.LIVE, Action.DELIVER),  # UMQ-52
    (TopicState.LIVE, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.END),  # UMQ-56
    (TopicState.LIVE, TopicEvent.LEAVE): (TopicState.LEAVING, Action.SEND_UNSUBSCRIBE),  # UMQ-60
    (TopicState.LEAVING, TopicEvent.UPDATE): (TopicState.LEAVING, Action.DROP),  # UMQ-104
    (TopicState.LEAVING, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.END),
    (TopicState.LEAVING, TopicEvent.LEAVE): (TopicState.LEAVING, Action.DROP),
    (TopicState.REFUSED, TopicEvent.UPDATE): (TopicState.REFUSED, Action.DROP),  # UMQ-101: once
    (TopicState.REFUSED, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.DROP),
    (TopicState.REFUSED, TopicEvent.LEAVE): (TopicState.REFUSED, Action.DROP),
}


class Subscriptions:
    """The topics this side has subscribed to: at most ``limit``, and ``max_refused`` ids it never asked for.

    ``ignored`` counts ``D`` for unknown topics, ``dropped`` the updates without a subscriber.
    """

    def __init__(self, *, limit: int = MAX_TOPICS, max_refused: int = MAX_REFUSED) -> None:
        self.limit: Final = limit
        self.max_refused: Final = max_refused
        self.ignored = 0
        self.dropped = 0
        self._states: dict[int, TopicState] = {}
        self._refused = 0
        self._ids = IdSequence()

    def __len__(self) -> int:
        """How many topics were subscribed to and have not ended."""
        return len(self._states) - self._refused

    def state(self, topic_id: int) -> TopicState:
        """What is known of an id."""
        return self._states.get(topic_id, TopicState.UNKNOWN)

    def open(self, topic_id: int | None = None) -> int:
        """Choose an id, unless one is given, and expect updates on it; to be done before the subscribing call."""
        if len(self) >= self.limit:
            raise LocalProtocolError(f"{self.limit} topics are subscribed to, no more allowed", rule="UMQ-136")
        if topic_id is None:
            topic_id = self._ids.choose(self._states)
        check_id(topic_id)
        if (self.state(topic_id), TopicEvent.SUBSCRIBE) not in TOPIC_TRANSITIONS:
            reason = f"topic id {topic_id} is in use: {self.state(topic_id).value}"
            raise LocalProtocolError(reason, rule="UMQ-53")
        self._apply(topic_id, TopicEvent.SUBSCRIBE)
        return topic_id

    def forget(self, topic_id: int) -> None:
        """Undo ``open``: the subscribing call has failed."""
        if self.state(topic_id) is TopicState.LIVE:
            del self._states[topic_id]

    def leave(self, topic_id: int) -> Unsubscribe | None:
        """The ``U`` to send, or None where there is nothing to leave or it was sent already."""
        return Unsubscribe(topic_id) if self._apply(topic_id, TopicEvent.LEAVE) is Action.SEND_UNSUBSCRIBE else None

    def updated(self, frame: TopicUpdate) -> Action:
        """What to do with a ``T``: deliver it, drop it (counted), or answer with ``U``."""
        if frame.topic_id not in self._states and self._refused >= self.max_refused:
            reason = f"updates on more than {self.max_refused} topics nobody subscribed to"
            raise violation(FatalCode.LIMIT_EXCEEDED, reason, "UMQ-136")
        action = self._apply(frame.topic_id, TopicEvent.UPDATE)
        if action is not Action.DELIVER:
            self.dropped += 1
        return action

    def closed(self, frame: TopicClose) -> Action:
        """What to do with a ``D``: end the stream, or nothing."""
        action = self._apply(frame.topic_id, TopicEvent.CLOSE)
        if action is Action.IGNORE:
            self.ignored += 1
        return action

    def _apply(self, topic_id: int, event: TopicEvent) -> Action:
        before = self.state(topic_id)
        after, action = TOPIC_TRANSITIONS[before, event]
        self._refused += (after is TopicState.REFUSED) - (before is TopicState.REFUSED)
        if after is TopicState.UNKNOWN:
            self._states.pop(topic_id, None)
        else:
            self._states[topic_id] = after
        return action


class Attribute:
    """A value: its text, and its attachments: None where not there yet, the error where one could not be sent."""

    def __init__(self, value: str, attachments: int, ordinal: int) -> None:
        self.value: Final = value
        self.ordinal: Final = ordinal
        self.due = attachments
        self._attachments: list[bytes | AttachmentError | None] = [None] * attachments

    @property
    def attachments(self) -> tuple[bytes | AttachmentError | None, ...]:
        """The attachments in order."""
        return tuple(self._attachments)

    def __repr__(self) -> str:
        return f"Attribute({self.value!r}, {len(self._attachments)} attachments)"

    @property
    def complete(self) -> bool:
        """Whether all attachments are there, and none has failed."""
        return all(isinstance(one, bytes) for one in self._attachments)

    def fill(self, frame: Attachment | AttachmentError) -> None:
        """Put what arrived into its place."""
        self.due -= 1
        self._attachments[frame.index] = frame.body if isinstance(frame, Attachment) else frame


@final
class Attributes:
    """The peer's attributes by name: at most ``limit`` of them, and ``max_size`` characters and bytes in all.

    An attribute counts from its ``S`` on (UMQ-108); the attachments that are part of its value fill in as they arrive.
    ``view`` is a read-only mapping, always up to date; ``waiting`` has names by the ordinal of attachments to come.
    """

    def __init__(self, *, limit: int = MAX_ATTRIBUTES, max_size: int = MAX_SIZE) -> None:
        self.limit: Final = limit
        self.max_size: Final = max_size
        self.size = 0
        self._named: dict[str, Attribute] = {}
        self.waiting: Final[dict[int, str]] = {}
        self.view: Final[Mapping[str, Attribute]] = MappingProxyType(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def __getitem__(self, name: str) -> Attribute:
        return self._named[name]

    def set(self, frame: SetAttribute) -> None:
        """Note an ``S``. The new value replaces the old one, whose missing attachments are no longer waited for."""
        known = self._named.get(frame.name)
        if known is None and len(self._named) >= self.limit:
            raise _too_much(f"more than {self.limit} attributes")
        before = 0 if known is None else _size(frame.name, known)
        # An attachment that is due takes room as well, so that announcing is not free.
        self._grow(len(frame.name) + len(frame.value) + frame.attachments - before)
        if known is not None:
            self.waiting.pop(known.ordinal, None)
        self._named[frame.name] = Attribute(frame.value, frame.attachments, frame.ordinal)
        if frame.attachments:
            self.waiting[frame.ordinal] = frame.name

    def unset(self, frame: UnsetAttribute) -> None:
        """Note an ``X``; one for an attribute that is not set changes nothing."""
        known = self._named.pop(frame.name, None)
        if known is not None:
            self.size -= _size(frame.name, known)
            self.waiting.pop(known.ordinal, None)

    def fill(self, frame: Attachment | AttachmentError) -> bool:
        """Take an attachment that is part of a value. False: it belongs to another message, or a replaced value."""
        name = self.waiting.get(frame.owner)
        if name is None:
            return False
        attribute = self._named[name]
        self._grow(_size_of(frame.body if isinstance(frame, Attachment) else frame) - 1)
        attribute.fill(frame)
        if attribute.due == 0:
            del self.waiting[frame.owner]
        return True

    def _grow(self, growth: int) -> None:
        if self.size + growth > self.max_size:
            raise _too_much(f"attributes of more than {self.max_size} characters and bytes in all")
        self.size += growth


def _size_of(attachment: bytes | AttachmentError | None) -> int:
    if attachment is None:
        return 1
    return len(attachment) if isinstance(attachment, bytes) else len(attachment.message)


def _size(name: str, attribute: Attribute) -> int:
    return len(name) + len(attribute.value) + sum(map(_size_of, attribute.attachments))


def _too_much(reason: str) -> RemoteProtocolError:
    return violation(FatalCode.LIMIT_EXCEEDED, reason, "UMQ-136")


@final
class Connection(Generic[Waiter, Function]):
    """One end of a connection. The limits are those of ``Decoder`` and of the tables, which are its fields.

    ``calls`` are this side's requests, ``requests`` the peer's; ``publications`` are the topics that the peer has
    subscribed to here, ``subscriptions`` those of this side; ``attributes`` are the peer's.
    """

    def __init__(
        self,
        role: Role,
        *,
        max_text: int = MAX_TEXT,
        max_binary: int = MAX_BINARY,
        max_unfinished: int = MAX_UNFINISHED,
        in_flight: int = MAX_IN_FLIGHT,
        topics: int = MAX_TOPICS,
        callbacks: int = MAX_CALLBACKS,
    ) -> None:
        self.machine: Final = Machine(role)
        self.calls: Final[OutgoingCalls[Waiter]] = OutgoingCalls(limit=in_flight)
        self.requests: Final = IncomingCalls(limit=in_flight)
        self.callbacks: Final[Callbacks[Function]] = Callbacks(limit=callbacks)
        self.publications: Final = Publications(limit=topics)
        self.subscriptions: Final = Subscriptions(limit=topics)
        self.attributes: Final = Attributes()
        self.reply: Frame | None = None
        """The answer that UMQ prescribes for the last event. It has to be sent; without it nothing else is decided."""
        self._parts: Final[dict[int, str]] = self.attributes.waiting
        self._decoder: Final = Decoder(max_text=max_text, max_binary=max_binary, max_unfinished=max_unfinished)
        self._arrived: Final[deque[Frame]] = deque()

    @property
    def state(self) -> State:
        """The state of the connection."""
        return self.machine.state

    @property
    def closed(self) -> bool:
        """Whether an ``F`` was sent or received, or the transport has ended."""
        return self.machine.state is State.CLOSED

    def allow(self, *, max_text: int, max_binary: int) -> None:
        """Hold later messages to other limits: a peer that has proven who it is may send larger ones."""
        self._decoder.allow(max_text=max_text, max_binary=max_binary)

    def receive(self, message: str | bytes) -> None:
        """Decode one whole message: ``str`` is a text message, ``bytes`` a binary one.

        What comes after the last message is dropped (UMQ-25). Raises ``RemoteProtocolError``, as ``next_event`` does:
        its ``reply`` is the ``F`` to send.
        """
        if not self.closed:
            self._arrived.append(self._decoder.feed(message)[0])

    def next_event(self) -> Frame | None:
        """The next frame that has to be acted on; None: more has to be received first.

        Frames that UMQ lets a receiver ignore are counted in their table and left out. Where ``reply`` is set it
        answers the event: a request that can't be served, an update on an unknown topic, a ``U``.
        """
        self.reply = None
        while self._arrived:
            frame = self._arrived.popleft()
            if self.machine.receive(frame) and self._noted(frame):
                return frame
        return None

    def send(self, frame: Frame) -> str | bytes:
        """The message of a frame. Raises ``LocalProtocolError``, and changes nothing, where it may not be sent now."""
        message = encode(frame)
        self.machine.send(frame)
        if frame is self.reply:  # noted when it was decided
            return message
        if isinstance(frame, (Result, CallException)):
            self.requests.finish(frame)
        elif isinstance(frame, TopicUpdate):
            self.publications.update(frame)
        elif isinstance(frame, (Call, Callback)):
            if frame.call_id not in self.calls:
                raise LocalProtocolError(f"nothing waits for the answer to request {frame.call_id}", rule="UMQ-37")
        elif isinstance(frame, TopicClose):
            if self.publications.close(frame.topic_id) is None:
                raise LocalProtocolError(f"topic {frame.topic_id} is not open", rule="UMQ-56")
        elif isinstance(frame, Unsubscribe):
            self.subscriptions.leave(frame.topic_id)
        return message

    def close(self, code: FatalCode, detail: str = "") -> str | None:
        """The ``F`` to send before the connection is closed (UMQ-97). None where an ``F`` was sent or received."""
        return None if self.closed else str(self.send(Fatal(code.value, describe(code, detail))))

    def time_out(self) -> str | None:
        """The ``F`` for a peer whose handshake took too long, or that was silent for too long (UMQ-137)."""
        is_open = self.state is State.OPEN
        return self.close(FatalCode.LIMIT_EXCEEDED, IDLE if is_open else "the handshake took too long")

    def lost(self) -> None:
        """The transport has ended: nothing can be sent any more, and nothing will come."""
        self.machine.state = State.CLOSED
        self._arrived.clear()

    def _noted(self, frame: Frame) -> bool:
        """Enter a frame into the table it belongs to. False if it needs no action."""
        if isinstance(frame, (Call, Callback)):
            self.reply = self._refusal(frame)
        elif isinstance(frame, TopicUpdate):
            action = self.subscriptions.updated(frame)
            if action is Action.SEND_UNSUBSCRIBE:
                self.reply = Unsubscribe(frame.topic_id)
            return action is not Action.DROP
        elif isinstance(frame, (Attachment, AttachmentError)):
            if frame.owner in self._parts:
                self.attributes.fill(frame)
                return False
        elif isinstance(frame, TopicClose):
            return self.subscriptions.closed(frame) is Action.END
        elif isinstance(frame, Unsubscribe):
            self.reply = self.publications.unsubscribed(frame)
            return self.reply is not None
        elif isinstance(frame, SetAttribute):
            self.attributes.set(frame)
        elif isinstance(frame, UnsetAttribute):
            self.attributes.unset(frame)
        return True

    def _refusal(self, frame: Call | Callback) -> CallException | None:
        """Why a request gets no further, as its answer, if it does not."""
        refused = self.requests.begin(frame)
        if refused is None and isinstance(frame, Callback):
            found = self.callbacks.find(frame)
            if isinstance(found, CallException):
                self.requests.finish(found)
                return found
        return refused
