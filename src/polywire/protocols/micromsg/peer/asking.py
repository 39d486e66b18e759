"""Commands that are answered: each is followed by a ``ping``, whose ``pong`` says that the other side has come so far.

MicroMsg2 has no positive answers, but handles everything in order (MICROMSG-133): an ERROR that comes before the
``pong`` is about the command before it.
"""

import asyncio
from collections import deque

from polywire.client.errors import Closed, ConnectionLost, Timeout
from polywire.client.inbox import Intake
from polywire.protocols.micromsg.errors import UNKNOWN_COMMAND
from polywire.protocols.micromsg.filters import PING
from polywire.protocols.micromsg.frames import Command
from polywire.protocols.micromsg.peer.failures import Failure
from polywire.protocols.micromsg.peer.outflow import Outflow


class _Asked:
    __slots__ = ("answer", "failure")

    def __init__(self, answer: "asyncio.Future[None]") -> None:
        self.answer = answer
        self.failure: Failure | None = None


class Asking:
    """One peer's commands that the other side has not come to yet."""

    def __init__(self, outflow: Outflow, intake: Intake) -> None:
        self._outflow = outflow
        self._intake = intake
        self._asked: deque[_Asked] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    async def ask(self, command: Command | None, seconds: float | None) -> None:
        """Send a command, or only a ping, and wait until it was handled. Raises ``Failure`` where it was refused."""
        if self._outflow.link is None:
            raise Closed(self._outflow.reason or "the connection is not open", sent=False)
        answer = self.tell(command)
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, _expire, answer, seconds)
        if self._intake.strained:
            self._intake.decide()
        try:
            await answer
        finally:
            if timer is not None:
                timer.cancel()
            if self._intake.strained:
                self._intake.decide()

    def tell(self, command: Command | None) -> "asyncio.Future[None]":
        """Send a command, or only a ping, and wait for nothing; the future is done as ``ask`` would be."""
        asked = _Asked(asyncio.get_running_loop().create_future())
        if command is not None:
            self._outflow.send(command)
        self._outflow.send(PING)
        self._asked.append(asked)
        return asked.answer

    def refused(self, failure: Failure) -> bool:
        """An ERROR after which the connection lives on. False where no command can be meant."""
        if not self._asked:
            return False
        if failure.name == UNKNOWN_COMMAND and failure.arguments.get("name") == PING.name:
            self.answered()  # that is an answer, too
        else:
            self._asked[0].failure = failure
        return True

    def answered(self) -> None:
        """A ``pong``."""
        if not self._asked:
            return
        asked = self._asked.popleft()
        if asked.answer.done():
            return
        if asked.failure is None:
            asked.answer.set_result(None)
        else:
            asked.answer.set_exception(asked.failure)
            asked.answer.exception()  # nobody may wait for it

    def lost(self, reason: str) -> None:
        """No answers will come."""
        for asked in self._asked:
            if not asked.answer.done():
                asked.answer.set_exception(ConnectionLost(reason, sent=True))
                asked.answer.exception()
        self._asked.clear()


def _expire(answer: "asyncio.Future[None]", seconds: float) -> None:
    if not answer.done():
        answer.set_exception(Timeout("the command", seconds, sent=True))
