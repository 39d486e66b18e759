"""The calls in flight at one end: which message belongs to which call, what it means there, and what may follow.

RPC over MQTT has no connection of its own: its messages travel on the topics of services, between ends that have never
met. What takes the place of a connection are the calls. Frames and times go in, steps come out; no clock is read here,
times are seconds on a clock that never goes back.
"""

import logging
import math
import secrets
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from polywire.protocols.mqttrpc.errors import BAD_REQUEST, NO_METHOD, OVERLOADED, Failure, LocalProtocolError
from polywire.protocols.mqttrpc.frames import DEFAULT_TIMEOUT, Request, Response, milliseconds
from polywire.protocols.mqttrpc.service import Shape, parse_type_url
from polywire.wire.frame import Frame, Role

MAX_CALLS: Final = 1024
"""MQTTRPC-93: how many calls each side has in flight at most, by default."""

WARNING_SECONDS: Final = 60.0
"""The least time between two warnings of unknown Responses."""

log = logging.getLogger("polywire.mqttrpc")


class State(Enum):
    """The state of a call."""

    IDLE = auto()  # nothing was sent
    OPEN = auto()  # Requests and Responses may still come
    REQUESTED = auto()  # the last Request was sent, Responses may still come
    ANSWERED = auto()  # the last Response was sent, Requests may still come, and are ignored
    CLOSED = auto()  # over


class Event(Enum):
    """A message of a call."""

    REQUEST = auto()
    LAST_REQUEST = auto()
    RESPONSE = auto()
    LAST_RESPONSE = auto()
    ERROR = auto()


TABLES: Final[dict[Role, dict[tuple[State, Event], State]]] = {
    Role.CLIENT: {
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
    },
    Role.SERVER: {
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
    },
}
"""MQTTRPC-01. What is not here must not be sent. A Request that arrives and is not here repeats one in progress, and is
dropped (MQTTRPC-73); a Response that arrives after the last one belongs to no call any more."""


def request_event(shape: Shape, *, eos: bool) -> Event:
    """What a Request is in a call of this shape; without a stream its ``eos`` means nothing (MQTTRPC-10)."""
    return Event.LAST_REQUEST if eos or not shape.streams_requests else Event.REQUEST


def response_event(shape: Shape, *, eos: bool, failed: bool) -> Event:
    """What a Response is in a call of this shape; without a stream its ``eos`` means nothing (MQTTRPC-24)."""
    if failed:
        return Event.ERROR
    return Event.LAST_RESPONSE if eos or not shape.streams_responses else Event.RESPONSE


def deadline(started: float, duration: int) -> float:
    """When a call that started then, and may take ``duration`` milliseconds, must be over."""
    return started + duration / 1000


class CorrelationIds:
    """MQTTRPC-70: random correlation ids of 64 bits, never 0, never one that is in use."""

    def __init__(self, random_bits: Callable[[int], int] = secrets.randbits) -> None:
        self._random_bits = random_bits

    def new(self, in_use: Container[int] = ()) -> int:
        """An id for a new call."""
        while True:
            number = self._random_bits(64)
            if number != 0 and number not in in_use:
                return number


class UnknownWarnings:
    """MQTTRPC-15: warnings of discarded Responses, at most one a minute; each counts those since the last one."""

    def __init__(self) -> None:
        self._count = 0
        self._next = -math.inf

    def add(self, correlation_id: int, topic: str, now: float) -> None:
        """A Response with an unknown correlation id was discarded."""
        self._count += 1
        if now < self._next:
            return
        log.warning(
            "discarded %d Responses with unknown correlation ids, the last one %d on %s",
            self._count,
            correlation_id,
            topic,
        )
        self._count = 0
        self._next = now + WARNING_SECONDS


@dataclass(slots=True)
class Call:
    """One call in flight. ``due`` is when it must be over, ``heard`` when its last message arrived, in seconds."""

    correlation_id: int
    method: str
    shape: Shape
    state: State
    due: float
    heard: float


class UnaryMethods(Mapping[str, Shape]):
    """The methods of a service whose descriptor is not known: any name is one, with one Request and one Response."""

    def __getitem__(self, name: str) -> Shape:
        return Shape.UNARY

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Outcome(Enum):
    """What became of a message."""

    TAKEN = auto()  # it belongs to the step's call
    ECHO = auto()  # it goes the other way: an own message that came back, or another's
    UNKNOWN = auto()  # a Response to no call of ours
    DUPLICATE = auto()  # a Request that is in progress already
    LATE = auto()  # a Request of a call that has its answer, or the end of a stream that is not open
    REFUSED = auto()  # to be answered with the step's failure


