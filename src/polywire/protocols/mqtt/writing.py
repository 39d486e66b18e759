"""Frames to octets. Whatever the standard forbids is refused here, before an octet of it exists."""

from typing import Final

from librt.strings import BytesWriter, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64

from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.packets import (
    BRIDGE,
    CLEAN_SESSION,
    CONNACK,
    CONNECT,
    DISCONNECT,
    FAILURE,
    MAX_OCTETS,
    MAX_PACKET_ID,
    MAX_REMAINING,
    NOT_AUTHORIZED,
    PASSWORD,
    PINGREQ,
    PINGRESP,
    PROTOCOL_LEVEL,
    PROTOCOL_NAME,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    USER_NAME,
    WILL,
    WILL_RETAIN,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from polywire.protocols.mqtt.topics import filter_problem, name_problem, plain_name, text_problem
from polywire.wire.buffers import LONGEST_KEPT, NAMES_KEPT
from polywire.wire.frame import Frame

COPIED_ONCE = 1024
"""Payloads over this many octets don't go through the writer, which would copy them twice."""

_names: Final[dict[str, bytes]] = {}
"""The octets of valid topic names, some thousands of them."""


def encode(frame: Frame) -> bytes:
    """The octets of a packet. Raises ``LocalProtocolError`` for what MQTT does not allow."""
    if isinstance(frame, Publish):
        return _publish(frame)
    if isinstance(frame, Puback):
        return _acknowledgement(PUBACK << 4, frame.packet_id, "MQTT-023")
    if isinstance(frame, Pubrec):
        return _acknowledgement(PUBREC << 4, frame.packet_id, "MQTT-023")
    if isinstance(frame, Pubrel):
        return _acknowledgement(PUBREL << 4 | 2, frame.packet_id, "MQTT-023")
    if isinstance(frame, Pubcomp):
        return _acknowledgement(PUBCOMP << 4, frame.packet_id, "MQTT-023")
    if isinstance(frame, Unsuback):
        return _acknowledgement(UNSUBACK << 4, frame.packet_id, "MQTT-024")
    if isinstance(frame, Subscribe):
        return _subscribe(frame)
    if isinstance(frame, Suback):
        return _suback(frame)
    if isinstance(frame, Unsubscribe):
        return _unsubscribe(frame)
    if isinstance(frame, Connect):
        return _connect(frame)
    if isinstance(frame, Connack):
        return _connack(frame)
    if isinstance(frame, Pingreq):
        return bytes((PINGREQ << 4, 0))
    if isinstance(frame, Pingresp):
        return bytes((PINGRESP << 4, 0))
    if isinstance(frame, Disconnect):
        return bytes((DISCONNECT << 4, 0))
    raise LocalProtocolError(f"{type(frame).__name__} is not an MQTT packet", rule="MQTT-008")


def check_publication(topic: str, payload: bytes) -> None:
    """Raise ``LocalProtocolError`` where no PUBLISH can have this topic and payload."""
    _check_length(4 + i64(len(_name(topic))) + i64(len(payload)))


def publication(topic: str, qos: i64, retain: bool, packet_id: i64, payload: bytes) -> bytes:
    """The PUBLISH of a message that is sent for the first time; ``packet_id`` is 0 where it has none.

    It is what ``encode`` makes of such a frame, for a hub that has its parts and no frame.
    """
    name = _name(topic)
    first: i64 = 0x30 | qos << 1
    if retain:
        first |= 1
    length: i64 = 2 + i64(len(name)) + i64(len(payload))
    if packet_id != 0:
        length += 2
    if length < 128:
        out = _word(first << 24 | length << 16 | i64(len(name)))
    else:
        out = _packet(first, length)
        _number(out, len(name))
    out.write(name)
    if packet_id != 0:
        write_i16_be(out, i16(packet_id if packet_id < 0x8000 else packet_id - 0x1_0000))
    if len(payload) > COPIED_ONCE:
        return out.getvalue() + payload
    out.write(payload)
    return out.getvalue()


def write_acknowledgement(out: BytesWriter, kind: i64, packet_id: i64) -> None:
    """Append a PUBACK, PUBREC or PUBCOMP."""
    write_i32_be(out, i32(kind << 28 | 2 << 16 | packet_id))


def _publish(frame: Publish) -> bytes:
    qos: i64 = frame.qos
    if not 0 <= qos <= 2:
        raise LocalProtocolError(f"QoS is {qos}, and must be 0, 1 or 2", rule="MQTT-089")
    name = _name(frame.topic)
    first: i64 = 0x30 | qos << 1
    if frame.retain:
        first |= 1
    packet_id = frame.packet_id
    number: i64 = 0
    if qos == 0:
        if frame.dup:
            raise LocalProtocolError("DUP is set with QoS 0", rule="MQTT-087")
        if packet_id is not None:
            raise LocalProtocolError(f"there is a packet id, {packet_id}, with QoS 0", rule="MQTT-022")
    else:
        if packet_id is None:
            raise LocalProtocolError(f"there is no packet id, and QoS {qos} needs one", rule="MQTT-017")
        number = _packet_id(packet_id, "MQTT-017")
        if frame.dup:
            first |= 8
    length: i64 = 2 + i64(len(name)) + i64(len(frame.payload))
    if qos != 0:
        length += 2
    if length < 128:
        out = _word(first << 24 | length << 16 | i64(len(name)))
    else:
        out = _packet(first, length)
        _number(out, len(name))
    out.write(name)
    if qos != 0:
        _number(out, number)
    if len(frame.payload) > COPIED_ONCE:
        return out.getvalue() + frame.payload
    out.write(frame.payload)
    return out.getvalue()


def _connect(frame: Connect) -> bytes:
    if not frame.client_id and not frame.clean_session:
        raise LocalProtocolError("an empty client id needs clean session", rule="MQTT-063")
    if not 0 <= frame.keep_alive <= 0xFFFF:
        raise LocalProtocolError(f"keep alive is {frame.keep_alive} s, and must be 0 to 65535", rule="MQTT-052")
    if frame.user_name is None and frame.password is not None:
        raise LocalProtocolError("a password needs a user name", rule="MQTT-051")
    flags: i64 = CLEAN_SESSION if frame.clean_session else 0
    body = BytesWriter()
    _text(body, frame.client_id, "client id")
    will = frame.will
    if will is not None:
        if not 0 <= will.qos <= 2:
            raise LocalProtocolError(f"will QoS is {will.qos}, and must be 0, 1 or 2", rule="MQTT-043")
        flags |= WILL | i64(will.qos) << 3
        if will.retain:
            flags |= WILL_RETAIN
        topic = _utf8(will.topic, "will topic")
        _demand(name_problem(topic), "will topic")
        _octets(body, topic, "will topic", "MQTT-163")
        _octets(body, will.payload, "will message", "MQTT-067")
    if frame.user_name is not None:
        flags |= USER_NAME
        _text(body, frame.user_name, "user name")
    if frame.password is not None:
        flags |= PASSWORD
        _octets(body, frame.password, "password", "MQTT-069")
    out = _packet(CONNECT << 4, 10 + i64(len(body)))
    _octets(out, PROTOCOL_NAME, "protocol name", "MQTT-030")
    _octet(out, PROTOCOL_LEVEL | BRIDGE if frame.bridge else PROTOCOL_LEVEL)
    _octet(out, flags)
    _number(out, frame.keep_alive)
    out.write(body.getvalue())
    return out.getvalue()


def _connack(frame: Connack) -> bytes:
    code = frame.return_code
    if not 0 <= code <= NOT_AUTHORIZED:
        raise LocalProtocolError(f"the return code is {code}, and must be 0 to {NOT_AUTHORIZED}", rule="MQTT-083")
    if code != 0 and frame.session_present:
        raise LocalProtocolError(f"session present is set with return code {code}", rule="MQTT-082")
    return bytes((CONNACK << 4, 2, 1 if frame.session_present else 0, code))


def _subscribe(frame: Subscribe) -> bytes:
    if not frame.filters:
        raise LocalProtocolError("SUBSCRIBE needs at least one topic filter", rule="MQTT-110")
    body = BytesWriter()
    _number(body, _packet_id(frame.packet_id, "MQTT-017"))
    for topic_filter, qos in frame.filters:
        if not 0 <= qos <= 2:
            raise LocalProtocolError(f"QoS is {qos}, and must be 0, 1 or 2", rule="MQTT-111")
        _filter(body, topic_filter)
        _octet(body, qos)
    out = _packet(SUBSCRIBE << 4 | 2, len(body))
    out.write(body.getvalue())
    return out.getvalue()


def _suback(frame: Suback) -> bytes:
    if not frame.return_codes:
        raise LocalProtocolError("SUBACK needs at least one return code", rule="MQTT-026")
    for code in frame.return_codes:
        if code not in {0, 1, 2, FAILURE}:
            raise LocalProtocolError(f"a return code is {code}, and must be 0, 1, 2 or 128", rule="MQTT-120")
    number = _packet_id(frame.packet_id, "MQTT-024")
    out = _packet(SUBACK << 4, 2 + i64(len(frame.return_codes)))
    _number(out, number)
    out.write(bytes(frame.return_codes))
    return out.getvalue()


def _unsubscribe(frame: Unsubscribe) -> bytes:
    if not frame.filters:
        raise LocalProtocolError("UNSUBSCRIBE needs at least one topic filter", rule="MQTT-124")
    body = BytesWriter()
    _number(body, _packet_id(frame.packet_id, "MQTT-017"))
    for topic_filter in frame.filters:
        _filter(body, topic_filter)
    out = _packet(UNSUBSCRIBE << 4 | 2, len(body))
    out.write(body.getvalue())
    return out.getvalue()


def _acknowledgement(first: i64, packet_id: int, rule: str) -> bytes:
    return _word(first << 24 | 2 << 16 | _packet_id(packet_id, rule)).getvalue()


def _word(word: i64) -> BytesWriter:
    """A writer that has these four octets."""
    out = BytesWriter()
    write_i32_be(out, i32(word if word <= 0x7FFF_FFFF else word - 0x1_0000_0000))
    return out


def _packet(first: i64, length: i64) -> BytesWriter:
    """A writer that has the fixed header (MQTT-014)."""
    _check_length(length)
    out = BytesWriter()
    _octet(out, first)
    left: i64 = length
    while left >= 128:
        _octet(out, left & 127 | 128)
        left >>= 7
    _octet(out, left)
    return out


def _check_length(length: i64) -> None:
    if length > MAX_REMAINING:
        raise LocalProtocolError(f"the remaining length is {length}, more than {MAX_REMAINING}", rule="MQTT-015")


def _packet_id(number: int, rule: str) -> i64:
    if not 1 <= number <= MAX_PACKET_ID:
        raise LocalProtocolError(f"the packet id is {number}, and must be 1 to {MAX_PACKET_ID}", rule=rule)
    return number


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"the {what} {text[:64]!r} can't be written as UTF-8", rule="MQTT-003") from error


