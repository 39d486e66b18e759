"""FMQP: publish/subscribe where publishers learn which topics have subscribers.

``connect`` is for programs. The rest is the codec, which the client and the hub are built on.
"""

from typing import TYPE_CHECKING

from polywire.process import exports
from polywire.registry import Listener, Protocol

if TYPE_CHECKING:
    from polywire.protocols.fmqp.client import Client, Demand, Listening, Watching, connect
    from polywire.protocols.fmqp.errors import LocalProtocolError, RemoteProtocolError
    from polywire.protocols.fmqp.frames import (
        Decoder,
        Publication,
        Subscription,
        Unsubscription,
        encode,
    )
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "client": "Client Demand Listening Watching connect",
            "errors": "LocalProtocolError RemoteProtocolError",
            "frames": "Decoder Publication Subscription Unsubscription encode",
        },
    )

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

PROTOCOL = Protocol(
    name="fmqp",
    title="FMQP",
    code=2,
    package=__name__,
    listeners=(Listener(key="fmqp", about="FMQP.", default="tcp://127.0.0.1:7103"),),
    session="session:FmqpSession",
    runs="session:FmqpRuns",
    logs_in=False,
    schemes={"fmqp": "tcp", "fmqps": "tls", "fmqp+unix": "unix"},
    port=7103,
    can=frozenset({"publish", "subscribe", "queue", "a name with + or #", "retain", "watch_demand"}),
    bus="bus:connect",
    decoder="frames:Decoder",
    hot=(
        "frames",
        "connection",
        "delivery",
        "session",
    ),
)