@dataclass(frozen=True, slots=True)
class Step:
    """What a received message means for its call.

    ``started``: the call is new. ``item``: the message's value is one for the application. ``last``: nothing more comes
    in this direction. ``failure``: what to answer with if the outcome is ``REFUSED``.
    """

    outcome: Outcome
    call: Call | None = None
    started: bool = False
    item: bool = False
    last: bool = False
    failure: Failure | None = None


ECHO: Final = Step(Outcome.ECHO)
UNKNOWN: Final = Step(Outcome.UNKNOWN)


class Connection:
    """The calls at one end, at most ``max_calls`` of them: ``ClientCalls`` or ``ServerCalls``.

    ``default_timeout`` is for calls whose first Request has none, in milliseconds.
    """

    def __init__(self, role: Role, *, max_calls: int, default_timeout: int) -> None:
        self._table = TABLES[role]
        self._max_calls = max_calls
        self._default_timeout = default_timeout
        self._calls: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, correlation_id: object) -> bool:
        return correlation_id in self._calls

    def _full(self) -> bool:
        return len(self._calls) >= self._max_calls

    def _begin(self, request: Request, method: str, shape: Shape, now: float) -> Call:
        """MQTTRPC-56: the timeout of the first Request holds for the whole call."""
        state = self._table[State.IDLE, request_event(shape, eos=request.eos)]
        due = deadline(now, milliseconds(request.timeout, request.timeout_unit, self._default_timeout))
        call = Call(request.correlation_id, method, shape, state, due, now)
        self._calls[request.correlation_id] = call
        return call

    def _following(self, call: Call, frame: Request | Response) -> State | None:
        """The call's state after this message, or None if it must not come now."""
        if isinstance(frame, Request):
            event = request_event(call.shape, eos=frame.eos)
        else:
            event = response_event(call.shape, eos=frame.eos, failed=frame.error_data is not None)
        return self._table.get((call.state, event))

    def _move(self, call: Call, state: State) -> None:
        call.state = state
        if state is State.CLOSED:
            del self._calls[call.correlation_id]

    def _late(self, now: float) -> list[Call]:
        return [call for call in self._calls.values() if call.due <= now]


class ClientCalls(Connection):
    """The calls a client waits for. ``unknown`` counts the Responses that belonged to none (MQTTRPC-71)."""

    def __init__(self, *, max_calls: int = MAX_CALLS, default_timeout: int = DEFAULT_TIMEOUT) -> None:
        super().__init__(Role.CLIENT, max_calls=max_calls, default_timeout=default_timeout)
        self.unknown = 0

    def start(self, request: Request, shape: Shape, now: float) -> Call:
        """Begin a call with its first Request, which names the method."""
        number = request.correlation_id
        if number == 0:
            raise LocalProtocolError("the correlation id of a call must not be 0", rule="MQTTRPC-70")
        if number in self._calls:
            raise LocalProtocolError(f"the correlation id {number} is in use", rule="MQTTRPC-11")
        if self._full():
            raise LocalProtocolError(f"{len(self._calls)} calls are in flight, no more are allowed", rule="MQTTRPC-93")
        name = parse_type_url(request.type_url)
        if name is None:
            raise LocalProtocolError(f"the type_url {request.type_url!r} names no method", rule="MQTTRPC-50")
        return self._begin(request, name.method, shape, now)

    def send(self, request: Request) -> None:
        """Continue a call: one more Request of its stream."""
        number = request.correlation_id
        call = self._calls.get(number)
        if call is None:
            raise LocalProtocolError(f"the call {number} is over, or was never started", rule="MQTTRPC-01")
        following = self._following(call, request)
        if following is None:
            raise LocalProtocolError(f"the call {number} must not have more Requests", rule="MQTTRPC-01")
        name = parse_type_url(request.type_url)
        only_ends = request.eos and request.value is None
        if not only_ends and (name is None or name.method != call.method):
            raise LocalProtocolError(
                f"a Request for {request.type_url!r} can't continue a call of {call.method!r}", rule="MQTTRPC-09"
            )
        self._move(call, following)

    def receive(self, frame: Frame, now: float) -> Step:
        """What a message on the topic means. A call whose last Response this is, is over."""
        if not isinstance(frame, Response):
            return ECHO  # MQTTRPC-40
        call = self._calls.get(frame.correlation_id)
        following = None if call is None else self._following(call, frame)
        if call is None or following is None:
            self.unknown += 1
            return UNKNOWN  # MQTTRPC-14
        call.heard = now
        self._move(call, following)
        only_ends = call.shape.streams_responses and frame.eos and frame.value is None
        item = frame.error_data is None and not only_ends
        return Step(Outcome.TAKEN, call, item=item, last=following is State.CLOSED)

    def overdue(self, now: float) -> list[Call]:
        """Remove the calls whose time is up, and return them (MQTTRPC-58)."""
        late = self._late(now)
        for call in late:
            self._move(call, State.CLOSED)
        return late

    def end(self, correlation_id: int) -> None:
        """Forget a call that is no longer awaited."""
        call = self._calls.get(correlation_id)
        if call is not None:
            self._move(call, State.CLOSED)


