"""sABC: text frames with headers, for sessions that talk both ways."""

from polywire.protocols.sabc.assembly import Assembly, Whole
from polywire.protocols.sabc.commands import Connect, Connected, Disconnect, Disconnecting, Error, Message
from polywire.protocols.sabc.encoding import encode, split
from polywire.protocols.sabc.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.sabc.frames import Decoder, MessageDecoder
from polywire.protocols.sabc.operations import Operation, operation
from polywire.protocols.sabc.state import Session, Side, State, new_session_id

__all__ = [
    "Assembly",
    "Connect",
    "Connected",
    "Decoder",
    "Disconnect",
    "Disconnecting",
    "Error",
    "LocalProtocolError",
    "Message",
    "MessageDecoder",
    "Operation",
    "RemoteProtocolError",
    "Session",
    "Side",
    "State",
    "Whole",
    "encode",
    "new_session_id",
    "operation",
    "split",
]
