"""The life of a UMQ connection: the handshake, the open connection of equal peers, the end. A table, and who reads it.

``Machine`` is told of every frame that was received, before anybody acts on it, and of every frame that is about to be
sent. The diagram in docs/protocols/umq.md is drawn from ``TRANSITIONS``.
"""

from enum import Enum, unique
from typing import Final

from polywire.protocols.umq.errors import FatalCode, LocalProtocolError
from polywire.protocols.umq.frames import Attachment, AttachmentError, Fatal, Hello, Welcome, violation
from polywire.wire.frame import Frame

VERSION: Final = 1  # UMQ-91


@unique
class Role(Enum):
    """Who opened the connection; it matters until the handshake is done (UMQ-95)."""

    CLIENT = "client"
    SERVER = "server"


@unique
class State(Enum):
    """Where a connection stands. The first two are the client's, the next two the server's, the rest both sides'."""

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

    __hash__ = object.__hash__  # members are looked up for every message, and Enum's own hash is Python code


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

# What the peer (or this side) did wrong where the table has no entry; any other event is told by the state alone.
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
    """One side of one connection. ``version`` is the agreed one, 0 until the handshake is done.

    ``oldest`` and ``newest`` are the versions this side can speak.
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
    lines += [f"    [*] --> {START[role].value}: {role.value}" for role in Role]
    lines += [f"    {one.value} --> {other.value}: {', '.join(events)}" for (one, other), events in arrows.items()]
    return "\n".join([*lines, f"    {State.CLOSED.value} --> [*]"])