class ServerCalls(Connection):
    """The calls a service works on. ``dropped`` counts the Requests that were duplicates or came too late."""

    def __init__(self, *, max_calls: int = MAX_CALLS, default_timeout: int = DEFAULT_TIMEOUT) -> None:
        super().__init__(Role.SERVER, max_calls=max_calls, default_timeout=default_timeout)
        self.dropped = 0

    def receive(self, frame: Frame, methods: Mapping[str, Shape], now: float) -> Step:
        """What a message on the topic means to a service with these methods.

        If the outcome is ``REFUSED``, publish the step's failure; if the step names a call, answer it with that through
        ``answer``.
        """
        if not isinstance(frame, Request):
            return ECHO  # MQTTRPC-40
        call = self._calls.get(frame.correlation_id)
        if call is None:
            return self._started(frame, methods, now)
        following = self._following(call, frame)
        if following is None:
            self.dropped += 1
            return Step(Outcome.DUPLICATE, call)  # MQTTRPC-73
        last = request_event(call.shape, eos=frame.eos) is Event.LAST_REQUEST
        if call.state is State.ANSWERED:
            self.dropped += 1
            self._move(call, following)
            return Step(Outcome.LATE, call, last=last)  # MQTTRPC-94
        item = frame.value is not None  # MQTTRPC-53
        if not (item or frame.eos):
            return Step(Outcome.REFUSED, call, failure=BAD_REQUEST)
        if frame.type_url:
            name = parse_type_url(frame.type_url)
            if name is None or name.method != call.method:
                return Step(Outcome.REFUSED, call, failure=BAD_REQUEST)  # MQTTRPC-09
        call.heard = now
        self._move(call, following)
        return Step(Outcome.TAKEN, call, item=item, last=last)

    def answer(self, response: Response) -> None:
        """Note a Response that is about to be sent. Raises if the call has its last one, or is none of ours."""
        call = self._calls.get(response.correlation_id)
        if call is None:
            raise LocalProtocolError(f"there is no call {response.correlation_id} to answer", rule="MQTTRPC-22")
        following = self._following(call, response)
        if following is None:
            raise LocalProtocolError(f"the call {response.correlation_id} has its last Response", rule="MQTTRPC-01")
        self._move(call, following)

    def overdue(self, now: float) -> list[Call]:
        """The calls to be answered with ``TIMEOUT`` now; those that only wait for late Requests are forgotten."""
        late = self._late(now)
        for call in late:
            if call.state is State.ANSWERED:
                self._move(call, State.CLOSED)
        return [call for call in late if call.state is not State.CLOSED]

    def idle(self, now: float, limit: int) -> list[Call]:
        """The calls whose next Request has been missing for ``limit`` milliseconds: to be answered ``STREAM_IDLE``."""
        return [
            call for call in self._calls.values() if call.state is State.OPEN and deadline(call.heard, limit) <= now
        ]

    def _started(self, request: Request, methods: Mapping[str, Shape], now: float) -> Step:
        """The first Request of a call."""
        if request.value is None:
            if request.timeout or not request.eos:
                return Step(Outcome.REFUSED, failure=BAD_REQUEST)  # MQTTRPC-105
            self.dropped += 1
            return Step(Outcome.LATE, last=True)  # MQTTRPC-94: the end of a stream that is not open
        name = parse_type_url(request.type_url)
        shape = None if name is None else methods.get(name.method)
        if name is None or shape is None:
            return Step(Outcome.REFUSED, failure=NO_METHOD)
        if self._full():
            return Step(Outcome.REFUSED, failure=OVERLOADED)  # MQTTRPC-93
        call = self._begin(request, name.method, shape, now)
        return Step(Outcome.TAKEN, call, started=True, item=True, last=call.state is State.REQUESTED)
