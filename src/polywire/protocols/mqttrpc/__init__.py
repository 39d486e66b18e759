"""RPC over MQTT: protobuf envelopes that carry calls and streams."""

from typing import TYPE_CHECKING

from polywire.lazy import exports
from polywire.registry import Protocol

if TYPE_CHECKING:
    from polywire.protocols.mqttrpc.descriptors import Method, Service, read_service, services
    from polywire.protocols.mqttrpc.errors import (
        FAILURES,
        Failure,
        LocalProtocolError,
        RemoteProtocolError,
        RpcError,
        retry_at,
    )
    from polywire.protocols.mqttrpc.frames import Decoder, ErrorData, Request, Response, encode, failed
    from polywire.protocols.mqttrpc.state import Shape
    from polywire.protocols.mqttrpc.streams import Call, ClientCalls, CorrelationIds, Outcome, ServerCalls, Step
    from polywire.protocols.mqttrpc.timeouts import DEFAULT_TIMEOUT, TimeoutUnit
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "descriptors": "Method Service read_service services",
            "errors": "FAILURES Failure LocalProtocolError RemoteProtocolError RpcError retry_at",
            "frames": "Decoder ErrorData Request Response encode failed",
            "state": "Shape",
            "streams": "Call ClientCalls CorrelationIds Outcome ServerCalls Step",
            "timeouts": "DEFAULT_TIMEOUT TimeoutUnit",
        },
    )

__all__ = [
    "DEFAULT_TIMEOUT",
    "FAILURES",
    "Call",
    "ClientCalls",
    "CorrelationIds",
    "Decoder",
    "ErrorData",
    "Failure",
    "LocalProtocolError",
    "Method",
    "Outcome",
    "RemoteProtocolError",
    "Request",
    "Response",
    "RpcError",
    "ServerCalls",
    "Service",
    "Shape",
    "Step",
    "TimeoutUnit",
    "encode",
    "failed",
    "read_service",
    "retry_at",
    "services",
]

PROTOCOL = Protocol(
    name="mqttrpc",
    title="RPC over MQTT",
    code=4,
    package=__name__,
    decoder="frames:Decoder",
    capture="message",
    hot=("wire", "frames", "failures", "publisher", "outgoing", "incoming", "session"),
)
