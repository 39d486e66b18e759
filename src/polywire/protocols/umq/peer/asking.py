"""The requests a peer makes, and who waits for their answers."""

import asyncio
from collections.abc import Callable, Sequence

from polywire.client.errors import ConnectionLost, Timeout
from polywire.client.inbox import Intake
from polywire.protocols.umq.calls import OutgoingCalls
from polywire.protocols.umq.frames import Call, Callback, CallException, Result
from polywire.protocols.umq.peer.arriving import Received
from polywire.protocols.umq.peer.failures import RpcException
from polywire.protocols.umq.peer.sending import Attachable, Sender, give_up

Hold = Callable[[str, int, int], Received]
"""Makes what is handed to the program of a payload, the number of its attachments, and its ordinal."""


class Asking:
    """One peer's requests. At most ``limit`` are in flight; more wait until one is answered."""

    def __init__(self, sender: Sender, intake: Intake, hold: Hold, *, limit: int) -> None:
        self._sender = sender
        self._intake = intake
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._asked: OutgoingCalls[asyncio.Future[Received]] = OutgoingCalls(limit=limit)
        self._slots = asyncio.Semaphore(limit)

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def ignored(self) -> int:
        """How many answers came that nobody waited for."""
        return self._asked.ignored

    async def ask(
        self, callback_id: int | None, text: str, attachments: Sequence[Attachable], seconds: float | None
    ) -> Received:
        """Send a request, to a callback where an id is given, and wait for the answer.

        Raises ``RpcException`` for an ``E``, ``Timeout``, ``ConnectionLost``; in each case, and when cancelled, the
        request is given up.
        """
        check_text(text)
        try:
            await self._slots.acquire()
        except asyncio.CancelledError:
            for each in attachments:
                give_up(each)
            raise
        try:
            return await self._asked_and_answered(callback_id, text, attachments, seconds)
        finally:
            self._slots.release()

    def tell(self, text: str, attachments: Sequence[bytes]) -> "asyncio.Future[Received]":
        """Send a request at once, whatever is in flight; who asks so counts by itself."""
        check_text(text)
        self._sender.check()
        answer: asyncio.Future[Received] = self._loop.create_future()
        call_id = self._asked.start(answer)
        try:
            self._sender.send(Call(call_id, text, len(attachments)), attachments)
        except BaseException:
            self._asked.abandon(call_id)
            raise
        if self._intake.strained:
            self._intake.decide()  # the answer must be read, however full the subscriptions are
        return answer

    def answered(self, frame: Result | CallException) -> None:
        """Hand an answer to who waits for it."""
        waiter = self._asked.answered(frame)
        if self._intake.strained:
            self._intake.decide()
        if waiter is None or waiter.done():
            return
        if isinstance(frame, Result):
            waiter.set_result(self._hold(frame.payload, frame.attachments, frame.ordinal))
        else:
            waiter.set_exception(RpcException(frame.payload))

    async def _asked_and_answered(
        self, callback_id: int | None, text: str, attachments: Sequence[Attachable], seconds: float | None
    ) -> Received:
        sender = self._sender
        sender.check(attachments)
        answer: asyncio.Future[Received] = self._loop.create_future()
        call_id = self._asked.start(answer)
        count = len(attachments)
        frame = Call(call_id, text, count) if callback_id is None else Callback(call_id, callback_id, text, count)
        timer = None
        if self._intake.strained:
            self._intake.decide()
        try:
            sender.send(frame, attachments)
            if seconds is not None:
                timer = self._loop.call_later(seconds, _expire, answer, seconds)
            await sender.room()
            return await answer
        finally:
            self._asked.abandon(call_id)
            if self._intake.strained:
                self._intake.decide()
            if timer is not None:
                timer.cancel()
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have failed while room was waited for

    def lost(self, reason: str) -> None:
        """No answers will come."""
        for waiter in self._asked.drain():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(reason, sent=True))


def check_text(text: object) -> None:
    """Raise ``TypeError`` for a payload that is no text."""
    if not isinstance(text, str):
        raise TypeError(f"text must be str, not {type(text).__name__}; bytes go into attachments")


def _expire(answer: "asyncio.Future[Received]", seconds: float) -> None:
    if not answer.done():
        answer.set_exception(Timeout("the request", seconds, sent=True))
