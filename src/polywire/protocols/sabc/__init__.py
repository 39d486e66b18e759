"""sABC: text frames with headers, for sessions in which both sides send messages.

``connect`` and ``serve`` are for programs, ``RemoteHub`` for programs that talk to a hub. The rest is what they and the
hub are built on: the codec, and ``Connection``, one end of a connection without I/O.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from polywire.process import exports
from polywire.registry import FEATURES, WEBSOCKET, Listener, Protocol

if TYPE_CHECKING:
    from polywire.protocols.sabc.bus import HubSubscription, RemoteHub
    from polywire.protocols.sabc.client import connect, serve
    from polywire.protocols.sabc.connection import Connection, Session, State, new_session_id
    from polywire.protocols.sabc.decoder import Decoder, MessageDecoder
    from polywire.protocols.sabc.errors import LocalProtocolError, RemoteProtocolError
    from polywire.protocols.sabc.frames import (
        Assembly,
        Connect,
        Connected,
        Disconnect,
        Disconnecting,
        Error,
        Message,
        Operation,
        Whole,
        encode,
        operation,
        split,
    )
    from polywire.protocols.sabc.peer import Failure, Later, Limits, Peer, Reply, Request, Truncated
    from polywire.wire.frame import Role as Side
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "..wire.frame": "Role:Side",
            "bus": "HubSubscription RemoteHub",
            "client": "connect serve",
            "connection": "Connection Session State new_session_id",
            "decoder": "Decoder MessageDecoder",
            "errors": "LocalProtocolError RemoteProtocolError",
            "frames": (
                "Assembly Connect Connected Disconnect Disconnecting Error Message Operation Whole "
                "encode operation split"
            ),
            "peer": "Failure Later Limits Peer Reply Request Truncated",
        },
    )

__all__ = [
    "Assembly",
    "Connect",
    "Connected",
    "Connection",
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


def _decoder_options(role: str, capture: bytes) -> Mapping[str, object]:
    # The server gave the session its id; a capture only has what the client made of it.
    found = re.search(rb"session-id::([!-~]+)", capture) if role == "server" else None
    return {"session_id": found[1].decode() if found else None}


PROTOCOL = Protocol(
    name="sabc",
    title="sABC",
    code=5,
    package=__name__,
    listeners=(
        Listener(key="sabc", about="sABC.", default="tcp://127.0.0.1:7105"),
        Listener(
            key="sabc_ws",
            about="sABC over WebSocket.",
            default="ws://127.0.0.1:7101/sabc",
            transports=WEBSOCKET,
            subprotocol="sabc",
            options={"messages": True},
        ),
    ),
    session="session:SabcSession",
    schemes={"sabc": "tcp", "sabcs": "tls", "sabc+ws": "ws", "sabc+wss": "wss", "sabc+unix": "unix"},
    port=7105,
    can=frozenset(FEATURES) - {"retain", "watch_demand"},
    bus="bus:connect",
    decoder="decoder:Decoder",
    decoder_options=_decoder_options,
    hot=("headers", "frames", "decoder", "connection", "delivery", "session"),
)
