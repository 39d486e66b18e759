"""Messages of the other side that no subscription takes, and the function of this program that does.

A handler gets what was ``Received`` and returns nothing, at once or as something to await; the message is acknowledged
then. ``Failure`` is told as an ERROR with the message's destination and sequence, and acknowledged behind it, so that
the window goes on; anything else it raises is logged here, and told without details.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING

from polywire.protocols.micromsg.errors import ENDS_CONNECTION, FORBIDDEN, NO_SUCH_DESTINATION, SHUTTING_DOWN
from polywire.protocols.micromsg.frames import Error
from polywire.protocols.micromsg.peer.failures import Failure
from polywire.protocols.micromsg.peer.inflow import Received

if TYPE_CHECKING:
    from polywire.protocols.micromsg.peer.peer import Peer

log = logging.getLogger("polywire.micromsg")

Handler = Callable[["Peer", Received], Awaitable[None] | None]


class Handling:
    """One peer's messages that are being worked off. Messages of one connection are handled one after another."""

    def __init__(self, peer: "Peer", send: Callable[[Error], None]) -> None:
        self.handler: Handler | None = None
        self.draining = False
        self._peer = peer
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = 0
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        return self._due

    def take(self, message: Received, sequence: int) -> None:
        """Work a message off now, or begin to."""
        if self.handler is None or self.draining:
            name = NO_SUCH_DESTINATION if self.handler is None else FORBIDDEN
            reason = "nobody takes messages here" if self.handler is None else SHUTTING_DOWN
            self._refuse(message, sequence, Failure(name, reason=reason))
            return
        try:
            outcome = self.handler(self._peer, message)
        except Exception as error:  # noqa: BLE001 - told to the sender, and logged
            self._refuse(message, sequence, error)
            return
        if outcome is None:
            message.ack()
            return
        self._due += 1
        self.start(self._handle(message, sequence, outcome))

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside that ends with the connection at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        """Wait until everything that was taken is worked off."""
        while self._due:
            self._idle.clear()
            await self._idle.wait()

    def lost(self) -> None:
        """The connection has ended."""
        self._due = 0
        self._idle.set()
        for task in self._tasks:
            task.cancel()

    async def _handle(self, message: Received, sequence: int, outcome: Awaitable[None]) -> None:
        try:
            await outcome
            message.ack()
        except Exception as error:  # noqa: BLE001 - told to the sender, and logged
            self._refuse(message, sequence, error)
        finally:
            self._due = max(0, self._due - 1)
            if not self._due:
                self._idle.set()

    def _refuse(self, message: Received, sequence: int, error: Exception) -> None:
        if not isinstance(error, Failure) or error.name not in ENDS_CONNECTION:
            log.error("a handler of MicroMsg2 messages failed", exc_info=error)
            error = Failure(FORBIDDEN, reason="the message could not be worked off")
        self._send(error.frame(destination=message.destination, sequence=str(sequence)))
        message.ack()
