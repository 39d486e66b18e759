"""UMQ: calls, callbacks, topics and attachments between equal peers over WebSocket messages.

``connect`` and ``serve`` are for programs; the rest is the codec and its tables, which they and the hub stand on.
``methods`` are the payloads of the hub itself; UMQ leaves payloads to its users.
"""

from typing import TYPE_CHECKING

from polywire.lazy import exports
from polywire.registry import FEATURES, WEBSOCKET, Listener, Protocol
from polywire.client.errors import AttachmentFailed

if TYPE_CHECKING:
    from polywire.protocols.umq.attributes import Attribute, Attributes
    from polywire.protocols.umq.callbacks import Callbacks
    from polywire.protocols.umq.calls import IncomingCalls, OutgoingCalls
    from polywire.protocols.umq.client import connect
    from polywire.protocols.umq.errors import FatalCode, LocalProtocolError, MethodError, RemoteProtocolError
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
    from polywire.protocols.umq.peer.arriving import Arriving, Received
    from polywire.protocols.umq.peer.failures import Rejected, RpcException
    from polywire.protocols.umq.peer.handling import Reply, Request
    from polywire.protocols.umq.peer.limits import Limits
    from polywire.protocols.umq.peer.peer import Peer
    from polywire.protocols.umq.peer.streaming import Publication, Subscription
    from polywire.protocols.umq.remote_hub import HubMessage, HubRequest, HubSubscription, RemoteHub
    from polywire.protocols.umq.server import serve
    from polywire.protocols.umq.state import Machine, Role, State
    from polywire.protocols.umq.topics import Publications, Subscriptions
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "attributes": "Attribute Attributes",
            "callbacks": "Callbacks",
            "calls": "IncomingCalls OutgoingCalls",
            "client": "connect",
            "errors": "FatalCode LocalProtocolError MethodError RemoteProtocolError",
            "frames": (
                "Attachment AttachmentError Call Callback CallException Decoder Fatal Hello Result SetAttribute "
                "TopicClose TopicUpdate UnsetAttribute Unsubscribe Welcome encode"
            ),
            "peer.arriving": "Arriving Received",
            "peer.failures": "Rejected RpcException",
            "peer.handling": "Reply Request",
            "peer.limits": "Limits",
            "peer.peer": "Peer",
            "peer.streaming": "Publication Subscription",
            "remote_hub": "HubMessage HubRequest HubSubscription RemoteHub",
            "server": "serve",
            "state": "Machine Role State",
            "topics": "Publications Subscriptions",
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
    bus="polywire.client.over_umq:connect",
    decoder="frames:Decoder",
    capture="lines",
    hot=(
        "base36",
        "frames",
        "state",
        "ids",
        "calls",
        "callbacks",
        "topics",
        "methods",
        "updates",
        "answers",
        "gathering",
        "serving",
        "calling",
        "open_topics",
        "requests",
        "session",
    ),
)
