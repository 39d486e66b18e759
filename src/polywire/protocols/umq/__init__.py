"""UMQ: calls, callbacks, topics and attachments between equal peers over WebSocket messages.

``methods``, ``envelopes`` and ``bodies`` are the payloads of the hub itself; UMQ leaves payloads to its users.
"""

from polywire.protocols.umq.attributes import Attribute, Attributes
from polywire.protocols.umq.callbacks import Callbacks
from polywire.protocols.umq.calls import IncomingCalls, OutgoingCalls
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
from polywire.protocols.umq.state import Machine, Role, State
from polywire.protocols.umq.topics import Publications, Subscriptions

__all__ = [
    "Attachment",
    "AttachmentError",
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
    "IncomingCalls",
    "LocalProtocolError",
    "Machine",
    "MethodError",
    "OutgoingCalls",
    "Publications",
    "RemoteProtocolError",
    "Result",
    "Role",
    "SetAttribute",
    "State",
    "Subscriptions",
    "TopicClose",
    "TopicUpdate",
    "UnsetAttribute",
    "Unsubscribe",
    "Welcome",
    "encode",
]
