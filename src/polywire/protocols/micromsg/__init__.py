"""MicroMsg2: negotiated extensions, reliable queues and topics with filters."""

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
    "Filter",
    "Handshake",
    "LocalProtocolError",
    "MalformedError",
    "Message",
    "NamedExtension",
    "ReceiveWindow",
    "RemoteProtocolError",
    "SendWindow",
    "Terms",
    "encode",
    "ends_connection",
    "matches",
    "renumbered",
]
