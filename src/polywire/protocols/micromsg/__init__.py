"""MicroMsg2: negotiated extensions, reliable queues and topics with filters.

``connect`` and ``serve`` are for programs; the rest is the codec and its tables, on which they and the hub are built.
"""

from typing import TYPE_CHECKING

from polywire.process import exports
from polywire.registry import Listener, Protocol

if TYPE_CHECKING:
    from polywire.protocols.micromsg.client import connect, publish, serve
    from polywire.protocols.micromsg.connection import Agreement, Limits, ReceiveWindow, SendWindow, Terms
    from polywire.protocols.micromsg.errors import (
        LocalProtocolError,
        MalformedError,
        RemoteProtocolError,
        ends_connection,
    )
    from polywire.protocols.micromsg.filters import Clause, Filter, matches
    from polywire.protocols.micromsg.frames import (
        CLIENT,
        SERVER,
        Command,
        Decoder,
        Error,
        Extension,
        Handshake,
        Message,
        encode,
        renumbered,
    )
    from polywire.protocols.micromsg.peer import Failure, Peer, Received, Subscription
    from polywire.protocols.micromsg.text import NamedExtension
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "client": "connect publish serve",
            "connection": "Agreement Limits ReceiveWindow SendWindow Terms",
            "errors": "LocalProtocolError MalformedError RemoteProtocolError ends_connection",
            "filters": "Clause Filter matches",
            "frames": "CLIENT SERVER Command Decoder Error Extension Handshake Message encode renumbered",
            "peer": "Failure Peer Received Subscription",
            "text": "NamedExtension",
        },
    )

__all__ = [
    "CLIENT",
    "SERVER",
    "Agreement",
    "Clause",
    "Command",
    "Decoder",
    "Error",
    "Extension",
    "Failure",
    "Filter",
    "Handshake",
    "Limits",
    "LocalProtocolError",
    "MalformedError",
    "Message",
    "NamedExtension",
    "Peer",
    "ReceiveWindow",
    "Received",
    "RemoteProtocolError",
    "SendWindow",
    "Subscription",
    "Terms",
    "connect",
    "encode",
    "ends_connection",
    "matches",
    "publish",
    "renumbered",
    "serve",
]

PROTOCOL = Protocol(
    name="micromsg",
    title="MicroMsg2",
    code=1,
    package=__name__,
    listeners=(Listener(key="micromsg", about="MicroMsg2.", default="tcp://127.0.0.1:7102"),),
    session="session:MicromsgSession",
    schemes={"micromsg": "tcp", "micromsgs": "tls", "micromsg+unix": "unix"},
    port=7102,
    can=frozenset(
        {
            "publish",
            "subscribe",
            "queue",
            "nack",
            "patterns with **",
            "a name that begins or ends with /",
            "a name with + or #",
            "an empty body",
            "headers",
            "content_type",
        }
    ),
    bus="bus:connect",
    decoder="frames:Decoder",
    decoder_options=lambda role, _capture: {"role": role},
    hot=(
        "text",
        "frames",
        "filters",
        "connection",
        "delivery",
        "session",
    ),
)