def _name(topic: str) -> bytes:
    """The octets of a topic name."""
    known = _names.get(topic)
    if known is not None:
        return known
    raw = _utf8(topic, "topic name")
    if len(raw) > MAX_OCTETS or not plain_name(raw, 0, len(raw)):
        _demand(name_problem(raw), "topic name")
    if len(raw) <= LONGEST_KEPT:
        if len(_names) >= NAMES_KEPT:
            _names.clear()
        _names[topic] = raw
    return raw


def _demand(problem: tuple[str, str] | None, what: str) -> None:
    if problem is not None:
        raise LocalProtocolError(f"the {what} is invalid: {problem[1]}", rule=problem[0])


def _text(out: BytesWriter, text: str, what: str) -> None:
    raw = _utf8(text, what)
    _demand(text_problem(raw), what)
    _octets(out, raw, what, "MQTT-002")


def _filter(out: BytesWriter, text: str) -> None:
    raw = _utf8(text, "topic filter")
    _demand(filter_problem(raw), "topic filter")
    _octets(out, raw, "topic filter", "MQTT-163")


def _octets(out: BytesWriter, raw: bytes, what: str, rule: str) -> None:
    if len(raw) > MAX_OCTETS:
        raise LocalProtocolError(f"the {what} has {len(raw)} octets, more than {MAX_OCTETS}", rule=rule)
    _number(out, len(raw))
    out.write(raw)


def _number(out: BytesWriter, number: i64) -> None:
    """Two octets, the most significant first (MQTT-001)."""
    _octet(out, number >> 8)
    _octet(out, number & 255)


def _octet(out: BytesWriter, octet: i64) -> None:
    out.append(octet)
