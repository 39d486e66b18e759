"""The four shapes of a call, and how a call goes on from message to message, as tables."""

from enum import Enum, auto


class Shape(Enum):
    """MQTTRPC-51: which directions of a call are streams: (requests, responses)."""

    UNARY = (False, False)
    CLIENT_STREAMING = (True, False)
    SERVER_STREAMING = (False, True)
    BIDIRECTIONAL = (True, True)

    @property
    def streams_requests(self) -> bool:
        """Whether the caller may send several Requests."""
        return self.value[0]

    @property
    def streams_responses(self) -> bool:
        """Whether the callee may send several Responses."""
        return self.value[1]


class State(Enum):
    """Where a call stands."""

    IDLE = auto()  # nothing was sent
    OPEN = auto()  # Requests and Responses may still come
    REQUESTED = auto()  # the last Request was there, Responses may still come
    ANSWERED = auto()  # the last Response was there, Requests may still come, and are for nobody
    CLOSED = auto()  # over


class Event(Enum):
    """A message of a call, seen from the side whose table is asked."""

    REQUEST = auto()
    LAST_REQUEST = auto()
    RESPONSE = auto()
    LAST_RESPONSE = auto()
    ERROR = auto()


CLIENT: dict[tuple[State, Event], State] = {
    (State.IDLE, Event.REQUEST): State.OPEN,
    (State.IDLE, Event.LAST_REQUEST): State.REQUESTED,
    (State.OPEN, Event.REQUEST): State.OPEN,
    (State.OPEN, Event.LAST_REQUEST): State.REQUESTED,
    (State.OPEN, Event.RESPONSE): State.OPEN,
    (State.OPEN, Event.LAST_RESPONSE): State.CLOSED,
    (State.OPEN, Event.ERROR): State.CLOSED,
    (State.REQUESTED, Event.RESPONSE): State.REQUESTED,
    (State.REQUESTED, Event.LAST_RESPONSE): State.CLOSED,
    (State.REQUESTED, Event.ERROR): State.CLOSED,
}
"""MQTTRPC-01, at the caller. What is not here must not be sent; the client's calls drop what arrives after the end."""

SERVER: dict[tuple[State, Event], State] = {
    (State.IDLE, Event.REQUEST): State.OPEN,
    (State.IDLE, Event.LAST_REQUEST): State.REQUESTED,
    (State.OPEN, Event.REQUEST): State.OPEN,
    (State.OPEN, Event.LAST_REQUEST): State.REQUESTED,
    (State.OPEN, Event.RESPONSE): State.OPEN,
    (State.OPEN, Event.LAST_RESPONSE): State.ANSWERED,
    (State.OPEN, Event.ERROR): State.ANSWERED,
    (State.REQUESTED, Event.RESPONSE): State.REQUESTED,
    (State.REQUESTED, Event.LAST_RESPONSE): State.CLOSED,
    (State.REQUESTED, Event.ERROR): State.CLOSED,
    (State.ANSWERED, Event.REQUEST): State.ANSWERED,
    (State.ANSWERED, Event.LAST_REQUEST): State.CLOSED,
}
"""MQTTRPC-01, at the callee. A Request that is not here repeats one that is in work, and is dropped (MQTTRPC-73)."""


def request_event(shape: Shape, eos: bool) -> Event:
    """What a Request is in a call of this shape; without a stream its ``eos`` says nothing (MQTTRPC-10)."""
    return Event.LAST_REQUEST if eos or not shape.streams_requests else Event.REQUEST


def response_event(shape: Shape, eos: bool, failed: bool) -> Event:
    """What a Response is in a call of this shape; without a stream its ``eos`` says nothing (MQTTRPC-24)."""
    if failed:
        return Event.ERROR
    return Event.LAST_RESPONSE if eos or not shape.streams_responses else Event.RESPONSE
