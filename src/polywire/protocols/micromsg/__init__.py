"""MicroMsg2: negotiated extensions, reliable queues and topics with filters.

``connect`` and ``serve`` are for programs; the rest is the codec and its tables, which they and the hub stand on.
"""

from typing import TYPE_CHECKING

from polywire.lazy import exports
from polywire.registry import Listener, Protocol

if TYPE_CHECKING:
    from polywire.protocols.micromsg.client import connect
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
    from polywire.protocols.micromsg.negotiation import Agreement, Terms
    from polywire.protocols.micromsg.peer.failures import Failure
    from polywire.protocols.micromsg.peer.inflow import Received
    from polywire.protocols.micromsg.peer.limits import Limits
    from polywire.protocols.micromsg.peer.peer import Peer
    from polywire.protocols.micromsg.peer.subscribing import Subscription
    from polywire.protocols.micromsg.server import publish, serve
    from polywire.protocols.micromsg.text import NamedExtension
    from polywire.protocols.micromsg.windows import ReceiveWindow, SendWindow
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "client": "connect",
            "errors": "LocalProtocolError MalformedError RemoteProtocolError ends_connection",
            "filters": "Clause Filter matches",
            "frames": "CLIENT SERVER Command Decoder Error Extension Handshake Message encode renumbered",
            "negotiation": "Agreement Terms",
            "peer.failures": "Failure",
            "peer.inflow": "Received",
            "peer.limits": "Limits",
            "peer.peer": "Peer",
            "peer.subscribing": "Subscription",
            "server": "publish serve",
            "text": "NamedExtension",
            "windows": "ReceiveWindow SendWindow",
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
    bus="polywire.client.over_micromsg:connect",
    decoder="frames:Decoder",
    decoder_options=lambda role, _capture: {"role": role},
    hot=(
        "text",
        "frames",
        "filters",
        "windows",
        "bridge",
        "outgoing",
        "receivers",
        "places",
        "subscribing",
        "session",
    ),
)
