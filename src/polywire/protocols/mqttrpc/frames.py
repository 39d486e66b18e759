"""The messages of RPC over MQTT: payloads to frames and back.

One MQTT payload is one message, a Request or a Response, serialized by protobuf (MQTTRPC-04, MQTTRPC-20). Both travel
on one topic, and only the numbers and wire types of their fields say which is which (MQTTRPC-36 to 38). protobuf has no
way to ask for that, so ``walk`` reads the wire format of the outermost fields; the values are decoded by the generated
``envelope_pb2``. The walk allocates nothing that grows with the message.
"""

import math
from enum import IntEnum
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
from polywire.wire.frame import Frame

MAX_MESSAGE: Final = 16 * 1024 * 1024
MAX_FIELDS: Final = 1000
MAX_PAYLOAD: Final = 268_435_455  # MQTTRPC-91: the largest remaining length of an MQTT packet
MAX_UINT32: Final = 0xFFFF_FFFF
MAX_UINT64: Final = 0xFFFF_FFFF_FFFF_FFFF

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
GROUP_START: Final = 3
GROUP_END: Final = 4
FIXED32: Final = 5

CORRELATION_ID: Final = 1
BODY: Final = 2
EOS_OR_ERROR_DATA: Final = 3
RESPONSE_EOS: Final = 4
TIMEOUT_UNIT: Final = 6  # the last field we know

TAG_BYTES: Final = 5  # MQTTRPC-79: a tag or a length has 32 bits
VALUE_BYTES: Final = 10  # MQTTRPC-79: any other number has 64
MAX_DEPTH: Final = 100  # MQTTRPC-82: protobuf's own limit on nested groups
CUT: Final = -1
OVERLONG: Final = -2

DEFAULT_TIMEOUT: Final = 30_000
"""MQTTRPC-59: how long a call may take by default, in milliseconds, on both sides."""


class TimeoutUnit(IntEnum):
    """MQTTRPC-35: the unit of a timeout. ``UNSPECIFIED`` is read as ``MILLISECOND``."""

    UNSPECIFIED = 0
    HOUR = 1
    MINUTE = 2
    SECOND = 3
    MILLISECOND = 4


MILLISECONDS: Final[dict[TimeoutUnit, int]] = {
    TimeoutUnit.UNSPECIFIED: 1,  # MQTTRPC-19
    TimeoutUnit.MILLISECOND: 1,
    TimeoutUnit.SECOND: 1000,
    TimeoutUnit.MINUTE: 60_000,
    TimeoutUnit.HOUR: 3_600_000,
}
"""MQTTRPC-18: how many milliseconds each unit has."""

FINEST_FIRST: Final = (TimeoutUnit.MILLISECOND, TimeoutUnit.SECOND, TimeoutUnit.MINUTE, TimeoutUnit.HOUR)
MAX_TIMEOUT: Final = MAX_UINT32 * MILLISECONDS[TimeoutUnit.HOUR]
"""The longest timeout a Request can carry, in milliseconds."""

UNITS: Final = tuple(TimeoutUnit)
WIRE_UNITS: Final = (
    envelope_pb2.Unspecified,
    envelope_pb2.Hour,
    envelope_pb2.Minute,
    envelope_pb2.Second,
    envelope_pb2.Millisecond,
)


def milliseconds(timeout: int, unit: TimeoutUnit, default: int = DEFAULT_TIMEOUT) -> int:
    """How long a call with this timeout may take. A timeout of 0 means that there is none: ``default`` applies."""
    if timeout == 0:
        return default  # MQTTRPC-17
    return timeout * MILLISECONDS[unit]


