"""FMQP: publish/subscribe where publishers learn which topics somebody listens to."""

from polywire.protocols.fmqp.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.fmqp.frames import (
    Decoder,
    Publication,
    Subscription,
    Unsubscription,
    encode,
)

__all__ = [
    "Decoder",
    "LocalProtocolError",
    "Publication",
    "RemoteProtocolError",
    "Subscription",
    "Unsubscription",
    "encode",
]
