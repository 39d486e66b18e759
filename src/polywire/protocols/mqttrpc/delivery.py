"""What the hub publishes on service topics: calls to services on MQTT, and errors as RPC over MQTT has them.

To the hub's services, the subscribers of a service's topic are one provider: Requests are published, Responses awaited.
"""

from collections import OrderedDict
from typing import Final, final

from polywire.hub.access import SERVE
from polywire.hub.channels import ANY, is_literal
from polywire.hub.client import Client
from polywire.hub.demand import Watcher
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.outbox import Nowhere, Outbox
from polywire.hub.services import END, HIGHEST_CODE, LOWEST_CODE, Call, CallError, Provider, service_error
from polywire.protocols.mqttrpc.connection import ClientCalls, CorrelationIds, UnknownWarnings
from polywire.protocols.mqttrpc.errors import (
    FAILURES,
    HANDLER_FAILED,
    HUB_ERROR,
    NO_METHOD,
    OVERLOADED,
    TOO_LARGE,
    Failure,
    LocalProtocolError,
)
from polywire.protocols.mqttrpc.frames import (
    MAX_TIMEOUT,
    MAX_UINT32,
    ErrorData,
    Request,
    Response,
    encode,
    from_seconds,
)
from polywire.protocols.mqttrpc.service import Shape, parse_type_url, service_topic
from polywire.wire.frame import Frame

PROTOCOL: Final = "mqttrpc"
MAX_CALLS: Final = 65_536
SERVICES_REMEMBERED: Final = 1024
"""How many of the services called last are still checked for late Responses."""

UNKNOWN: Final = "unknown-correlation-id"
UNAVAILABLE: Final = "Not available, please try again."


def error_data(error: CallError) -> ErrorData:
    """The error data for a caller on MQTT.

    MQTTRPC-109: a service's error keeps its code, tag, text and time. MQTTRPC-49: the text of one from 500 on that has
    no tag could reveal internals (MQTTRPC-66), and is replaced. The hub's own errors have the table's text.
    """
    code = error.code if LOWEST_CODE <= error.code <= HIGHEST_CODE else HANDLER_FAILED.code
    retry_after = min(max(error.retry_after, 0), MAX_UINT32)
    if not error.from_hub and error.tag != HANDLER_FAILED.tag and (error.tag or code < HANDLER_FAILED.code):
        return ErrorData(code, error.tag, error.text, retry_after)
    if code == HANDLER_FAILED.code:
        return ErrorData(code, HANDLER_FAILED.tag, HANDLER_FAILED.user_message, retry_after)
    if error.from_hub:
        for failure in FAILURES:
            if failure.code == code and failure.tag == error.tag:
                return ErrorData(code, failure.tag, failure.user_message, retry_after or failure.retry_after)
        if code < HANDLER_FAILED.code:
            return ErrorData(code, error.tag, error.text, retry_after)
    return ErrorData(code, error.tag, UNAVAILABLE if code == 503 else HANDLER_FAILED.user_message, retry_after)


def failed_call(correlation_id: int, error: CallError) -> Response:
    """The Response that ends a call of a caller on MQTT."""
    data = error_data(error)
    return hub_response(correlation_id, data) if error.from_hub else Response(correlation_id, "", None, data, eos=True)


def hub_response(correlation_id: int, data: ErrorData) -> Response:
    """MQTTRPC-110: a Response with an error of the hub itself; its body distinguishes it from a service's."""
    return Response(correlation_id, HUB_ERROR, b"", data, eos=True)


def refused(correlation_id: int, failure: Failure) -> Response:
    """The Response to a Request that the hub refuses."""
    return hub_response(correlation_id, ErrorData(failure.code, failure.tag, failure.user_message, failure.retry_after))


def call_error(data: ErrorData) -> CallError:
    """The error of a service on MQTT, for a caller in the hub."""
    return service_error(data.code, data.tag, data.user_message, data.retry_after)


def refusal(failure: Failure) -> CallError:
    """One of the table's failures as the hub's error."""
    return CallError(failure.code, failure.tag, failure.user_message, failure.retry_after)


@final
class TopicPublisher:
    """Publishes Requests and Responses for the hub. Its ``client`` has no connection, and may do everything."""

    def __init__(self, hub: Hub) -> None:
        self._hub: Final = hub
        number = [counters.protocol for counters in hub.counters].index(PROTOCOL)
        self.client: Final[Client] = hub.client(number, Outbox(Nowhere(), hub.flusher))

    def publish(self, topic: str, frame: Frame) -> bool:
        """Publish a Request or a Response. False if it can't be written: it is too large for MQTT."""
        try:
            payload = encode(frame)
        except LocalProtocolError:
            return False
        self._hub.publish(Message(topic, payload, time=self._hub.clock(), origin=self.client.number), self.client)
        return True


