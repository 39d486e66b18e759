"""The handshake of one connection, seen from either side: what to say next, and what was agreed on."""

from typing import Final

from polywire.protocols.micromsg import negotiation
from polywire.protocols.micromsg.errors import BAD_HANDSHAKE
from polywire.protocols.micromsg.frames import CLIENT, Error, Handshake
from polywire.protocols.micromsg.negotiation import Agreement, Terms
from polywire.protocols.micromsg.state import Event, State, after


class Shaking:
    """Who says what: the client offers, the server replies, the client ends it (MICROMSG-11, MICROMSG-101)."""

    def __init__(self, role: str, terms: Terms) -> None:
        self.state = State.CONNECTED
        self.agreement: Agreement | None = None
        self._client: Final = role == CLIENT
        self._terms: Final = terms
        self._offered: Handshake | None = None
        self._replied: Handshake | None = None

    def offer(self) -> Handshake:
        """The client's first message."""
        self._offered = negotiation.offer(self._terms)
        self.state = after(self.state, Event.OFFER)
        return self._offered

    def take(self, received: Handshake) -> Handshake | Error | None:
        """What to answer a handshake message with: the next one, the ERROR that ends it, or nothing at its end.

        ``agreement`` is there once it was the last one, or the answer is.
        """
        if self._client:
            return self._finish(received)
        if self._offered is None:
            return self._reply(received)
        return self._agree(self._offered, received)

    def _finish(self, reply: Handshake) -> Handshake | Error:
        self.state = after(self.state, Event.REPLY)
        final = negotiation.final(reply, self._terms)
        if isinstance(final, Handshake):
            self.agreement = negotiation.agreed(reply, final)
            self.state = after(self.state, Event.FINAL)
        return final

    def _reply(self, offer: Handshake) -> Handshake | Error:
        self._offered = offer
        self.state = after(self.state, Event.OFFER)
        reply = negotiation.reply(offer, self._terms)
        if isinstance(reply, Handshake):
            self._replied = reply
            self.state = after(self.state, Event.REPLY)
        return reply

    def _agree(self, offered: Handshake, final: Handshake) -> Error | None:
        if self._replied is None:
            return Error(BAD_HANDSHAKE, (("reason", "a final message came where an offer was due"),))
        agreement = negotiation.agree(offered, self._replied, final, self._terms)
        if isinstance(agreement, Error):
            return agreement
        self.agreement = agreement
        self.state = after(self.state, Event.FINAL)
        return None
