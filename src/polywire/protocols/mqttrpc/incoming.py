"""Requests on service topics for services that are offered over the hub's other protocols.

The hub stands in for the provider: it makes a call of the Request and publishes the outcome as a Response.
"""

from collections import OrderedDict
from typing import Final, assert_never, final

from polywire.hub.access import CALL
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.peer import Limits
from polywire.hub.refusal import Refused
from polywire.hub.services import Call, Caller, CallError
from polywire.protocols.mqttrpc import errors
from polywire.protocols.mqttrpc.connection import Outcome, ServerCalls, UnaryMethods
from polywire.protocols.mqttrpc.errors import Failure
from polywire.protocols.mqttrpc.failures import failed_call, refusal, refused
from polywire.protocols.mqttrpc.frames import Request, Response, milliseconds
from polywire.protocols.mqttrpc.publisher import TopicPublisher

MAX_CALLS: Final = 65_536
STREAMS_REMEMBERED: Final = 4096
"""How many refused streams of Requests are remembered until their end."""

ONE_REQUEST: Final = Failure(400, "bad-request", "This service takes one request in a call, not a stream of them.")

DUPLICATE: Final = "duplicate"
LATE: Final = "late"


@final
class TopicCall(Caller):
    """Whoever published a Request. ``digest`` tells a repeated Request from the next one of a stream."""

    def __init__(self, requests: "TopicRequests", topic: str, correlation_id: int, client: int, digest: int) -> None:
        self._requests: Final = requests
        self.topic: Final = topic
        self.correlation_id: Final = correlation_id
        self.client: Final = client
        self.digest: Final = digest
        self.call: Call | None = None

    def reply(self, call: Call, message: Message, *, last: bool) -> None:  # noqa: ARG002 - the call is not streamed
        """Publish the reply. With ``eos``: to a caller that expects a stream it is one of one."""
        self._requests.answer(self, Response(self.correlation_id, "", message.body, None, True))

    def fail(self, call: Call, error: CallError) -> None:  # noqa: ARG002 - there is one call
        """Publish the error."""
        self._requests.answer(self, failed_call(self.correlation_id, error))


@final
class TopicRequests:
    """The Requests that providers on other protocols work on."""

    def __init__(self, hub: Hub, publisher: TopicPublisher, limits: Limits, *, max_calls: int = MAX_CALLS) -> None:
        self._hub: Final = hub
        self._publisher: Final = publisher
        self._methods: Final = UnaryMethods()
        self._calls: Final = ServerCalls(max_calls=max_calls)
        self._open: Final[dict[int, TopicCall]] = {}
        self._by_client: Final[dict[int, int]] = {}
        self._streams: Final[OrderedDict[tuple[int, int], None]] = OrderedDict()
        self._drained: frozenset[str] | None = None
        self.limits = limits

    def __len__(self) -> int:
        return len(self._open)

    def offers(self, service: str) -> bool:
        """Whether Requests on the service's topic are for us."""
        return self._hub.services.offered(service) or (self._drained is not None and service in self._drained)

    def drain(self) -> None:
        """Refuse new calls, those to providers that leave meanwhile too."""
        self._drained = frozenset(self._hub.services.names())

    def request(self, service: str, topic: str, request: Request, client: Client) -> None:
        """MQTTRPC-48: a Request was heard on the topic of a service that is offered here."""
        number = request.correlation_id
        denied = self._hub.forbids(client, CALL, service)
        if denied is not None:
            self._refuse(topic, number, failure_of(denied, client))
            return
        key = (client.number, number)
        if key in self._streams:
            client.counters.drop(LATE)  # MQTTRPC-94
            if request.eos:
                del self._streams[key]
            return
        running = self._open.get(number)
        if running is not None:
            self._again(running, request, client)
            return
        if self._drained is not None:
            self._refuse(topic, number, errors.DRAINING)
            return
        if self._by_client.get(client.number, 0) >= self.limits.in_flight:
            limit = self._hub.refuse(client, CALL, service, Refused.LIMIT)
            self._refuse(topic, number, failure_of(limit, client))
            return
        self._start(service, topic, request, client)

    def answer(self, caller: TopicCall, response: Response) -> None:
        """The call is over: publish its Response."""
        number = caller.correlation_id
        caller.call = None  # each has the other
        del self._open[number]
        left = self._by_client[caller.client] - 1
        if left:
            self._by_client[caller.client] = left
        else:
            del self._by_client[caller.client]
        self._calls.answer(response)
        if not self._publisher.publish(caller.topic, response):
            self._refuse(caller.topic, number, errors.TOO_LARGE)

    def _start(self, service: str, topic: str, request: Request, client: Client) -> None:
        now = self._hub.clock()
        step = self._calls.receive(request, self._methods, self._hub.monotonic() / 1e9)
        made = step.call
        if step.failure is not None:
            self._refuse(topic, request.correlation_id, step.failure)
        elif step.outcome is not Outcome.TAKEN or made is None:
            client.counters.drop(LATE)
        else:
            self._publisher.client.counters.messages_out += 1
            caller = TopicCall(self, topic, request.correlation_id, client.number, hash(request))
            self._open[caller.correlation_id] = caller
            self._by_client[client.number] = self._by_client.get(client.number, 0) + 1
            call = Call(caller, service, made.method)
            caller.call = call
            default = max(1, round(self.limits.call_time * 1000))
            seconds = milliseconds(request.timeout, request.timeout_unit, default) / 1000
            message = Message(topic, request.value or b"", time=now, origin=client.number)
            denied = self._hub.call(client, call, message, seconds=seconds)
            if denied is not None:
                self.answer(caller, refused(caller.correlation_id, failure_of(denied, client)))

    def _again(self, running: TopicCall, request: Request, client: Client) -> None:
        """MQTTRPC-73: a Request whose correlation id is in work. From its own caller another one is a stream's next."""
        if request.eos and request.value is None:
            return  # MQTTRPC-101: the end of a stream of one
        client.counters.drop(DUPLICATE)
        call = running.call
        if call is None or running.client != client.number or running.digest == hash(request):
            return
        if not request.eos:
            if len(self._streams) >= STREAMS_REMEMBERED:
                self._streams.popitem(last=False)
            self._streams[client.number, request.correlation_id] = None
        self._hub.services.cancel(call, refusal(ONE_REQUEST))
        self.answer(running, refused(request.correlation_id, ONE_REQUEST))

    def _refuse(self, topic: str, number: int, failure: Failure) -> None:
        self._publisher.publish(topic, refused(number, failure))


def failure_of(reason: Refused, client: Client) -> Failure:
    """What a caller hears whose call the hub has refused."""
    match reason:
        case Refused.FORBIDDEN:
            return errors.UNAUTHORIZED if client.identity.how == "anonymous" else errors.FORBIDDEN
        case Refused.DRAINING:
            return errors.DRAINING
        case (
            Refused.LIMIT
            | Refused.SERVICE_CHANNEL
            | Refused.UNSUPPORTED
            | Refused.TOO_DEEP
            | Refused.RETAINED_FULL
            | Refused.PATTERN_COST
            | Refused.NAMES_SIZE
            | Refused.WATCHERS
            | Refused.WILLS_SIZE
            | Refused.TOO_MANY_QUEUES
            | Refused.QUEUE_FULL
            | Refused.QUEUES_FULL
            | Refused.UNAVAILABLE
        ):
            return errors.OVERLOADED
        case _:
            assert_never(reason)
