"""Calls from the hub's other protocols to services on MQTT: Requests published, Responses waited for.

To the hub's services the subscribers of a service's topic are one provider.
"""

from collections import OrderedDict
from typing import Final, final

from polywire.hub.access import SERVE
from polywire.hub.channels import ANY, is_literal
from polywire.hub.client import Client
from polywire.hub.demand import Watcher
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.services import END, Call, CallError, Provider
from polywire.protocols.mqttrpc.connection import ClientCalls, CorrelationIds, UnknownWarnings
from polywire.protocols.mqttrpc.errors import NO_METHOD, OVERLOADED, TOO_LARGE, LocalProtocolError
from polywire.protocols.mqttrpc.failures import call_error, refusal
from polywire.protocols.mqttrpc.frames import MAX_TIMEOUT, Request, Response, from_seconds
from polywire.protocols.mqttrpc.publisher import TopicPublisher
from polywire.protocols.mqttrpc.service import Shape, parse_type_url, service_topic

MAX_CALLS: Final = 65_536
SERVICES_REMEMBERED: Final = 1024
"""How many of the services called lately are listened to for Responses that come too late."""

UNKNOWN: Final = "unknown-correlation-id"


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
        """Whether somebody listens on exactly the service's topic; who listens to everything is no service."""
        try:
            topic = service_topic(service)
        except LocalProtocolError:
            return False
        return self._hub.demand.count(topic) > 0

    def knows(self, service: str) -> bool:
        """Whether Responses on the service's topic are looked at: it is being called, or was lately."""
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
            return  # behind the last one
        self._publish(call, request)

    def cancel(self, call: Call, error: CallError) -> None:  # noqa: ARG002 - RPC over MQTT has no words for it
        """Wait no more. The service goes on until its own deadline; what it answers is unknown then."""
        self._forget(call)

    def response(self, service: str, response: Response, client: Client) -> None:
        """A Response was heard on the service's topic."""
        call = self._open.get(response.correlation_id)
        if call is None or call.service != service:
            self._unheard_of(service, response.correlation_id)
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
            self._hub.services.reply(call, reply, last=step.last)
        else:
            self._hub.services.reply(call, END, last=True)

    def deserted(self, topic: str) -> None:
        """Nobody subscribes to the topic, or pattern, any more: calls that nobody hears now have failed."""
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

    def _unheard_of(self, service: str, number: int) -> None:
        """MQTTRPC-15: count a Response nobody here waits for, and log it now and then."""
        self._publisher.client.counters.drop(UNKNOWN)
        self._warnings.add(number, service_topic(service), self._hub.monotonic() / 1e9)


@final
class _Desertions(Watcher):
    """Hears when a service topic loses its last subscriber."""

    def __init__(self, provider: TopicProvider) -> None:
        super().__init__(f"/{ANY}")
        self._provider: Final = provider

    def demand(self, topic: str, subscribers: int) -> None:
        if subscribers == 0:
            self._provider.deserted(topic)
