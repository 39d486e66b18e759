"""RPC over MQTT under the fuzzer: frames or the documented error, told apart as a plain reading of the rules does.

Every payload is also given to protobuf: what it refuses is refused, and what it takes is refused only by a rule that
goes beyond protobuf.
"""

from google.protobuf.message import DecodeError

from polywire.protocols.mqttrpc import envelope_pb2
from polywire.protocols.mqttrpc.errors import RemoteProtocolError
from polywire.protocols.mqttrpc.frames import Decoder, ErrorData, Request, Response, TimeoutUnit, encode
from polywire.wire.frame import Frame

LIMIT = 1024
MAX_FIELDS = 40
BEYOND_PROTOBUF = {"MQTTRPC-77", "MQTTRPC-81", "MQTTRPC-86", "MQTTRPC-87", "MQTTRPC-88"}
KINDS = {1: {0}, 2: {2}, 3: {0, 2}, 4: {0}, 5: {0}, 6: {0}}


class UnreadableError(Exception):
    """The reference reading can't go on."""


def number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, read the slow way: its value, and how many bytes it takes."""
    octets = data[at : at + 10]
    length = next((place + 1 for place, octet in enumerate(octets) if octet < 128), 0)
    if length == 0:
        raise UnreadableError
    value = sum((octet & 127) << (7 * place) for place, octet in enumerate(octets[:length]))
    return value & (2**64 - 1), length


def fields(data: bytes) -> list[tuple[int, int, int]]:
    """The outermost fields as (number, wire type, value or length), read the slow way."""
    found: list[tuple[int, int, int]] = []
    at = 0
    groups: list[int] = []
    while at < len(data):
        tag, length = number(data, at)
        at += length
        field, kind = tag >> 3, tag & 7
        value = 0
        if field == 0 or kind > 5 or length > 5 or tag >= 2**32:
            raise UnreadableError
        if kind == 4:
            if not groups or groups.pop() != field:
                raise UnreadableError
            continue
        if not groups:
            found.append((field, kind, 0))
        if kind == 3:
            groups.append(field)
        elif kind == 0:
            value, length = number(data, at)
            at += length
        elif kind == 2:
            value, length = number(data, at)
            if length > 5:
                raise UnreadableError
            at += length + value
        else:
            at += {1: 8, 5: 4}[kind]
        if at > len(data):
            raise UnreadableError
        if not groups:
            found[-1] = (field, kind, value)
    if groups:
        raise UnreadableError
    return found


def kinds(found: list[tuple[int, int, int]]) -> set[str]:
    """Which messages the fields say this is: both is a contradiction, none leaves it to the type_url."""
    marks: set[str] = set()
    for field, kind, _ in found:
        if (field, kind) == (3, 0) or field in {5, 6}:
            marks.add("Request")
        if (field, kind) == (3, 2) or field == 4:
            marks.add("Response")
    return marks


def taken_by_protobuf(data: bytes, marks: set[str]) -> bool:
    """Whether the generated module can read this as what it is said to be."""
    try:
        if "Request" in marks:
            envelope_pb2.Request.FromString(data)
        if "Request" not in marks or "Response" in marks:
            envelope_pb2.Response.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return False
    return True


def run(data: bytes) -> None:
    decoder = Decoder(max_message=LIMIT, max_fields=MAX_FIELDS)
    try:
        outermost: list[tuple[int, int, int]] | None = fields(data)
    except UnreadableError:
        outermost = None
    marks = kinds(outermost or [])
    try:
        frames = decoder.feed(data)
    except RemoteProtocolError as error:
        check_error(error, data, outermost, marks)
    else:
        assert outermost is not None
        assert len(frames) == 1
        check_frame(frames[0], data, marks)
        assert decoder.feed(encode(frames[0])) == frames
    assert decoder.pending() == 0
    whole = Request(1, "SayHello", b"after anything")
    assert decoder.feed(encode(whole)) == [whole]


def check_frame(frame: Frame, data: bytes, marks: set[str]) -> None:
    """The frame is what the fields say, with the values protobuf reads."""
    if isinstance(frame, Request):
        assert marks <= {"Request"}
        sent = envelope_pb2.Request.FromString(data)
        assert marks or sent.body.type_url
        assert (frame.eos, frame.timeout, int(frame.timeout_unit)) == (sent.eos, sent.timeout, int(sent.timeout_unit))
        value = sent.body.value if sent.HasField("body") else None
        body = (sent.correlation_id, sent.body.type_url, value)
    else:
        assert isinstance(frame, Response)
        assert marks <= {"Response"}
        answered = envelope_pb2.Response.FromString(data)
        assert marks or not answered.body.type_url
        assert frame.eos == answered.eos
        assert (frame.error_data is not None) == answered.HasField("error_data")
        if frame.error_data is not None:
            wire = answered.error_data
            assert frame.error_data == ErrorData(wire.code, wire.tag, wire.user_message, wire.retry_after)
        value = answered.body.value if answered.HasField("body") else None
        body = (answered.correlation_id, answered.body.type_url, value)
    assert (frame.correlation_id, frame.type_url, frame.value) == body


def check_error(
    error: RemoteProtocolError, data: bytes, outermost: list[tuple[int, int, int]] | None, marks: set[str]
) -> None:
    """The error is one the rules name, for a reason that holds, and its reply can be sent."""
    assert 0 <= error.position <= len(data)
    assert not error.frames
    reply = error.reply
    if reply is not None:
        assert isinstance(reply, Response)
        assert Decoder().feed(encode(reply)) == [reply]
        assert reply.correlation_id or "Request" in marks
    if error.rule not in BEYOND_PROTOBUF:
        assert outermost is None or not taken_by_protobuf(data, marks), error
    if error.rule == "MQTTRPC-77":
        assert len(marks) == 2
    if error.rule == "MQTTRPC-81" and outermost is not None:
        assert any(kind not in KINDS.get(field, {kind}) for field, kind, _ in outermost)
    if error.rule == "MQTTRPC-87":
        assert len(data) > LIMIT


def seeds() -> list[bytes]:
    frames: list[Frame] = [
        Request(7, "SayHello", b"\n\x05world"),
        Request(2**64 - 1, "a.B/SayHello", b"x" * 200, eos=True, timeout=5, timeout_unit=TimeoutUnit.SECOND),
        Request(9, eos=True),
        Request(9),
        Response(7, "", b"\n\x05hello"),
        Response(7, "HelloResponse", b"\n\x05hello", eos=True),
        Response(7, "", b"", eos=True),
        Response(7, "Detail", b"x", ErrorData(429, "overloaded", "Später.", 1000), eos=True),
        Request(0, "SayHello"),
        Response(7, error_data=ErrorData(0)),
    ]
    odd = [
        b"\x08\x01\x4b\x08\x05\x53\x54\x4c",
        b"\x08\x01\x18\x01\x20\x01",
        b"\x08\x01\x49" + bytes(8) + b"\x4d" + bytes(4),
    ]
    return [*map(encode, frames), *odd]
