"""Messages of the other side that no subscription takes, and the function of this program that does.

A handler gets what was ``Received`` and returns nothing, at once or as something to await; the message is acknowledged
then. ``Failure`` is told as an ERROR with the message's destination and sequence, and acknowledged behind it, so that
the window goes on; anything else it raises is logged here, and told without details.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from polywire.client.work import Work
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
        self.work = Work()

    def __len__(self) -> int:
        return self.work.due

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
        self.work.due += 1
        self.work.start(self._handle(message, sequence, outcome))

    async def _handle(self, message: Received, sequence: int, outcome: Awaitable[None]) -> None:
        try:
            await outcome
            message.ack()
        except Exception as error:  # noqa: BLE001 - told to the sender, and logged
            self._refuse(message, sequence, error)
        finally:
            self.work.done()

    def _refuse(self, message: Received, sequence: int, error: Exception) -> None:
        if not isinstance(error, Failure) or error.name not in ENDS_CONNECTION:
            log.error("a handler of MicroMsg2 messages failed", exc_info=error)
            error = Failure(FORBIDDEN, reason="the message could not be worked off")
        self._send(error.frame(destination=message.destination, sequence=str(sequence)))
        message.ack()