def written(duration: int) -> tuple[int, TimeoutUnit]:
    """MQTTRPC-92: the timeout and unit to send for a duration in milliseconds.

    The finest unit that holds it exactly, or else the finest that holds it rounded up, so that the server never gives
    up before the client, whose own deadline is exact.
    """
    if not 0 < duration <= MAX_TIMEOUT:
        raise LocalProtocolError(f"a timeout of {duration} ms is not within 1 to {MAX_TIMEOUT} ms", rule="MQTTRPC-92")
    for unit in FINEST_FIRST:
        count, rest = divmod(duration, MILLISECONDS[unit])
        if rest == 0 and count <= MAX_UINT32:
            return count, unit
    for unit in FINEST_FIRST:
        count = -(-duration // MILLISECONDS[unit])
        if count <= MAX_UINT32:
            break
    return count, unit


def from_seconds(seconds: float) -> tuple[int, TimeoutUnit]:
    """The timeout and unit to send for a duration in seconds, rounded up to whole milliseconds."""
    if not 0 < seconds <= MAX_TIMEOUT / 1000:
        raise LocalProtocolError(
            f"a timeout of {seconds} s is not more than 0 and at most {MAX_TIMEOUT // 1000} s", rule="MQTTRPC-92"
        )
    # 1.1 s is 1100.0000000000002 ms in binary, and must not become 1101.
    return written(max(1, math.ceil(round(seconds * 1000, 6))))


@final
@mypyc_attr(acyclic=True)
class ErrorData(Frame):
    """Why a call failed. ``retry_after`` is in milliseconds; 0 means: do not retry."""

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
    means that there is none.
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
    """The Response that ends a call with this failure; ``retry_after`` replaces the failure's own."""
    data = ErrorData(failure.code, failure.tag, failure.user_message, retry_after or failure.retry_after)
    return Response(correlation_id, "", None, data, eos=True)


@final
class Fields:
    """What a walk found. ``rule`` is empty if nothing is wrong.

    ``request_at`` and ``response_at`` are the positions of the first field that only a Request, or only a Response,
    has; -1 if there is none.
    """

    def __init__(self) -> None:
        self.correlation_id: int = 0
        self.request_at: i64 = -1
        self.response_at: i64 = -1
        self.rule: str = ""
        self.reason: str = ""
        self.position: i64 = 0

    def wrong(self, rule: str, reason: str, position: i64) -> None:
        """Note what ended the walk."""
        self.rule = rule
        self.reason = reason
        self.position = position


def varint(data: bytes, pos: i64, end: i64, most: i64) -> tuple[i64, i64]:
    """The number at ``pos`` and the position after it. Instead of the position, ``CUT`` or ``OVERLONG``."""
    value: i64 = 0
    shift: i64 = 0
    stop: i64 = pos + most
    while pos < end and pos < stop:
        byte: i64 = data[pos]
        value |= (byte & 0x7F) << shift
        pos += 1
        if byte < 0x80:
            return value, pos
        shift += 7
    return 0, CUT if pos < stop else OVERLONG


def walk(message: bytes, max_fields: int) -> Fields:
    """Go over the outermost fields of a message, at most ``max_fields`` of them, those inside groups included."""
    found = Fields()
    end: i64 = len(message)
    pos: i64 = 0
    left: i64 = max_fields
    groups: list[int] = []
    while pos < end:
        start = pos
        if left == 0:
            found.wrong("MQTTRPC-88", f"the message has more than the {max_fields} fields allowed", start)
            return found
        left -= 1
        tag, pos = varint(message, pos, end, TAG_BYTES)
        if pos < 0:
            _number(found, "the tag of a field", TAG_BYTES, pos, start)
            return found
        if tag > MAX_UINT32:
            found.wrong("MQTTRPC-79", "the tag of a field has more than 32 bits", start)
            return found
        number: i64 = tag >> 3
        kind: i64 = tag & 7
        if number == 0:
            found.wrong("MQTTRPC-80", "a field has the number 0, fields start at 1", start)
            return found
        if not groups and number <= TIMEOUT_UNIT and not _fits(number, kind):
            found.wrong("MQTTRPC-81", f"field {number} has the wire type {kind}, which is not its own", start)
            return found
        value: i64 = 0
        if kind == VARINT:
            value, pos = varint(message, pos, end, VALUE_BYTES)
            if pos < 0:
                _number(found, f"the number in field {number}", VALUE_BYTES, pos, start)
                return found
        elif kind == LENGTH_DELIMITED:
            value, pos = varint(message, pos, end, TAG_BYTES)
            if pos < 0:
                _number(found, f"the length of field {number}", TAG_BYTES, pos, start)
                return found
            if value > end - pos:
                reason = f"field {number} has a length of {value} bytes, but {end - pos} are left"
                found.wrong("MQTTRPC-78", reason, start)
                return found
            pos += value
        elif kind == FIXED64 or kind == FIXED32:  # noqa: PLR1714, SIM109 - compares native integers
            pos += 8 if kind == FIXED64 else 4
            if pos > end:
                found.wrong("MQTTRPC-78", f"the message ends inside field {number}", start)
                return found
        elif kind == GROUP_START:
            if len(groups) == MAX_DEPTH:
                found.wrong("MQTTRPC-82", f"groups are nested more than {MAX_DEPTH} deep", start)
                return found
            groups.append(number)
            continue
        elif kind == GROUP_END:
            if not groups or groups.pop() != number:
                found.wrong("MQTTRPC-82", f"the end of group {number}, which is not the open one", start)
                return found
            continue
        else:
            found.wrong("MQTTRPC-80", f"field {number} has the wire type {kind}, which does not exist", start)
            return found
        if not groups and number <= TIMEOUT_UNIT:
            _note(found, number, kind, value, start)
    if groups:
        found.wrong("MQTTRPC-82", f"the message ends inside the group {groups[-1]}", end)
    return found


def _fits(number: i64, kind: i64) -> bool:
    """MQTTRPC-81: whether a field the protocol defines has the wire type, or one of the wire types, it defines."""
    if number == BODY:
        return kind == LENGTH_DELIMITED
    return kind == VARINT or (number == EOS_OR_ERROR_DATA and kind == LENGTH_DELIMITED)


def _note(found: Fields, number: i64, kind: i64, value: i64, start: i64) -> None:
    """Note what a field says about its message."""
    if number == CORRELATION_ID:
        found.correlation_id = int(value) & MAX_UINT64
    elif number == RESPONSE_EOS or (number == EOS_OR_ERROR_DATA and kind == LENGTH_DELIMITED):
        if found.response_at < 0:
            found.response_at = start  # MQTTRPC-37
    elif number != BODY and found.request_at < 0:
        found.request_at = start  # MQTTRPC-36


def _number(found: Fields, what: str, most: i64, why: i64, start: i64) -> None:
    """Note why a number can't be read."""
    if why == CUT:
        found.wrong("MQTTRPC-78", f"the message ends inside {what}", start)
    else:
        found.wrong("MQTTRPC-79", f"{what} takes more than {most} bytes", start)


@final
class Decoder:
    """Turns payloads into frames. It keeps nothing between them.

    ``max_message``: longer payloads are refused. ``max_fields``: payloads with more protobuf fields are refused; a
    normal one has five, and each takes time to read.
    """

    def __init__(self, *, max_message: int = MAX_MESSAGE, max_fields: int = MAX_FIELDS) -> None:
        self._max_message: Final = max_message
        self._max_fields: Final = max_fields

    def feed(self, message: bytes) -> list[Frame]:
        """The one frame of a payload. Raises ``RemoteProtocolError`` if it is not one."""
        found = walk(message, self._max_fields)
        if len(message) > self._max_message:
            reason = f"the message has {len(message)} bytes, more than the {self._max_message} allowed"
            error = _refused(found, "MQTTRPC-87", reason, self._max_message, TOO_LARGE)
            error.oversize = len(message)
            raise error
        if found.rule:
            raise _refused(found, found.rule, found.reason, found.position)
        if found.request_at >= 0 and found.response_at >= 0:
            at = found.request_at if found.request_at > found.response_at else found.response_at
            raise _refused(found, "MQTTRPC-77", "the message has fields of both a Request and a Response", at)
        try:
            if found.request_at >= 0:
                return [self._request(found, message)]
            return [self._response(found, message)]
        except (DecodeError, UnicodeDecodeError):
            where, what = _undecodable(message)
            raise _refused(found, "MQTTRPC-85", f"{what} can't be decoded", where) from None

    def pending(self) -> int:
        """How many bytes are held: none, since each payload is complete."""
        return 0

    def _request(self, found: Fields, message: bytes) -> Request:
        parsed = envelope_pb2.Request.FromString(message)
        unit: int = parsed.timeout_unit
        if not 0 <= unit < len(UNITS):
            reason = f"the timeout unit {unit} is none of 0 to {len(UNITS) - 1}"
            raise _refused(found, "MQTTRPC-86", reason, found.request_at)
        body = parsed.body
        type_url: str = body.type_url
        value: bytes | None = body.value
        if not value and not type_url and not parsed.HasField("body"):
            value = None
        return Request(parsed.correlation_id, type_url, value, parsed.eos, parsed.timeout, UNITS[unit])

    def _response(self, found: Fields, message: bytes) -> Frame:
        """A Response, or a Request that differs from one only in its ``type_url``."""
        parsed = envelope_pb2.Response.FromString(message)
        number: int = parsed.correlation_id
        body = parsed.body
        type_url: str = body.type_url
        value: bytes | None = body.value
        if not value and not type_url and not parsed.HasField("body"):
            value = None
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
    """The payload of a frame. Raises ``LocalProtocolError`` if RPC over MQTT does not allow it."""
    if isinstance(frame, Request):
        return _sized(_request_bytes(frame))
    if isinstance(frame, Response):
        return _sized(_response_bytes(frame))
    raise LocalProtocolError(f"{type(frame).__name__} is not a message of RPC over MQTT", rule="MQTTRPC-04")


def _request_bytes(frame: Request) -> bytes:
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
        _fill(message.body, frame.type_url, value)
    if frame.eos or not (frame.type_url or frame.timeout or unit):
        message.eos = frame.eos  # MQTTRPC-39: even a false one, where it is all that shows a Request
    return message.SerializeToString()


def _response_bytes(frame: Response) -> bytes:
    value = frame.value
    _check_envelope(frame.correlation_id, frame.type_url, value)
    message = envelope_pb2.Response(correlation_id=frame.correlation_id)
    if value is not None:
        _fill(message.body, frame.type_url, value)
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


def _fill(body: any_pb2.Any, type_url: str, value: bytes) -> None:
    if type_url:
        body.type_url = type_url
    if value:
        body.value = value
    elif not type_url:
        body.SetInParent()  # MQTTRPC-53: present, even with nothing in it


def _check_envelope(correlation_id: int, type_url: str, value: bytes | None) -> None:
    if not 0 <= correlation_id <= MAX_UINT64:
        raise LocalProtocolError(
            f"the correlation id {correlation_id} is not within 0 to {MAX_UINT64}", rule="MQTTRPC-91"
        )
    _check_text(type_url, "type_url")
    if value is not None and len(value) > MAX_PAYLOAD:
        raise LocalProtocolError(
            f"the value has {len(value)} bytes, more than the {MAX_PAYLOAD} of an MQTT packet", rule="MQTTRPC-91"
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
            f"the message has {len(payload)} bytes, more than the {MAX_PAYLOAD} of an MQTT packet", rule="MQTTRPC-91"
        )
    return payload


def _refused(
    found: Fields, rule: str, reason: str, position: int, failure: Failure = BAD_REQUEST
) -> RemoteProtocolError:
    """MQTTRPC-89: the error, with a reply if there is a caller waiting for one."""
    reply: Response | None = None
    is_request = found.request_at >= 0
    if (found.correlation_id and (is_request or found.response_at < 0)) or (is_request and not found.rule):
        reply = failed(found.correlation_id, failure)  # MQTTRPC-76: a message read to its end without an id has 0
    return RemoteProtocolError(reason, rule=rule, position=position, reply=reply)


def _undecodable(message: bytes) -> tuple[int, str]:
    """Where the field starts that protobuf can't decode, in a message whose outermost fields are valid."""
    end: i64 = len(message)
    pos: i64 = 0
    depth: i64 = 0
    while pos < end:
        start = pos
        tag, pos = varint(message, pos, end, TAG_BYTES)
        number: i64 = tag >> 3
        kind: i64 = tag & 7
        value: i64 = 0
        if kind == VARINT:
            value, pos = varint(message, pos, end, VALUE_BYTES)
        elif kind == FIXED64:
            pos += 8
        elif kind == FIXED32:
            pos += 4
        elif kind == GROUP_START:
            depth += 1
        elif kind == GROUP_END:
            depth -= 1
        else:
            value, pos = varint(message, pos, end, TAG_BYTES)
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
