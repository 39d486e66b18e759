"""The calls in flight, at the caller and at the callee: which message belongs to which, and what it means there.

Pure: frames and times go in, steps come out. ``ClientCalls`` and ``ServerCalls`` hold at most ``max_calls`` calls each.
"""

import logging
import math
import secrets
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from polywire.protocols.mqttrpc.errors import BAD_REQUEST, NO_METHOD, OVERLOADED, Failure, LocalProtocolError
from polywire.protocols.mqttrpc.frames import Request, Response
from polywire.protocols.mqttrpc.methods import parse_type_url
from polywire.protocols.mqttrpc.state import CLIENT, SERVER, Event, Shape, State, request_event, response_event
from polywire.protocols.mqttrpc.timeouts import DEFAULT_TIMEOUT, deadline, milliseconds
from polywire.wire.frame import Frame

MAX_CALLS = 1024
"""MQTTRPC-93: how many calls each side has in flight at most, by default."""

WARNING_SECONDS = 60.0
"""The least time between two warnings of unknown Responses."""

log = logging.getLogger("polywire.mqttrpc")


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
        """A Response with an unknown correlation id was discarded. ``now`` is in seconds."""
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
    """One call in flight. ``due`` and ``heard`` are seconds on the caller's clock."""

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
    ECHO = auto()  # it goes the other way: an own message come back, or another's
    UNKNOWN = auto()  # a Response to no call of ours
    DUPLICATE = auto()  # a Request that is in work already
    LATE = auto()  # a Request of a call that has its answer, or the end of a stream that is not open
    REFUSED = auto()  # to be answered with the step's failure


@dataclass(frozen=True, slots=True)
class Step:
    """What a received message means for its call.

    ``started``: the call is new. ``item``: the message's value is one for the application. ``last``: nothing more comes
    in this direction. ``failure``: what to answer with, where the outcome is ``REFUSED``.
    """

    outcome: Outcome
    call: Call | None = None
    started: bool = False
    item: bool = False
    last: bool = False
    failure: Failure | None = None


ECHO = Step(Outcome.ECHO)
UNKNOWN = Step(Outcome.UNKNOWN)


class ClientCalls:
    """The calls a client waits for. ``unknown`` counts the Responses that belonged to none (MQTTRPC-71)."""

    def __init__(self, *, max_calls: int = MAX_CALLS, default_timeout: int = DEFAULT_TIMEOUT) -> None:
        self._max_calls = max_calls
        self._default_timeout = default_timeout
        self._calls: dict[int, Call] = {}
        self.unknown = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, correlation_id: object) -> bool:
        return correlation_id in self._calls

    def start(self, request: Request, shape: Shape, now: float) -> Call:
        """Begin a call with its first Request, which names the method."""
        number = request.correlation_id
        if number == 0:
            raise LocalProtocolError("the correlation id of a call must not be 0", rule="MQTTRPC-70")
        if number in self._calls:
            raise LocalProtocolError(f"the correlation id {number} is in use", rule="MQTTRPC-11")
        if len(self._calls) >= self._max_calls:
            raise LocalProtocolError(f"{len(self._calls)} calls are in flight, no more are allowed", rule="MQTTRPC-93")
        name = parse_type_url(request.type_url)
        if name is None:
            raise LocalProtocolError(f"the type_url {request.type_url!r} names no method", rule="MQTTRPC-50")
        due = deadline(now, milliseconds(request.timeout, request.timeout_unit, self._default_timeout))
        state = CLIENT[State.IDLE, request_event(shape, request.eos)]
        call = Call(number, name.method, shape, state, due, now)
        self._calls[number] = call
        return call

    def send(self, request: Request) -> None:
        """Go on with a call: one more Request of its stream."""
        call = self._calls.get(request.correlation_id)
        event = Event.REQUEST if call is None else request_event(call.shape, request.eos)
        following = None if call is None else CLIENT.get((call.state, event))
        if call is None or following is None:
            where = "over, or was never started" if call is None else "not to have more Requests"
            raise LocalProtocolError(f"the call {request.correlation_id} is {where}", rule="MQTTRPC-01")
        name = parse_type_url(request.type_url)
        only_ends = request.eos and request.value is None
        if not only_ends and (name is None or name.method != call.method):
            raise LocalProtocolError(
                f"a Request for {request.type_url!r} can't continue a call of {call.method!r}", rule="MQTTRPC-09"
            )
        call.state = following

    def receive(self, frame: Frame, now: float) -> Step:
        """What a message heard on the topic means. A call whose last Response this is, is over."""
        if not isinstance(frame, Response):
            return ECHO  # MQTTRPC-40
        call = self._calls.get(frame.correlation_id)
        if call is None:
            self.unknown += 1
            return UNKNOWN  # MQTTRPC-14
        event = response_event(call.shape, frame.eos, frame.error_data is not None)
        call.state = CLIENT[call.state, event]
        call.heard = now
        last = call.state is State.CLOSED
        if last:
            del self._calls[call.correlation_id]
        only_ends = call.shape.streams_responses and frame.eos and frame.value is None
        return Step(Outcome.TAKEN, call, item=event is not Event.ERROR and not only_ends, last=last)

    def overdue(self, now: float) -> list[Call]:
        """Take out the calls whose time is up, for the caller to be told (MQTTRPC-58)."""
        late = [call for call in self._calls.values() if call.due <= now]
        for call in late:
            self.end(call.correlation_id)
        return late

    def end(self, correlation_id: int) -> None:
        """Forget a call: nobody waits for it any more."""
        call = self._calls.pop(correlation_id, None)
        if call is not None:
            call.state = State.CLOSED


