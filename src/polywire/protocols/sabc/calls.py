"""Calls of an sABC client, and calls it answers. sABC has one request and one reply to a call, no streams."""

from collections.abc import Callable
from typing import Final, final

from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.refusal import Refused
from polywire.hub.services import FAILED_CODE, Call, Caller, CallError, Provider, Services, service_error
from polywire.protocols.sabc.errors import TOO_SLOW
from polywire.protocols.sabc.frames import Error
from polywire.protocols.sabc.headers import ERROR_TAG, METHOD, SERVICE, header, line_problem, read_retry_after
from polywire.protocols.sabc.line import Line


@final
class SabcCaller(Caller):
    """The calls one client has made, by the msg-id it waits for. ``ended`` is told when one has been answered."""

    def __init__(self, hub: Hub, line: Line, ended: Callable[[], None]) -> None:
        self.connection = line.client
        self._hub: Final = hub
        self._line: Final = line
        self._ended: Callable[[], None] | None = ended
        self._waiting: Final[dict[Call, str]] = {}
        self._silent: Final[set[Call]] = set()
        self._truncated: Final[set[Call]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def call(
        self,
        service: str,
        method: str,
        message: Message,
        msg_id: str,
        *,
        silent: bool,
        truncated: bool,
        seconds: float,
    ) -> Refused | None:
        """Begin a call. ``silent``: it was send-only, so its reply goes nowhere; its failure is told.

        ``truncated``: it was cut at the size limit, which its reply says too (SABC-105).
        """
        call = Call(self, service, method)
        if truncated:
            self._truncated.add(call)
        self._waiting[call] = msg_id
        if silent:
            self._silent.add(call)
        refused = self._hub.call(self._line.client, call, message, seconds=seconds)
        if refused is not None:
            del self._waiting[call]
            self._silent.discard(call)
            self._truncated.discard(call)
        return refused

    def reply(self, call: Call, message: Message, *, last: bool) -> None:  # noqa: ARG002 - it always is the last
        """Write the reply with the msg-id of the call."""
        msg_id = self._waiting.pop(call, None)
        truncated = call in self._truncated
        self._truncated.discard(call)
        if call in self._silent:
            self._silent.discard(call)
        elif msg_id is not None:
            self._line.answer(msg_id, message, truncated=truncated)
        self._tell()

    def fail(self, call: Call, error: CallError) -> None:
        """Write an ERROR with the msg-id of the call."""
        msg_id = self._waiting.pop(call, None)
        self._silent.discard(call)
        self._truncated.discard(call)
        if msg_id is not None:
            self._line.call_failed(error, msg_id)
        self._tell()

    def gone(self) -> None:
        """The client has gone, and waits for nothing any more. The hub cancels its calls."""
        self._waiting.clear()
        self._silent.clear()
        self._truncated.clear()
        self._ended = None

    def _tell(self) -> None:
        if self._ended is not None:
            self._ended()


@final
class SabcProvider(Provider):
    """The calls to one client's services that it has not answered yet, by the msg-id they were sent with."""

    def __init__(self, services: Services, line: Line) -> None:
        self.connection = line.client
        self._services: Final = services
        self._line: Final = line
        self._asked: Final[dict[str, Call]] = {}
        self._ids: Final[dict[Call, str]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        """Push the call to the client, who answers with its msg-id."""
        if not last:
            self._services.fail(call, CallError(400, "no-streams", "the provider takes one request to a call"))
            return
        wrong = line_problem(METHOD, call.method) or line_problem(SERVICE, call.service)
        if wrong is not None:
            self._services.fail(call, CallError(400, "bad-method", "the provider can't be told this method's name"))
            return
        msg_id = self._line.next_id()
        self._asked[msg_id] = call
        self._ids[call] = msg_id
        self._line.ask(msg_id, call.service, call.method, message)

    def cancel(self, call: Call, error: CallError) -> None:
        """The call has ended without an answer. SABC-101: whoever took too long is told."""
        msg_id = self._ids.pop(call, None)
        if msg_id is not None:
            del self._asked[msg_id]
            if error.code == 504:
                self._line.too_late(TOO_SLOW, error.text, msg_id)

    def answered(self, msg_id: str, message: Message) -> bool:
        """The client's reply to the call sent with this msg-id. False where there is none."""
        call = self._pop(msg_id)
        return call is not None and self._services.reply(call, message)

    def failed(self, msg_id: str, error: Error) -> bool:
        """The client's ERROR for that call."""
        call = self._pop(msg_id)
        return call is not None and self._services.fail(call, provider_error(error))

    def gone(self) -> None:
        """The client has gone, or answers nothing any more. The hub fails the calls that wait for it."""
        self._asked.clear()
        self._ids.clear()

    def _pop(self, msg_id: str) -> Call | None:
        call = self._asked.pop(msg_id, None)
        if call is not None:
            del self._ids[call]
        return call


def provider_error(error: Error) -> CallError:
    """What a provider's ERROR tells the caller (SABC-138)."""
    text = error.error_code or ""
    code = int(text) if len(text) == 3 and text.isascii() and text.isdigit() else FAILED_CODE
    tag = header(error.headers, ERROR_TAG) or ""
    return service_error(code, tag, error.body.decode(errors="replace"), read_retry_after(error.headers))
