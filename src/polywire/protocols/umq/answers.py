"""What is sent to a peer beside updates: the answers to its requests, and the ends of its topics."""

from typing import Final, final

from polywire.hub.client import Client
from polywire.hub.message import Attached, Message
from polywire.hub.outbox import Outbox
from polywire.hub.services import CallError, service_error
from polywire.protocols.umq.base36 import write
from polywire.protocols.umq.connection import IncomingCalls
from polywire.protocols.umq.errors import FatalCode, error_text, read_failure, write_failure
from polywire.protocols.umq.frames import Call, CallException, Result, encode
from polywire.protocols.umq.methods import encode_json
from polywire.protocols.umq.updates import SLOW_READER, attach, bare
from polywire.wire.frame import Frame
from polywire.wire.websocket import text

# UMQ-147: the codes for the errors of the hub itself.
CODES: Final = {
    400: FatalCode.BAD_REQUEST,
    401: FatalCode.FORBIDDEN,
    403: FatalCode.FORBIDDEN,
    404: FatalCode.NO_ROUTE,
    408: FatalCode.UNAVAILABLE,
    413: FatalCode.LIMIT_EXCEEDED,
    429: FatalCode.UNAVAILABLE,
    501: FatalCode.NO_ROUTE,
    502: FatalCode.BAD_REQUEST,
    503: FatalCode.UNAVAILABLE,
    504: FatalCode.UNAVAILABLE,
}


def call_error_text(error: CallError) -> str:
    """The payload of the ``E`` for a call that has failed.

    UMQ-161: a service's error keeps its code, tag and text; UMQ-162: one of the hub begins with a code of UMQ.
    """
    words = write_failure(error.code, error.tag, error.text, error.retry_after)
    if not error.from_hub:
        found = read_failure(error.text)
        plain = error.tag == "" and error.retry_after == 0 and found.code == error.code and found.text == error.text
        return error.text if plain and not found.by_runtime else words
    code = CODES.get(error.code, FatalCode.UNAVAILABLE)
    text = error.text
    if error.tag == "no-service":
        code, text = FatalCode.NO_RPC_SERVER, ""
    elif error.tag == "draining":
        code = FatalCode.SHUTTING_DOWN
    brief = error_text(code, text)
    found = read_failure(brief)
    known = found.code == error.code and found.tag == error.tag and found.retry_after == error.retry_after
    return brief if known else error_text(code, words)


def provider_error(payload: str) -> CallError:
    """What the ``E`` of a peer that offers a service tells the caller. It is the service's, whatever it says."""
    found = read_failure(payload)
    return service_error(found.code, found.tag, found.text, found.retry_after)


@final
class Answers:
    """The peer's requests that are due, and the way to answer them. Nothing is written once ``closed`` (UMQ-25)."""

    def __init__(self, client: Client, *, limit: int) -> None:
        self.due: Final = IncomingCalls(limit=limit)
        self.closed = False
        self._client: Final = client
        self._outbox: Final[Outbox] = client.outbox

    def begin(self, frame: Call) -> bool:
        """Note a request. False where there are too many, which has been answered. Raises for an id in flight."""
        refused = self.due.begin(frame)
        if refused is None:
            return True
        self.send(refused)
        return False

    def send(self, frame: Frame) -> None:
        """Write a message without attachments."""
        if not self.closed:
            message = encode(frame)
            self._outbox.put(text(message.encode() if isinstance(message, str) else message))

    def result(self, call_id: int, payload: str = "null") -> None:
        """Answer a request with JSON, which is ``null`` where there is nothing to say."""
        answer = Result(call_id, payload)
        if call_id in self.due:
            self.due.finish(answer)
            self.send(answer)

    def json(self, call_id: int, value: object, attachments: tuple[Attached, ...]) -> None:
        """Answer a request with JSON that has attachments."""
        if call_id in self.due:
            self.due.finish(Result(call_id, ""))
            if not self.closed:
                answer = attach(encode_json(value).encode(), attachments)
                self._outbox.put(answer.head(f"R{write(call_id)}:".encode()) + answer.rest)

    def body(self, call_id: int, message: Message) -> None:
        """Answer a request with a bare body (UMQ-110), unless the reader is too slow for replies."""
        if call_id not in self.due:
            return
        self.due.finish(Result(call_id, ""))
        if not self.closed:
            reply = bare(message, self._client.protocol)
            if not self._outbox.reply(reply.head(f"R{write(call_id)}:".encode()), reply.rest):
                self._client.counters.drop(SLOW_READER)
                self._outbox.count_dropped(message.channel, 1)

    def error(self, call_id: int, payload: str) -> None:
        """Answer a request that failed."""
        if call_id in self.due:
            answer = CallException(call_id, payload if payload.isascii() else writable(payload))
            self.due.finish(answer)
            self.send(answer)

    def refuse(self, call_id: int, code: FatalCode, detail: str = "") -> None:
        """Answer a request with one of UMQ's own errors."""
        self.error(call_id, error_text(code, detail))


def writable(payload: str) -> str:
    """The text without what UTF-8 can't write; words of other protocols may come from anywhere."""
    return payload.encode(errors="replace").decode()
