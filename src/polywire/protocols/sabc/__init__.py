"""sABC: text frames with headers, for sessions that talk both ways.

``connect`` and ``serve`` are for programs; the rest is the codec and its tables, which they and the hub stand on.
"""

from polywire.protocols.sabc.assembly import Assembly, Whole
from polywire.protocols.sabc.client import connect
from polywire.protocols.sabc.commands import Connect, Connected, Disconnect, Disconnecting, Error, Message
from polywire.protocols.sabc.encoding import encode, split
from polywire.protocols.sabc.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.sabc.frames import Decoder, MessageDecoder
from polywire.protocols.sabc.operations import Operation, operation
from polywire.protocols.sabc.peer.failures import Failure, Truncated
from polywire.protocols.sabc.peer.handling import Later, Reply, Request
from polywire.protocols.sabc.peer.limits import Limits
from polywire.protocols.sabc.peer.peer import Peer
from polywire.protocols.sabc.remote_hub import HubSubscription, RemoteHub
from polywire.protocols.sabc.server import serve
from polywire.protocols.sabc.state import Session, Side, State, new_session_id

__all__ = [
    "Assembly",
    "Connect",
    "Connected",
    "Decoder",
    "Disconnect",
    "Disconnecting",
    "Error",
    "Failure",
    "HubSubscription",
    "Later",
    "Limits",
    "LocalProtocolError",
    "Message",
    "MessageDecoder",
    "Operation",
    "Peer",
    "RemoteHub",
    "RemoteProtocolError",
    "Reply",
    "Request",
    "Session",
    "Side",
    "State",
    "Truncated",
    "Whole",
    "connect",
    "encode",
    "new_session_id",
    "operation",
    "serve",
    "split",
]
