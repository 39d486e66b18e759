"""What one UMQ connection may have."""

from dataclasses import dataclass

from polywire.protocols.umq.callbacks import MAX_CALLBACKS
from polywire.protocols.umq.frames import MAX_BINARY, MAX_TEXT, MAX_UNFINISHED
from polywire.protocols.umq.topics import MAX_TOPICS

IN_FLIGHT = 1000
"""As many requests as the hub lets one connection have, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may have: the limits of ``Decoder``, and how much may be open at a time."""

    max_text: int = MAX_TEXT
    max_binary: int = MAX_BINARY
    max_unfinished: int = MAX_UNFINISHED
    in_flight: int = IN_FLIGHT
    topics: int = MAX_TOPICS
    callbacks: int = MAX_CALLBACKS


DEFAULT_LIMITS = Limits()
