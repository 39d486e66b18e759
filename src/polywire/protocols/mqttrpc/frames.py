"""The messages of RPC over MQTT: payloads to frames and back.

One MQTT payload is one message, a Request or a Response, serialized by protobuf (MQTTRPC-04, MQTTRPC-20). ``wire``
finds out which; the generated ``envelope_pb2`` does the rest.
"""

from typing import ClassVar, Final, final

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from mypy_extensions import i64, mypyc_attr

from polywire.protocols.mqttrpc import envelope_pb2
from polywire.protocols.mqttrpc.errors import (
    BAD_REQUEST,
    TOO_LARGE,
    Failure,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
)
from polywire.protocols.mqttrpc.timeouts import MAX_UINT32, TimeoutUnit
from polywire.protocols.mqttrpc.wire import (
    BODY,
    EOS_OR_ERROR_DATA,
    FIXED32,
    FIXED64,
    GROUP_END,
    GROUP_START,
    TAG_OCTETS,
    UINT64,
    VALUE_OCTETS,
    VARINT,
    Fields,
    varint,
    walk,
)
from polywire.wire.frame import Frame

MAX_MESSAGE: Final = 16 * 1024 * 1024
MAX_FIELDS: Final = 1000
MAX_PAYLOAD: Final = 268_435_455  # MQTTRPC-91: the most that MQTT's remaining length can say

UNITS: Final = tuple(TimeoutUnit)
WIRE_UNITS: Final = (
    envelope_pb2.Unspecified,
    envelope_pb2.Hour,
    envelope_pb2.Minute,
    envelope_pb2.Second,
    envelope_pb2.Millisecond,
)


@final
@mypyc_attr(acyclic=True)
class ErrorData(Frame):
    """Why a call failed. ``retry_after`` is in milliseconds; 0 means that a retry is not allowed."""

    __match_args__: ClassVar[tuple[str, ...]] = ("code", "tag", "user_message", "retry_after")

    def __init__(self, code: int, tag: str = "", user_message: str = "", retry_after: int = 0) -> None:
        self.code: Final = code
        self.tag: Final = tag
        self.user_message: Final = user_message
        self.retry_after: Final = retry_after

    def error(self, details: any_pb2.Any | None = None) -> RpcError:
        """The exception a caller gets. ``details`` is the body of the Response, if it has one."""
        return RpcError(self.code, self.tag, self.user_message, self.retry_after, details)


@final
@mypyc_attr(acyclic=True)
class Request(Frame):
    """From the caller: ``type_url`` names the method, ``value`` is the serialized request message.

    Without a body ``value`` is None; then a Request with ``eos`` only ends its stream (MQTTRPC-53). A ``timeout`` of 0
    is one that is not present.
    """

    __match_args__: ClassVar[tuple[str, ...]] = (
        "correlation_id",
        "type_url",
        "value",
        "eos",
        "timeout",
        "timeout_unit",
    )

    def __init__(
        self,
        correlation_id: int,
        type_url: str = "",
        value: bytes | None = None,
        eos: bool = False,
        timeout: int = 0,
        timeout_unit: TimeoutUnit = TimeoutUnit.UNSPECIFIED,
    ) -> None:
        self.correlation_id: Final = correlation_id
        self.type_url: Final = type_url
        self.value: Final[bytes | None] = b"" if value is None and type_url else value
        self.eos: Final = eos
        self.timeout: Final = timeout
        self.timeout_unit: Final = timeout_unit


@final
@mypyc_attr(acyclic=True)
class Response(Frame):
    """From the callee: ``value`` is the serialized response message, unless there is ``error_data``.

    With ``error_data`` the body may hold more about the error. Without a body ``value`` is None; then a Response with
    ``eos`` only ends its stream (MQTTRPC-53).
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("correlation_id", "type_url", "value", "error_data", "eos")

    def __init__(
        self,
        correlation_id: int,
        type_url: str = "",
        value: bytes | None = None,
        error_data: ErrorData | None = None,
        eos: bool = False,
    ) -> None:
        self.correlation_id: Final = correlation_id
        self.type_url: Final = type_url
        self.value: Final[bytes | None] = b"" if value is None and type_url else value
        self.error_data: Final = error_data
        self.eos: Final = eos


def failed(correlation_id: int, failure: Failure, retry_after: int = 0) -> Response:
    """The Response that ends a call with one of the failures; ``retry_after`` instead of the failure's own."""
    data = ErrorData(failure.code, failure.tag, failure.user_message, retry_after or failure.retry_after)
    return Response(correlation_id, "", None, data, True)


