"""RPC over MQTT on the hub's side: the bridge between service topics and the hub's services.

RPC over MQTT has no connection of its own. Its messages are published on the topics ``/<name>``, which MQTT clients
use like any other. The bridge, one for each hub, handles what is published there. It turns Requests to services that
are offered over other protocols into calls, and publishes the outcome as a Response. ``delivery.py`` does the reverse,
for calls from other protocols to services on MQTT.
"""

from collections import OrderedDict
from typing import Final, assert_never, final

from polywire.hub.access import CALL
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.peer import Limits, Refused
from polywire.hub.services import Call, Caller, CallError, Provider
from polywire.protocols.mqttrpc import errors
from polywire.protocols.mqttrpc.connection import Outcome, ServerCalls, UnaryMethods
from polywire.protocols.mqttrpc.delivery import (
    TopicProvider,
    TopicPublisher,
    failed_call,
    hub_response,
    refusal,
    refused,
)
from polywire.protocols.mqttrpc.errors import Failure, RemoteProtocolError
from polywire.protocols.mqttrpc.frames import Decoder, Request, Response, milliseconds
from polywire.protocols.mqttrpc.service import service_of

MAX_CALLS: Final = 65_536
STREAMS_REMEMBERED: Final = 4096
"""How many refused streams of Requests are remembered until they end."""

ONE_REQUEST: Final = Failure(400, "bad-request", "This service takes one request in a call, not a stream of them.")

DUPLICATE: Final = "duplicate"
LATE: Final = "late"


@final
class TopicCall(Caller):
    """The publisher of a Request. ``digest`` distinguishes a repeated Request from the next one of a stream."""

    by_topic = True

    def __init__(self, requests: "TopicRequests", topic: str, correlation_id: int, client: int, digest: int) -> None:
        self._requests: Final = requests
        self.topic: Final = topic
        self.correlation_id: Final = correlation_id
        self.client: Final = client
        self.digest: Final = digest
        self.call: Call | None = None

    def reply(self, call: Call, message: Message, *, last: bool) -> None:  # noqa: ARG002 - the call is not streamed
        """Publish the reply. With ``eos``: for a caller that expects a stream, it is a stream of one."""
        self._requests.answer(self, Response(self.correlation_id, "", message.body, None, eos=True))

    def fail(self, call: Call, error: CallError) -> None:  # noqa: ARG002 - there is one call
        """Publish the error."""
        self._requests.answer(self, failed_call(self.correlation_id, error))


@final
class TopicRequests:
    """The Requests to services that are offered over other protocols."""

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
        """Whether Requests on the service's topic are for the hub."""
        return self._hub.services.offered(service) or (self._drained is not None and service in self._drained)

    def drain(self) -> None:
        """Refuse new calls, even to providers that disconnect in the meantime."""
        self._drained = frozenset(self._hub.services.names())

    def request(self, service: str, topic: str, request: Request, client: Client) -> None:
        """MQTTRPC-48: a Request was published on the topic of a service that is offered here."""
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
        caller.call = None  # they refer to each other
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
            # The journal has the Request itself, too: under one name the two are one call.
            call.correlation = f"{topic}:{request.correlation_id}"
            caller.call = call
            default = max(1, round(self.limits.call_time * 1000))
            seconds = milliseconds(request.timeout, request.timeout_unit, default) / 1000
            message = Message(topic, request.value or b"", time=now, origin=client.number)
            denied = self._hub.call(client, call, message, seconds=seconds)
            if denied is not None:
                self.answer(caller, refused(caller.correlation_id, failure_of(denied, client)))

    def _again(self, running: TopicCall, request: Request, client: Client) -> None:
        """MQTTRPC-73: a Request with the id of a call in progress. Another one from its caller continues a stream."""
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
    """The failure that a caller gets whose call the hub refused."""
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


@final
class RpcBridge:
    """The hub's part in RPC over MQTT. Creating one connects it to the hub."""

    def __init__(self, hub: Hub, limits: Limits) -> None:
        self._hub: Final = hub
        self._publisher: Final = TopicPublisher(hub)
        self._outgoing: Final = TopicProvider(hub, self._publisher)
        self._incoming: Final = TopicRequests(hub, self._publisher, limits)
        self._decoder = Decoder(max_message=limits.message_size)
        hub.services.elsewhere = self.elsewhere
        hub.on_service_topic = self.heard

    def elsewhere(self, service: str) -> Provider | None:
        """The provider of a service that nobody offers over UMQ or sABC: the subscribers of its topic, if any."""
        return self._outgoing if self._outgoing.reaches(service) else None

    def heard(self, message: Message, client: Client) -> None:
        """Something was published on a service topic."""
        if client is self._publisher.client:
            return  # our own
        topic = message.channel
        service = topic[1:]
        offered = self._incoming.offers(service)
        called = self._outgoing.knows(service)
        # Ordinary topics have such names, too: what concerns no service of the hub's is not even decoded.
        if not (offered or called) or not message.body or service_of(topic) is None:
            return
        try:
            frame = self._decoder.feed(message.body)[0]
        except RemoteProtocolError as error:
            self._publisher.client.counters.fault(error.rule)
            if error.oversize:
                self._hub.oversized(client, error.oversize, self._incoming.limits.message_size)
            reply = error.reply
            if offered and isinstance(reply, Response) and self._hub.forbids(client, CALL, service) is None:
                data = reply.error_data
                self._publisher.publish(topic, reply if data is None else hub_response(reply.correlation_id, data))
            return
        if isinstance(frame, Request):
            if offered:
                self._incoming.request(service, topic, frame, client)
        elif isinstance(frame, Response) and called:
            self._outgoing.response(service, frame, client)

    def drain(self) -> None:
        """The hub is shutting down: new Requests get 503, calls in flight are finished."""
        self._incoming.drain()

    def reload(self, limits: Limits) -> None:
        """Apply new limits from now on."""
        self._incoming.limits = limits
        self._decoder = Decoder(max_message=limits.message_size)

    def under_way(self) -> int:
        """How many calls are in flight, in both directions."""
        return len(self._incoming) + len(self._outgoing)
