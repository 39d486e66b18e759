"""RPC over MQTT: protobuf envelopes that carry calls and streams."""

from typing import TYPE_CHECKING

from polywire.process import exports
from polywire.registry import Protocol

if TYPE_CHECKING:
    from polywire.protocols.mqttrpc.connection import Call, ClientCalls, CorrelationIds, Outcome, ServerCalls, Step
    from polywire.protocols.mqttrpc.errors import (
        FAILURES,
        Failure,
        LocalProtocolError,
        RemoteProtocolError,
        RpcError,
        retry_at,
    )
    from polywire.protocols.mqttrpc.frames import (
        DEFAULT_TIMEOUT,
        Decoder,
        ErrorData,
        Request,
        Response,
        TimeoutUnit,
        encode,
        failed,
    )
    from polywire.protocols.mqttrpc.service import Method, Service, Shape, read_service, services
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "connection": "Call ClientCalls CorrelationIds Outcome ServerCalls Step",
            "errors": "FAILURES Failure LocalProtocolError RemoteProtocolError RpcError retry_at",
            "frames": "DEFAULT_TIMEOUT Decoder ErrorData Request Response TimeoutUnit encode failed",
            "service": "Method Service Shape read_service services",
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
    hot=(
        "frames",
        "delivery",
        "session",
    ),
)
