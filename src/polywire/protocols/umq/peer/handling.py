"""Requests of the other side, and the functions of this program that answer them.

A handler gets a ``Request`` and returns the text of the answer, or a ``Reply`` where there are attachments, at once or
as something to await. ``RpcException`` is the answer ``E``; anything else it raises is logged here, and told without
details.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polywire.client.work import Work
from polywire.protocols.umq.callbacks import Callbacks
from polywire.protocols.umq.calls import IncomingCalls
from polywire.protocols.umq.errors import FatalCode, LocalProtocolError, MethodError, error_text
from polywire.protocols.umq.frames import Call, Callback, CallException, Result
from polywire.protocols.umq.peer.arriving import Arriving, Received
from polywire.protocols.umq.peer.asking import Hold
from polywire.protocols.umq.peer.failures import RpcException
from polywire.protocols.umq.peer.sending import Attachable, Sender

if TYPE_CHECKING:
    from polywire.protocols.umq.peer.peer import Peer

log = logging.getLogger("polywire.umq")

HANDLER_FAILED = error_text(FatalCode.UNAVAILABLE, "the request could not be worked off")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with attachments, each octets or something to await; those come when they are ready."""

    text: str = ""
    attachments: Sequence[Attachable] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What ``peer`` asks: a call, or a callback where ``callback_id`` says which one."""

    peer: "Peer"
    message: Received
    callback_id: int | None = None

    @property
    def text(self) -> str:
        """The payload."""
        return self.message.text

    @property
    def attachments(self) -> tuple[Arriving, ...]:
        """Its attachments, to be awaited."""
        return self.message.attachments


Outcome = str | Reply
Handler = Callable[[Request], Outcome | Awaitable[Outcome]]


class Handling:
    """One peer's requests that this side answers, at most ``limit`` at a time. ``handler`` is for calls."""

    def __init__(self, peer: "Peer", sender: Sender, hold: Hold, *, limit: int, callbacks: int) -> None:
        self.handler: Handler | None = None
        self.callbacks: Callbacks[Handler] = Callbacks(limit=callbacks)
        self._peer = peer
        self._sender = sender
        self._hold = hold
        self._due = IncomingCalls(limit=limit)
        self._draining = False
        self.work = Work()

    def __len__(self) -> int:
        return len(self._due)

    def called(self, frame: Call | Callback) -> None:
        """Answer a request now, or begin to."""
        refused = self._due.begin(frame)
        if refused is not None:
            self._sender.send(refused)
            return
        self.work.due += 1
        if self._draining:
            self._answer(CallException(frame.call_id, error_text(FatalCode.SHUTTING_DOWN)))
            return
        handler = self.handler
        callback_id = None
        if isinstance(frame, Callback):
            found = self.callbacks.find(frame)
            if isinstance(found, CallException):
                self._answer(found)
                return
            handler, callback_id = found, frame.callback_id
        if handler is None:
            self._answer(CallException(frame.call_id, error_text(FatalCode.NO_RPC_SERVER)))
            return
        request = Request(self._peer, self._hold(frame.payload, frame.attachments, frame.ordinal), callback_id)
        try:
            outcome = handler(request)
            if not isinstance(outcome, str | Reply):
                self.work.start(self._handle(frame.call_id, outcome))
                return
            self._reply(frame.call_id, outcome)
        except Exception as error:  # noqa: BLE001 - told to the caller, and logged
            self._failed(frame.call_id, error)

    async def drain(self) -> None:
        """Take no more requests, and wait until those there are have been answered."""
        self._draining = True
        await self.work.idle()

    async def _handle(self, call_id: int, outcome: Awaitable[Outcome]) -> None:
        try:
            self._reply(call_id, await outcome)
        except Exception as error:  # noqa: BLE001 - told to the caller, and logged
            self._failed(call_id, error)

    def _reply(self, call_id: int, outcome: Outcome) -> None:
        reply = as_reply(outcome)
        self._answer(Result(call_id, reply.text, len(reply.attachments)), reply.attachments)

    def _failed(self, call_id: int, error: Exception) -> None:
        if call_id not in self._due:
            log.error("answering a UMQ request failed", exc_info=error)
            return
        if isinstance(error, MethodError):
            text = error.payload
        elif isinstance(error, RpcException):
            text = error.text
        else:
            log.error("a handler of UMQ requests failed", exc_info=error)
            text = HANDLER_FAILED
        try:
            self._answer(CallException(call_id, text))
        except LocalProtocolError:  # its words can't be written
            self._answer(CallException(call_id, HANDLER_FAILED))

    def _answer(self, frame: Result | CallException, attachments: Sequence[Attachable] = ()) -> None:
        if self._sender.is_open:
            self._sender.send(frame, attachments)
            self._due.finish(frame)
            self.work.done()


def as_reply(outcome: object) -> Reply:
    """What a handler returned, as a reply."""
    if isinstance(outcome, str):
        return Reply(outcome)
    if isinstance(outcome, Reply):
        return outcome
    raise TypeError(f"a handler returns str or Reply, not {type(outcome).__name__}")