@final
class Decoder:
    """Turns payloads into frames. It keeps nothing between them.

    ``max_message``: longer payloads are refused. ``max_fields``: payloads with more protobuf fields are refused; an
    honest one has five, and each costs time.
    """

    def __init__(self, *, max_message: int = MAX_MESSAGE, max_fields: int = MAX_FIELDS) -> None:
        self._max_message: Final = max_message
        self._max_fields: Final = max_fields

    def feed(self, message: bytes) -> list[Frame]:
        """The one frame of a payload. Raises ``RemoteProtocolError`` where it is not one."""
        found = walk(message, self._max_fields)
        if len(message) > self._max_message:
            reason = f"the message has {len(message)} octets, more than the {self._max_message} allowed"
            error = _refused(found, "MQTTRPC-87", reason, self._max_message, TOO_LARGE)
            error.oversize = len(message)
            raise error
        if found.rule:
            raise _refused(found, found.rule, found.reason, found.position)
        if found.request_at >= 0 and found.response_at >= 0:
            at = found.request_at if found.request_at > found.response_at else found.response_at
            raise _refused(found, "MQTTRPC-77", "the message has fields of a Request and of a Response", at)
        try:
            if found.request_at >= 0:
                return [self._request(found, message)]
            return [self._response(found, message)]
        except (DecodeError, UnicodeDecodeError):
            where, what = _undecodable(message)
            raise _refused(found, "MQTTRPC-85", f"{what} can't be decoded", where) from None

    def pending(self) -> int:
        """How many octets are held: none, as each payload is whole."""
        return 0

    def _request(self, found: Fields, message: bytes) -> Request:
        parsed = envelope_pb2.Request.FromString(message)
        unit: int = parsed.timeout_unit
        if not 0 <= unit < len(UNITS):
            reason = f"the timeout unit {unit} is none of 0 to {len(UNITS) - 1}"
            raise _refused(found, "MQTTRPC-86", reason, found.request_at)
        body = parsed.body
        value: bytes | None = body.value if parsed.HasField("body") else None
        return Request(parsed.correlation_id, body.type_url, value, parsed.eos, parsed.timeout, UNITS[unit])

    def _response(self, found: Fields, message: bytes) -> Frame:
        """A Response, or the Request that nothing but its ``type_url`` shows to be one."""
        parsed = envelope_pb2.Response.FromString(message)
        number: int = parsed.correlation_id
        body = parsed.body
        type_url: str = body.type_url
        value: bytes | None = body.value if parsed.HasField("body") else None
        if found.response_at < 0:
            if type_url:
                return Request(number, type_url, value)  # MQTTRPC-38
            return Response(number, "", value)
        data: ErrorData | None = None
        if parsed.HasField("error_data"):
            wire = parsed.error_data
            data = ErrorData(wire.code, wire.tag, wire.user_message, wire.retry_after)
        return Response(number, type_url, value, data, parsed.eos)


def encode(frame: Frame) -> bytes:
    """The payload of a frame. Raises ``LocalProtocolError`` for what RPC over MQTT does not allow."""
    if isinstance(frame, Request):
        return _sized(_request_octets(frame))
    if isinstance(frame, Response):
        return _sized(_response_octets(frame))
    raise LocalProtocolError(f"{type(frame).__name__} is not a message of RPC over MQTT", rule="MQTTRPC-04")


def _request_octets(frame: Request) -> bytes:
    value = frame.value
    _check_envelope(frame.correlation_id, frame.type_url, value)
    _check_uint32(frame.timeout, "timeout")
    unit: int = frame.timeout_unit
    if not 0 <= unit < len(UNITS):
        raise LocalProtocolError(f"the timeout unit {unit} is none of 0 to {len(UNITS) - 1}", rule="MQTTRPC-86")
    message = envelope_pb2.Request(
        correlation_id=frame.correlation_id, timeout=frame.timeout, timeout_unit=WIRE_UNITS[unit]
    )
    if value is not None:
        message.body.SetInParent()  # MQTTRPC-53: present, even with nothing in it
        message.body.type_url = frame.type_url
        message.body.value = value
    if frame.eos or not (frame.type_url or frame.timeout or unit):
        message.eos = frame.eos  # MQTTRPC-39: even a false one, where it is all that shows a Request
    return message.SerializeToString()