class ServerCalls:
    """The calls a service works on. ``dropped`` counts the Requests that were duplicates or came too late."""

    def __init__(self, *, max_calls: int = MAX_CALLS, default_timeout: int = DEFAULT_TIMEOUT) -> None:
        self._max_calls = max_calls
        self._default_timeout = default_timeout
        self._calls: dict[int, Call] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, correlation_id: object) -> bool:
        return correlation_id in self._calls

    def receive(self, frame: Frame, methods: Mapping[str, Shape], now: float) -> Step:
        """What a message heard on the topic means, to a service with these methods.

        Where the outcome is ``REFUSED``, the step's failure is to be published; a call it names is to be answered with
        it through ``answer``.
        """
        if not isinstance(frame, Request):
            return ECHO  # MQTTRPC-40
        call = self._calls.get(frame.correlation_id)
        if call is None:
            return self._started(frame, methods, now)
        event = request_event(call.shape, frame.eos)
        following = SERVER.get((call.state, event))
        if following is None:
            self.dropped += 1
            return Step(Outcome.DUPLICATE, call)  # MQTTRPC-73
        if call.state is State.ANSWERED:
            self.dropped += 1
            self._move(call, following)
            return Step(Outcome.LATE, call, last=event is Event.LAST_REQUEST)  # MQTTRPC-94
        item = frame.value is not None  # MQTTRPC-53
        if not (item or frame.eos):
            return Step(Outcome.REFUSED, call, failure=BAD_REQUEST)
        if frame.type_url:
            name = parse_type_url(frame.type_url)
            if name is None or name.method != call.method:
                return Step(Outcome.REFUSED, call, failure=BAD_REQUEST)  # MQTTRPC-09
        call.heard = now
        self._move(call, following)
        return Step(Outcome.TAKEN, call, item=item, last=event is Event.LAST_REQUEST)

    def answer(self, response: Response) -> None:
        """Note a Response that is about to be sent. Raises where the call has its last one, or is none of ours."""
        call = self._calls.get(response.correlation_id)
        if call is None:
            raise LocalProtocolError(f"there is no call {response.correlation_id} to answer", rule="MQTTRPC-22")
        event = response_event(call.shape, response.eos, response.error_data is not None)
        following = SERVER.get((call.state, event))
        if following is None:
            raise LocalProtocolError(f"the call {response.correlation_id} has its last Response", rule="MQTTRPC-01")
        self._move(call, following)

    def overdue(self, now: float) -> list[Call]:
        """The calls to be answered with ``TIMEOUT`` now; those that only wait for late Requests are forgotten."""
        late = [call for call in self._calls.values() if call.due <= now]
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
        if len(self._calls) >= self._max_calls:
            return Step(Outcome.REFUSED, failure=OVERLOADED)  # MQTTRPC-93
        # MQTTRPC-56: the timeout of the first Request holds for the whole call.
        due = deadline(now, milliseconds(request.timeout, request.timeout_unit, self._default_timeout))
        event = request_event(shape, request.eos)
        call = Call(request.correlation_id, name.method, shape, SERVER[State.IDLE, event], due, now)
        self._calls[request.correlation_id] = call
        return Step(Outcome.TAKEN, call, started=True, item=True, last=event is Event.LAST_REQUEST)

    def _move(self, call: Call, state: State) -> None:
        call.state = state
        if state is State.CLOSED:
            del self._calls[call.correlation_id]
