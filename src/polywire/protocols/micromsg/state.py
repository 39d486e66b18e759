"""The course of a connection, as tables: who says what in the handshake, and what ends it.

A session keeps a ``State`` and asks ``after`` for the next one at each event. An event that is not in the table for a
state is a mistake of the calling program, since the decoder lets nothing through that the peer may not send there.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from polywire.protocols.micromsg.errors import LocalProtocolError, ends_connection
from polywire.protocols.micromsg.frames import CLIENT, SERVER, Error


class State(Enum):
    """Where a connection stands, for the side that keeps it."""

    CONNECTED = "connected"
    OFFERED = "offered"
    REPLIED = "replied"
    ESTABLISHED = "established"
    CLOSED = "closed"


class Event(Enum):
    """What moves a connection on. A handshake message or frame of this side is an event once it is sent."""

    OFFER = "offer"
    REPLY = "reply"
    FINAL = "final"
    FRAME = "frame"
    PASSING_ERROR = "passing error"
    ENDING_ERROR = "ending error"
    LOST = "lost"


TRANSITIONS: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        # MICROMSG-11, MICROMSG-101: the client offers, the server replies, the client ends it.
        (State.CONNECTED, Event.OFFER): State.OFFERED,
        (State.OFFERED, Event.REPLY): State.REPLIED,
        (State.REPLIED, Event.FINAL): State.ESTABLISHED,
        # Behind the final message both sides send frames.
        (State.ESTABLISHED, Event.FRAME): State.ESTABLISHED,
        (State.ESTABLISHED, Event.PASSING_ERROR): State.ESTABLISHED,
        # MICROMSG-13 to MICROMSG-15, MICROMSG-100: an error before the end of the handshake always ends it.
        (State.CONNECTED, Event.ENDING_ERROR): State.CLOSED,
        (State.OFFERED, Event.ENDING_ERROR): State.CLOSED,
        (State.REPLIED, Event.ENDING_ERROR): State.CLOSED,
        (State.OFFERED, Event.PASSING_ERROR): State.CLOSED,
        (State.REPLIED, Event.PASSING_ERROR): State.CLOSED,
        (State.ESTABLISHED, Event.ENDING_ERROR): State.CLOSED,
        (State.CONNECTED, Event.LOST): State.CLOSED,
        (State.OFFERED, Event.LOST): State.CLOSED,
        (State.REPLIED, Event.LOST): State.CLOSED,
        (State.ESTABLISHED, Event.LOST): State.CLOSED,
        (State.CLOSED, Event.LOST): State.CLOSED,
    }
)

SPEAKER: Mapping[Event, str] = MappingProxyType({Event.OFFER: CLIENT, Event.REPLY: SERVER, Event.FINAL: CLIENT})
"""Which side says each handshake message (MICROMSG-02)."""


def after(state: State, event: Event) -> State:
    """The state behind an event. Raises ``LocalProtocolError`` where the event can't happen."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        allowed = ", ".join(other.value for known, other in TRANSITIONS if known is state)
        raise LocalProtocolError(f"no {event.value} while {state.value}; allowed: {allowed}", rule="MICROMSG-101")
    return following


def error_event(error: Error) -> Event:
    """The event an ERROR is, sent or received."""
    return Event.ENDING_ERROR if ends_connection(error.name) else Event.PASSING_ERROR
