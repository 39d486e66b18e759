"""The hub's part in the handshake: it knows every extension, requires none, and suggests ``batch-ack``.

It agrees on vendor extensions that a client offers as optional, too, and passes their frames on.
"""

from typing import Final, final

from polywire.protocols.micromsg.connection import Agreement, Terms, agree, reply_to
from polywire.protocols.micromsg.errors import BAD_HANDSHAKE
from polywire.protocols.micromsg.frames import Error, Handshake
from polywire.protocols.micromsg.text import DEFAULT_COUNT, LARGEST_COUNT, batch_ack

IDENTITY: Final = "polywire"


@final
class Greeting:
    """One connection's handshake. ``limit``: how many messages may be unacknowledged at most."""

    def __init__(self, limit: int) -> None:
        cap = min(limit, LARGEST_COUNT)
        suggested = (batch_ack(min(DEFAULT_COUNT, cap)),)
        self._terms: Final = Terms(IDENTITY, optional=suggested, max_count=cap, forwards=True)
        self._replied: Handshake | None = None
        self.offered: Handshake | None = None

    def reply(self, offer: Handshake) -> Handshake | Error:
        """MICROMSG-16: the answer to the client's offer. What it asks of ``batch-ack`` it gets, within the limit."""
        self.offered = offer
        reply = reply_to(offer, self._terms)
        if isinstance(reply, Handshake):
            self._replied = reply
        return reply

    def agree(self, received: Handshake) -> Agreement | Error:
        """What is agreed on with the client's final message."""
        offered, replied = self.offered, self._replied
        if offered is None or replied is None:
            return Error(BAD_HANDSHAKE, (("reason", "a final message came where an offer was due"),))
        return agree(offered, replied, received, self._terms)
