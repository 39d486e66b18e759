"""The services a peer offers: requests go to it as ``B``, its ``R`` or ``E`` is the reply."""

from typing import Final, final

from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Attached, Message
from polywire.hub.refusal import Refused
from polywire.hub.services import Call, CallError, Provider
from polywire.protocols.umq.answers import Answers
from polywire.protocols.umq.base36 import write
from polywire.protocols.umq.connection import OutgoingCalls
from polywire.protocols.umq.errors import FatalCode, LocalProtocolError, MethodError
from polywire.protocols.umq.frames import CallException, Result
from polywire.protocols.umq.gathering import assembled
from polywire.protocols.umq.methods import Body, Serve, ServedRequest, Unserve, shown, write_request
from polywire.protocols.umq.updates import Prepared, json_body, prepare, stand_ins

RETRY: Final = 1000
"""UMQ-148: after how many milliseconds a caller may try again where the provider did not keep up."""


@final
class Serving(Provider):
    """One peer as a provider. At most ``limit`` services, and ``in_flight`` requests it has not answered."""

    def __init__(self, hub: Hub, client: Client, answers: Answers, *, limit: int, in_flight: int) -> None:
        self.connection = client
        self.takes_failed_body = True
        self._hub: Final = hub
        self._services: Final = hub.services
        self._client: Final = client
        self._answers: Final = answers
        self._limit: Final = limit
        self._callbacks: Final[dict[str, int]] = {}
        self._asked: Final[OutgoingCalls[Call]] = OutgoingCalls(limit=in_flight)
        self._ids: Final[dict[Call, int]] = {}

    def __len__(self) -> int:
        """How many requests the peer has not answered."""
        return len(self._ids)

    def problem(self, service: str) -> MethodError | None:
        """Why the peer can't offer a service: it does already, or offers too many."""
        if service in self._callbacks:
            return MethodError(f"service {shown(service)} is served already", rule="UMQ-116")
        if len(self._callbacks) >= self._limit:
            reason = f"{self._limit} services are served"
            return MethodError(reason, rule="UMQ-136", code=FatalCode.LIMIT_EXCEEDED)
        return None

    def serve(self, method: Serve) -> Refused | None:
        """Offer a service."""
        refused = self._hub.serve(self._client, method.service, self)
        if refused is None:
            self._callbacks[method.service] = method.callback_id
        return refused

    def unserve(self, method: Unserve) -> None:
        """Offer it no more; requests that are with the peer may still be answered."""
        if self._callbacks.pop(method.service, None) is None:
            raise MethodError(f"service {shown(method.service)} is not served", rule="UMQ-117")
        self._hub.unserve(self._client, method.service)

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        """Send a request to the peer's callback. What can't be sent has failed at once."""
        if not last:
            self._services.fail(call, CallError(501, "no-streams", "a service over UMQ takes one request"))
            return
        request = self._prepared(call, message)
        if request is None:
            self._services.fail(call, CallError(400, "bad-request", "the request can't be written as JSON"))
            return
        try:
            number = self._asked.start(call)
        except LocalProtocolError:
            self._fail_overloaded(call)
            return
        self._ids[call] = number
        start = f"B{write(number)}:".encode()
        if not self._client.outbox.offer(request.head(start) + request.rest):
            self._forget(call)
            self._fail_overloaded(call)

    def cancel(self, call: Call, error: CallError) -> None:  # noqa: ARG002 - UMQ has no words for why
        """The caller waits no more: the peer's answer will be ignored (UMQ-149)."""
        self._forget(call)

    def answered(self, frame: Result | CallException) -> Call | None:
        """The call the peer has answered. None, which is counted, where nobody waits for it (UMQ-100)."""
        call = self._asked.answered(frame)
        if call is None:
            self._client.counters.fault("UMQ-100")
            return None
        del self._ids[call]
        return call

    def reply(self, call: Call, body: Body | None, attachments: tuple[Attached, ...], now: int) -> None:
        """Hand the peer's reply to the caller."""
        data, rest, failed = assembled(body, attachments)
        origin = self._client.number
        binary = body is None or body.data is None
        message = Message(
            call.service, data, attachments=rest, time=now, origin=origin, body_failed=failed, binary=binary
        )
        self._services.reply(call, message)

    def fail(self, call: Call, error: CallError) -> None:
        """Hand the peer's failure to the caller."""
        self._services.fail(call, error)

    def gone(self) -> None:
        """The peer offers nothing any more, and will answer nothing. The hub fails the calls that wait for it."""
        self._callbacks.clear()
        self._asked.drain()
        self._ids.clear()

    def _prepared(self, call: Call, message: Message) -> Prepared | None:
        request = ServedRequest(call.method, json_body(message))
        try:
            payload = prepare(write_request(request, stand_ins(message)), message.attachments)
        except (LocalProtocolError, ValueError):
            return None
        callback = f"{write(self._callbacks[call.service])}:".encode()
        return Prepared(payload.announced, len(callback) + payload.length, callback + payload.rest)

    def _forget(self, call: Call) -> None:
        number = self._ids.pop(call, None)
        if number is not None:
            self._asked.abandon(number)

    def _fail_overloaded(self, call: Call) -> None:
        error = CallError(429, "overloaded", f"the provider of {call.service!r} does not keep up", RETRY)
        self._services.fail(call, error)
