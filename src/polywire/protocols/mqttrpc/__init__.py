"""RPC over MQTT: protobuf envelopes that carry calls and streams."""

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
