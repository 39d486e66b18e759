"""What one sABC session may have."""

from dataclasses import dataclass, replace

from polywire.protocols.sabc.decoder import MAX_HEAD, MAX_HEADERS, MAX_MESSAGE, MAX_UNFINISHED, Decoder, MessageDecoder

IN_FLIGHT = 1000
"""As many messages as the hub lets one session have under way, unless told otherwise."""

FRAME_SIZE = 64 * 1024
"""Bytes of a frame; longer messages go in several."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of ``Decoder``, how many messages may be unanswered each way, and the size of what is sent.

    ``frame_size``: longer messages go in several frames, 0 for one frame each. ``max_sent``: the other side's limit for
    a message, which this side does not pass; None where it is the same as ``max_message``, 0 where it is not known.
    """

    max_message: int = MAX_MESSAGE
    max_head: int = MAX_HEAD
    max_headers: int = MAX_HEADERS
    max_unfinished: int = MAX_UNFINISHED
    in_flight: int = IN_FLIGHT
    frame_size: int = FRAME_SIZE
    max_sent: int | None = None

    def with_frames(self, frame_size: int | None) -> "Limits":
        """The same with frames of this size, where one is given."""
        return self if frame_size is None else replace(self, frame_size=frame_size)

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
