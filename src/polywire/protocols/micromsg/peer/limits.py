"""What one MicroMsg2 connection may have."""

from dataclasses import dataclass

from polywire.protocols.micromsg import frames
from polywire.protocols.micromsg.text import MAX_PROPERTIES


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of ``Decoder``, and how many destinations the other side may subscribe to."""

    max_message: int = frames.MAX_MESSAGE
    max_control: int = frames.MAX_CONTROL
    max_properties: int = MAX_PROPERTIES
    max_handshake: int = frames.MAX_HANDSHAKE
    subscriptions: int = 1024


DEFAULT_LIMITS = Limits()
