"""UMQ: calls, callbacks, topics and attachments between equal peers over WebSocket messages.

``connect`` and ``serve`` are for programs; the rest is the codec and its tables, which they and the hub stand on.
``methods``, ``envelopes`` and ``bodies`` are the payloads of the hub itself; UMQ leaves payloads to its users.
"""

from polywire.client.errors import AttachmentFailed
from polywire.protocols.umq.attributes import Attribute, Attributes
from polywire.protocols.umq.callbacks import Callbacks
from polywire.protocols.umq.calls import IncomingCalls, OutgoingCalls
from polywire.protocols.umq.client import connect
from polywire.protocols.umq.codes import FatalCode
from polywire.protocols.umq.errors import LocalProtocolError, MethodError, RemoteProtocolError
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
