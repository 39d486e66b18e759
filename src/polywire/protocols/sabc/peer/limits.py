"""What one sABC session may have."""

from dataclasses import dataclass

from polywire.protocols.sabc.frames import Decoder, MessageDecoder
from polywire.protocols.sabc.intake import MAX_HEAD, MAX_HEADERS, MAX_MESSAGE, MAX_UNFINISHED

IN_FLIGHT = 1000
"""As many messages as the hub lets one session have under way, unless told otherwise."""

MAX_FRAME = 64 * 1024
"""Octets of a frame; longer messages go in several."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of ``Decoder``, how many messages may be unanswered each way, and the length of what is sent."""

    max_message: int = MAX_MESSAGE
    max_head: int = MAX_HEAD
    max_headers: int = MAX_HEADERS
    max_unfinished: int = MAX_UNFINISHED
    in_flight: int = IN_FLIGHT
    max_frame: int = MAX_FRAME

    def decoder(self, session_id: str | None, *, messages: bool) -> Decoder | MessageDecoder:
        """A decoder with these limits. ``messages``: the transport keeps messages apart."""
        return (MessageDecoder if messages else Decoder)(
            session_id=session_id,
            max_message=self.max_message,
            max_head=self.max_head,
            max_headers=self.max_headers,
            max_unfinished=self.max_unfinished,
        )


DEFAULT_LIMITS = Limits()
