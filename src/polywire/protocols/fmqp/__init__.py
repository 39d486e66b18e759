"""FMQP: publish/subscribe where publishers learn which topics somebody listens to.

``connect`` is for programs; the rest is the codec, which it and the hub stand on.
"""

from polywire.protocols.fmqp.client import Client, connect
from polywire.protocols.fmqp.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.fmqp.frames import (
    Decoder,
    Publication,
    Subscription,
    Unsubscription,
    encode,
)
from polywire.protocols.fmqp.listening import Demand, Listening, Watching

__all__ = [
    "Client",
    "Decoder",
    "Demand",
    "Listening",
    "LocalProtocolError",
    "Publication",
    "RemoteProtocolError",
    "Subscription",
    "Unsubscription",
    "Watching",
    "connect",
    "encode",
]