def _response_octets(frame: Response) -> bytes:
    value = frame.value
    _check_envelope(frame.correlation_id, frame.type_url, value)
    message = envelope_pb2.Response(correlation_id=frame.correlation_id)
    if value is not None:
        message.body.SetInParent()  # MQTTRPC-53: present, even with nothing in it
        message.body.type_url = frame.type_url
        message.body.value = value
    data = frame.error_data
    if data is not None:
        _check_uint32(data.code, "code")
        _check_uint32(data.retry_after, "retry_after")
        _check_text(data.tag, "tag")
        _check_text(data.user_message, "user_message")
        message.error_data.SetInParent()  # MQTTRPC-27: present, even with nothing in it
        message.error_data.code = data.code
        message.error_data.tag = data.tag
        message.error_data.user_message = data.user_message
        message.error_data.retry_after = data.retry_after
    if frame.eos or (data is None and frame.type_url):
        message.eos = frame.eos  # MQTTRPC-39: even a false one, where its type_url would make it a Request
    return message.SerializeToString()


def _check_envelope(correlation_id: int, type_url: str, value: bytes | None) -> None:
    if not 0 <= correlation_id <= UINT64:
        raise LocalProtocolError(f"the correlation id {correlation_id} is not within 0 to {UINT64}", rule="MQTTRPC-91")
    _check_text(type_url, "type_url")
    if value is not None and len(value) > MAX_PAYLOAD:
        raise LocalProtocolError(
            f"the value has {len(value)} octets, more than the {MAX_PAYLOAD} of an MQTT packet", rule="MQTTRPC-91"
        )


def _check_uint32(number: int, what: str) -> None:
    if not 0 <= number <= MAX_UINT32:
        raise LocalProtocolError(f"the {what} {number} is not within 0 to {MAX_UINT32}", rule="MQTTRPC-91")


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"the {what} {text!r} can't be written as UTF-8", rule="MQTTRPC-91") from error


def _sized(payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise LocalProtocolError(
            f"the message has {len(payload)} octets, more than the {MAX_PAYLOAD} of an MQTT packet", rule="MQTTRPC-91"
        )
    return payload


def _refused(
    found: Fields, rule: str, reason: str, position: int, failure: Failure = BAD_REQUEST
) -> RemoteProtocolError:
    """MQTTRPC-89: the error, with a reply where there is a caller who waits for one."""
    reply: Response | None = None
    is_request = found.request_at >= 0
    if (found.correlation_id and (is_request or found.response_at < 0)) or (is_request and not found.rule):
        reply = failed(found.correlation_id, failure)  # MQTTRPC-76: a message read to its end without an id has 0
    return RemoteProtocolError(reason, rule=rule, position=position, reply=reply)


def _undecodable(message: bytes) -> tuple[int, str]:
    """Where the field starts that protobuf can't decode, in a message whose outermost fields are sound."""
    end: i64 = len(message)
    pos: i64 = 0
    depth: i64 = 0
    while pos < end:
        start = pos
        tag, pos = varint(message, pos, end, TAG_OCTETS)
        number: i64 = tag >> 3
        kind: i64 = tag & 7
        value: i64 = 0
        if kind == VARINT:
            value, pos = varint(message, pos, end, VALUE_OCTETS)
        elif kind == FIXED64:
            pos += 8
        elif kind == FIXED32:
            pos += 4
        elif kind == GROUP_START:
            depth += 1
        elif kind == GROUP_END:
            depth -= 1
        else:
            value, pos = varint(message, pos, end, TAG_OCTETS)
            inner = message[pos : pos + value]
            pos += value
            try:
                if depth == 0 and number == BODY:
                    any_pb2.Any.FromString(inner)
                elif depth == 0 and number == EOS_OR_ERROR_DATA:
                    envelope_pb2.ErrorData.FromString(inner)
            except (DecodeError, UnicodeDecodeError):
                return start, "the body" if number == BODY else "the error data"
    return 0, "the message"
