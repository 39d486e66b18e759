"""MicroMsg2: negotiated extensions, reliable queues and topics with filters.

``connect`` and ``serve`` are for programs; the rest is the codec and its tables, which they and the hub stand on.
"""

from polywire.protocols.micromsg.client import connect
from polywire.protocols.micromsg.errors import (
    LocalProtocolError,
    MalformedError,
    RemoteProtocolError,
    ends_connection,
)
from polywire.protocols.micromsg.extensions import NamedExtension
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
from polywire.protocols.micromsg.windows import ReceiveWindow, SendWindow

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
