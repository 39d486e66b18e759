"""Messages of the other side, and the function of this program that answers them.

A handler gets a ``Request`` and returns the body of the answer, a ``Reply`` where there are headers too, or None for
the acknowledgement ``OK``; at once or as something to await. ``Failure`` is the answer ERROR; anything else it raises
is logged here, and told without details. Messages that are send-only get no answer.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polywire.client.work import Work
from polywire.protocols.sabc.errors import DRAINING, LIMIT, NOT_FOUND
from polywire.protocols.sabc.frames import Error, Message, Whole
from polywire.protocols.sabc.headers import TRUNCATED, YES, Header, header
from polywire.protocols.sabc.peer.failures import Failure
from polywire.protocols.sabc.peer.sending import Sender
from polywire.protocols.sabc.state import State
from polywire.wire.frame import Frame

if TYPE_CHECKING:
    from polywire.protocols.sabc.peer.peer import Peer

log = logging.getLogger("polywire.sabc")

OK = b"OK"
HANDLER_FAILED = "500"
ANSWERING = (State.OPEN, State.LEAVING)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with headers of its own."""

    body: bytes | str = OK
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A message that came from ``peer``."""

    peer: "Peer"
    message: Whole

    @property
    def body(self) -> bytes:
        """The body."""
        return self.message.body

    @property
    def headers(self) -> tuple[Header, ...]:
        """The application's headers, in order."""
        return self.message.headers

    def header(self, key: str) -> str | None:
        """The value of the first header with this key."""
        return header(self.message.headers, key)


class Later:
    """Returned by a handler that answers by and by, without anything to await: then ``answer`` does, or ``drop``."""

    def __init__(self) -> None:
        self._handling: Handling | None = None
        self._message: Whole | None = None
        self._dropped = False

    def answer(self, outcome: "Outcome" = None) -> None:
        """Answer now, as if the handler had returned this. Only the first time counts."""
        message, self._message = self._message, None
        if self._handling is not None and message is not None:
            self._handling.finish(message, outcome)

    def drop(self) -> None:
        """Never answer."""
        self._dropped = True
        message, self._message = self._message, None
        if self._handling is not None and message is not None:
            self._handling.finish(None, None)

    def begin(self, handling: "Handling", message: Whole) -> None:
        """It is about this message."""
        if self._dropped:
            handling.finish(None, None)
        else:
            self._handling = handling
            self._message = message


Outcome = bytes | str | Reply | None
Handler = Callable[[Request], Outcome | Later | Awaitable[Outcome]]


class Handling:
    """One peer's messages that this side answers, at most ``limit`` at a time."""

    def __init__(self, peer: "Peer", sender: Sender, *, limit: int) -> None:
        self.handler: Handler | None = None
        self.draining = False
        self._peer = peer
        self._sender = sender
        self._limit = limit
        self.work = Work()

    def __len__(self) -> int:
        return self.work.due

    def take(self, whole: Whole) -> None:
        """Answer a message now, or begin to."""
        if self.draining:
            self._refuse(whole, Failure(DRAINING))
        elif self.handler is None:
            self._refuse(whole, Failure(NOT_FOUND, "nobody takes messages here"))
        elif self.work.due >= self._limit:
            self._refuse(whole, Failure(LIMIT, f"{self._limit} messages are being worked off already"))
        else:
            self.work.due += 1
            try:
                outcome = self.handler(Request(self._peer, whole))
                if isinstance(outcome, Awaitable):
                    self.work.start(self._handle(whole, outcome))
                    return
                if isinstance(outcome, Later):
                    outcome.begin(self, whole)
                    return
                self._reply(whole, outcome)
            except Exception as error:  # noqa: BLE001 - told to the sender, and logged
                self._refuse(whole, error)
            self.work.done()

    def finish(self, whole: Whole | None, outcome: Outcome) -> None:
        """What ``Later`` has been waiting for: answer the message, or none."""
        try:
            if whole is not None:
                self._reply(whole, outcome)
        finally:
            self.work.done()

    async def _handle(self, whole: Whole, outcome: Awaitable[Outcome]) -> None:
        try:
            self._reply(whole, await outcome)
        except Exception as error:  # noqa: BLE001 - told to the sender, and logged
            self._refuse(whole, error)
        finally:
            self.work.done()

    def _reply(self, whole: Whole, outcome: Outcome) -> None:
        if not whole.wants_answer:
            return
        reply = outcome if isinstance(outcome, Reply) else Reply(OK if outcome is None else outcome)
        headers = reply.headers
        if whole.truncated and header(headers, TRUNCATED) is None:
            headers = (*headers, (TRUNCATED, YES))
        body = reply.body.encode() if isinstance(reply.body, str) else reply.body
        self._answer(Message(whole.session_id, None, body, headers, whole.msg_id))

    def _refuse(self, whole: Whole, error: Exception) -> None:
        """An ERROR is told even where no answer is wanted, as the hub does."""
        if not isinstance(error, Failure):
            log.error("a handler of sABC messages failed", exc_info=error)
            error = Failure(HANDLER_FAILED, "the message could not be worked off")
        text = error.text.encode(errors="replace")
        self._answer(Error(error.code or None, text, whole.session_id, whole.msg_id, error.headers))

    def _answer(self, frame: Frame) -> None:
        if self._sender.link is not None and self._sender.session.state in ANSWERING:
            self._sender.answer(frame)
