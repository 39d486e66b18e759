"""The messages of a peer that want an answer, and who waits for it."""

import asyncio
from itertools import count

from polywire.client.errors import ConnectionLost, Timeout
from polywire.client.inbox import Intake
from polywire.protocols.sabc.frames import Message, Whole
from polywire.protocols.sabc.headers import Header
from polywire.protocols.sabc.peer.failures import Failure, Truncated
from polywire.protocols.sabc.peer.sending import Sender


class Asking:
    """One peer's messages that are unanswered, at most ``limit``; more wait until one is answered."""

    def __init__(self, sender: Sender, intake: Intake, *, limit: int) -> None:
        self._sender = sender
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._slots = asyncio.Semaphore(limit)
        self._waiting: dict[str, asyncio.Future[Whole]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def new_id(self) -> str:
        """An id for a message of this side, not used before."""
        return str(next(self._numbers))

    async def ask(self, msg_id: str, body: bytes, headers: tuple[Header, ...], seconds: float | None) -> Whole:
        """Send a message and wait for its answer. Raises ``Failure``, ``Timeout``, ``ConnectionLost``."""
        async with self._slots:
            self._sender.check()
            waiter: asyncio.Future[Whole] = self._loop.create_future()
            self._waiting[msg_id] = waiter
            timer = None
            if self._intake.strained:
                self._intake.decide()
            try:
                if seconds is not None:
                    timer = self._loop.call_later(seconds, _expire, waiter, seconds)
                await self._sender.deliver(Message(self._sender.session_id, msg_id, body, headers))
                return await waiter
            finally:
                self._waiting.pop(msg_id, None)
                if self._intake.strained:
                    self._intake.decide()
                if timer is not None:
                    timer.cancel()
                if waiter.done() and not waiter.cancelled():
                    waiter.exception()  # it may have failed while room was waited for

    def tell(self, body: bytes, headers: tuple[Header, ...]) -> "asyncio.Future[Whole]":
        """Send a message at once, whatever is unanswered; who asks so counts by itself."""
        self._sender.check()
        msg_id = self.new_id()
        waiter: asyncio.Future[Whole] = self._loop.create_future()
        self._waiting[msg_id] = waiter
        try:
            self._sender.answer(Message(self._sender.session_id, msg_id, body, headers))
        except BaseException:
            del self._waiting[msg_id]
            raise
        if self._intake.strained:
            self._intake.decide()  # the answer must be read, however full the subscriptions are
        return waiter

    def answered(self, ref_msg_id: str, answer: Whole | Failure) -> bool:
        """Hand an answer to who waits for it. False where nobody does."""
        waiter = self._waiting.pop(ref_msg_id, None)
        if self._intake.strained:
            self._intake.decide()
        if waiter is None or waiter.done():
            return False
        if isinstance(answer, Whole) and answer.truncated:
            waiter.set_exception(Truncated(answer))
        elif isinstance(answer, Whole):
            waiter.set_result(answer)
        else:
            waiter.set_exception(answer)
        return True

    def lost(self, reason: str) -> None:
        """No answers will come."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(reason, sent=True))
        self._waiting.clear()


def _expire(waiter: "asyncio.Future[Whole]", seconds: float) -> None:
    if not waiter.done():
        waiter.set_exception(Timeout("the answer", seconds, sent=True))