@final
class TopicProvider(Provider):
    """The MQTT subscribers of service topics, as the provider of those services."""

    def __init__(self, hub: Hub, publisher: TopicPublisher, *, max_calls: int = MAX_CALLS) -> None:
        self._hub: Final = hub
        self._publisher: Final = publisher
        self._ids: Final = CorrelationIds()
        self._max_calls: Final = max_calls
        self._calls: Final = ClientCalls(max_calls=max_calls)
        self._open: Final[dict[int, Call]] = {}
        self._numbers: Final[dict[Call, int]] = {}
        self._by_service: Final[dict[str, dict[Call, None]]] = {}
        self._lately: Final[OrderedDict[str, None]] = OrderedDict()
        self._warnings: Final = UnknownWarnings()
        hub.demand.watch(_Desertions(self))

    def __len__(self) -> int:
        return len(self._open)

    def reaches(self, service: str) -> bool:
        """Whether exactly the service's topic has a subscriber here; a subscription with a wildcard is no service."""
        try:
            topic = service_topic(service)
        except LocalProtocolError:
            return False
        return self._hub.demand.count_here(topic) > 0

    def knows(self, service: str) -> bool:
        """Whether Responses on the service's topic are decoded: it is being called, or was called lately."""
        return service in self._by_service or service in self._lately

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        """MQTTRPC-45: publish a Request of the call, its first or a further one."""
        number = self._numbers.get(call, 0)
        if number == 0:
            self._start(call, message, last=last)
            return
        request = Request(number, call.method, message.body, last)
        try:
            self._calls.send(request)
        except LocalProtocolError:
            return  # after the last one
        self._publish(call, request)

    def cancel(self, call: Call, error: CallError) -> None:  # noqa: ARG002 - RPC over MQTT can't cancel
        """Stop waiting. The service works until its own deadline; its answer is unknown by then."""
        self._forget(call)

    def response(self, service: str, response: Response, client: Client) -> None:
        """A Response was published on the service's topic."""
        call = self._open.get(response.correlation_id)
        if call is None or call.service != service:
            self._unknown(service, response.correlation_id)
            return
        if self._hub.forbids(client, SERVE, service) is not None:
            return
        now = self._hub.clock()
        step = self._calls.receive(response, self._hub.monotonic() / 1e9)
        if step.last:
            self._forget(call)
        self._publisher.client.counters.messages_out += 1
        data = response.error_data
        if data is not None:
            self._hub.services.fail(call, call_error(data))
        elif step.item:
            reply = Message(service_topic(service), response.value or b"", time=now, origin=client.number)
            self._hub.services.reply(call, reply, last=step.last, client=client)
        else:
            self._hub.services.reply(call, END, last=True, client=client)

    def deserted(self, topic: str) -> None:
        """The topic, or pattern, has no subscriber any more: calls without a receiver fail now."""
        services = [topic[1:]] if is_literal(topic) else list(self._by_service)
        for service in services:
            calls = self._by_service.get(service)
            if calls is not None and not self.reaches(service):
                for call in list(calls):
                    self._forget(call)
                    error = CallError(503, "provider-gone", "the provider disconnected before it replied", 1)
                    self._hub.services.fail(call, error)

    def _start(self, call: Call, message: Message, *, last: bool) -> None:
        if parse_type_url(call.method) is None:
            self._hub.services.fail(call, refusal(NO_METHOD))  # MQTTRPC-50: no service on MQTT has such a method
            return
        if len(self._open) >= self._max_calls:
            self._hub.services.fail(call, refusal(OVERLOADED))
            return
        number = self._ids.new(self._open)
        timeout, unit = from_seconds(min(max(call.seconds, 0.001), MAX_TIMEOUT / 1000))
        request = Request(number, call.method, message.body, last, timeout, unit)
        self._calls.start(request, Shape((not last, call.streamed)), self._hub.monotonic() / 1e9)
        self._open[number] = call
        self._numbers[call] = number
        self._by_service.setdefault(call.service, {})[call] = None
        self._remember(call.service)
        self._publish(call, request)

    def _publish(self, call: Call, request: Request) -> None:
        if not self._publisher.publish(service_topic(call.service), request):
            self._forget(call)
            self._hub.services.fail(call, refusal(TOO_LARGE))

    def _forget(self, call: Call) -> None:
        number = self._numbers.pop(call, 0)
        if number == 0:
            return
        del self._open[number]
        self._calls.end(number)
        calls = self._by_service[call.service]
        del calls[call]
        if not calls:
            del self._by_service[call.service]

    def _remember(self, service: str) -> None:
        if service not in self._lately:
            if len(self._lately) >= SERVICES_REMEMBERED:
                self._lately.popitem(last=False)
            self._lately[service] = None

    def _unknown(self, service: str, number: int) -> None:
        """MQTTRPC-15: count a Response that no call waits for, and log it at most once a minute."""
        self._publisher.client.counters.drop(UNKNOWN)
        self._warnings.add(number, service_topic(service), self._hub.monotonic() / 1e9)


@final
class _Desertions(Watcher):
    """Reports when a service topic loses its last subscriber."""

    def __init__(self, provider: TopicProvider) -> None:
        super().__init__(f"/{ANY}")
        self._provider: Final = provider

    def demand(self, topic: str, subscribers: int) -> None:
        if subscribers == 0:
            self._provider.deserted(topic)
