"""UMQ: calls, callbacks, topics and attachments between equal peers over WebSocket messages.

``connect`` and ``serve`` are for programs, ``Connection`` is the protocol without a transport, which they and the hub
are built on.
"""

from typing import TYPE_CHECKING

from polywire.process import exports
from polywire.registry import FEATURES, WEBSOCKET, Listener, Protocol

if TYPE_CHECKING:
    from polywire.client.errors import AttachmentFailed
    from polywire.protocols.umq.client import HubMessage, HubRequest, HubSubscription, RemoteHub, connect, serve
    from polywire.protocols.umq.connection import (
        Attribute,
        Attributes,
        Callbacks,
        Connection,
        IncomingCalls,
        Machine,
        OutgoingCalls,
        Publications,
        State,
        Subscriptions,
    )
    from polywire.protocols.umq.errors import (
        FatalCode,
        LocalProtocolError,
        MethodError,
        Rejected,
        RemoteProtocolError,
        RpcException,
    )
    from polywire.protocols.umq.frames import (
        Attachment,
        AttachmentError,
        Call,
        Callback,
        CallException,
        Decoder,
        Fatal,
        Hello,
        Result,
        SetAttribute,
        TopicClose,
        TopicUpdate,
        UnsetAttribute,
        Unsubscribe,
        Welcome,
        encode,
    )
    from polywire.protocols.umq.peer import (
        Arriving,
        Limits,
        Peer,
        Publication,
        Received,
        Reply,
        Request,
        Subscription,
    )
    from polywire.wire.frame import Role
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "..client.errors": "AttachmentFailed",
            "..wire.frame": "Role",
            "client": "HubMessage HubRequest HubSubscription RemoteHub connect serve",
            "connection": (
                "Attribute Attributes Callbacks Connection IncomingCalls Machine OutgoingCalls Publications "
                "State Subscriptions"
            ),
            "errors": "FatalCode LocalProtocolError MethodError Rejected RemoteProtocolError RpcException",
            "frames": (
                "Attachment AttachmentError Call Callback CallException Decoder Fatal Hello Result SetAttribute "
                "TopicClose TopicUpdate UnsetAttribute Unsubscribe Welcome encode"
            ),
            "peer": "Arriving Limits Peer Publication Received Reply Request Subscription",
        },
    )

__all__ = [
    "Arriving",
    "Attachment",
    "AttachmentError",
    "AttachmentFailed",
    "Attribute",
    "Attributes",
    "Call",
    "CallException",
    "Callback",
    "Callbacks",
    "Connection",
    "Decoder",
    "Fatal",
    "FatalCode",
    "Hello",
    "HubMessage",
    "HubRequest",
    "HubSubscription",
    "IncomingCalls",
    "Limits",
    "LocalProtocolError",
    "Machine",
    "MethodError",
    "OutgoingCalls",
    "Peer",
    "Publication",
    "Publications",
    "Received",
    "Rejected",
    "RemoteHub",
    "RemoteProtocolError",
    "Reply",
    "Request",
    "Result",
    "Role",
    "RpcException",
    "SetAttribute",
    "State",
    "Subscription",
    "Subscriptions",
    "TopicClose",
    "TopicUpdate",
    "UnsetAttribute",
    "Unsubscribe",
    "Welcome",
    "connect",
    "encode",
    "serve",
]

PROTOCOL = Protocol(
    name="umq",
    title="UMQ",
    code=0,
    package=__name__,
    listeners=(
        Listener(
            key="umq",
            about="UMQ over WebSocket.",
            default="ws://127.0.0.1:7101/umq",
            transports=WEBSOCKET,
            subprotocol="umq",
        ),
    ),
    session="session:UmqSession",
    schemes={"umq": "ws", "umqs": "wss"},
    port=7101,
    can=frozenset(FEATURES) - {"nack", "watch_demand"},
    bus="bus:connect",
    decoder="frames:Decoder",
    capture="lines",
    hot=("frames", "connection", "methods", "delivery", "session"),
)
