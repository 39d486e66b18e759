"""What stands behind the fixed header: the fields of each packet, read into its frame.

Every function gets the octets with the packet's bounds and raises ``RemoteProtocolError`` with the position in those
octets; the decoder knows where they stand in the stream.
"""

from typing import Final, final

from mypy_extensions import i64

from polywire.protocols.mqtt.errors import RemoteProtocolError
from polywire.protocols.mqtt.packets import (
    BRIDGE,
    CLEAN_SESSION,
    CONNACK,
    CONNECT,
    FAILURE,
    IDENTIFIER_REJECTED,
    NAMES,
    NOT_AUTHORIZED,
    OLD_PROTOCOL_NAME,
    PASSWORD,
    PINGREQ,
    PINGRESP,
    PROTOCOL_LEVEL,
    PROTOCOL_NAME,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RESERVED_FLAG,
    SUBACK,
    SUBSCRIBE,
    UNACCEPTABLE_PROTOCOL_VERSION,
    UNSUBACK,
    UNSUBSCRIBE,
    USER_NAME,
    WILL,
    WILL_QOS,
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
    Will,
)
from polywire.protocols.mqtt.topics import filter_problem, name_problem, plain_name, text_problem
from polywire.wire.buffers import Names
from polywire.wire.frame import Frame

_names: Final = Names()  # valid ones only


@final
class Fields:
    """Reads one field after the other, never beyond the packet's end."""

    def __init__(self, data: bytes, pos: i64, end: i64, kind: i64) -> None:
        self._data: Final = data
        self.pos: i64 = pos
        self.end: i64 = end
        self._kind: i64 = kind

    def wrong(self, reason: str, rule: str, position: i64) -> RemoteProtocolError:
        """The error to raise, naming the packet."""
        return RemoteProtocolError(f"{NAMES[self._kind]}: {reason}", rule=rule, position=int(position))

    def octet(self, what: str) -> i64:
        """A field of one octet."""
        if self.pos >= self.end:
            raise self.wrong(f"the packet ends before its {what}", "MQTT-178", self.end)
        self.pos += 1
        return i64(self._data[self.pos - 1])

    def number(self, what: str) -> i64:
        """A field of two octets (MQTT-001)."""
        if self.pos + 2 > self.end:
            raise self.wrong(f"the packet ends before its {what}", "MQTT-178", self.end)
        self.pos += 2
        return (i64(self._data[self.pos - 2]) << 8) | i64(self._data[self.pos - 1])

    def octets(self, what: str) -> bytes:
        """A length of two octets, and as many octets of any kind."""
        length = self.number(f"{what}'s length")
        start = self.pos
        if start + length > self.end:
            have = self.end - start
            raise self.wrong(f"its {what} should have {length} octets, but {have} are left", "MQTT-178", start - 2)
        self.pos = start + length
        return self._data[start : start + length]

    def text(self, what: str) -> str:
        """A string (MQTT-002)."""
        raw = self.octets(what)
        return self._valid(raw, text_problem(raw), what)

    def topic_name(self, what: str) -> str:
        """A string that is a topic name."""
        raw = self.octets(what)
        return self._valid(raw, name_problem(raw), what)

    def topic_filter(self) -> str:
        """A string that is a topic filter."""
        raw = self.octets("topic filter")
        return self._valid(raw, filter_problem(raw), "topic filter")

    def packet_id(self, rule: str) -> i64:
        """A packet id, which is never zero."""
        number = self.number("packet id")
        if number == 0:
            raise self.wrong("its packet id is 0, and must be 1 to 65535", rule, self.pos - 2)
        return number

    def finish(self) -> None:
        """Nothing may be left."""
        if self.pos != self.end:
            raise self.wrong(f"{self.end - self.pos} octets are left behind its last field", "MQTT-178", self.pos)

    def _valid(self, raw: bytes, problem: tuple[str, str] | None, what: str) -> str:
        if problem is not None:
            raise self.wrong(f"its {what} is invalid: {problem[1]}", problem[0], self.pos - i64(len(raw)))
        return raw.decode()


def read_publish(data: bytes, first: i64, pos: i64, end: i64) -> Publish:
    """The PUBLISH with this first octet whose variable header and payload are ``data[pos:end]``."""
    start: i64 = pos + 2
    stop: i64 = start
    if start <= end:
        stop += (i64(data[pos]) << 8) | i64(data[pos + 1])
    known: str | None = None
    if stop <= end and start <= end:
        octets = data[start:stop]
        known = _names.known(octets)
        if known is None and plain_name(data, start, stop):
            known = _names.text(octets)
    topic = known if known is not None else Fields(data, pos, end, first >> 4).topic_name("topic name")
    qos: i64 = (first >> 1) & 3
    if qos == 0:
        return Publish(topic, data[stop:end], 0, first & 1 != 0, False, None)
    packet_id: i64 = 0
    if stop + 2 <= end:
        packet_id = (i64(data[stop]) << 8) | i64(data[stop + 1])
    if packet_id == 0:
        packet_id = Fields(data, stop, end, first >> 4).packet_id("MQTT-017")  # says what is wrong
    return Publish(topic, data[stop + 2 : end], qos, first & 1 != 0, first & 8 != 0, packet_id)


def read_other(kind: i64, data: bytes, pos: i64, end: i64, max_filters: i64) -> Frame:
    """The packet of any other type whose variable header and payload are ``data[pos:end]``."""
    if kind == PUBACK and pos + 2 == end:
        # The one that comes most often, by the short way where nothing is wrong with it.
        number: i64 = (i64(data[pos]) << 8) | i64(data[pos + 1])
        if number != 0:
            return Puback(number)
    fields = Fields(data, pos, end, kind)
    if kind == PUBACK:
        return Puback(fields.packet_id("MQTT-023"))
    if kind == PUBREC:
        return Pubrec(fields.packet_id("MQTT-023"))
    if kind == PUBREL:
        return Pubrel(fields.packet_id("MQTT-023"))
    if kind == PUBCOMP:
        return Pubcomp(fields.packet_id("MQTT-023"))
    if kind == UNSUBACK:
        return Unsuback(fields.packet_id("MQTT-024"))
    if kind == PINGREQ:
        return Pingreq()
    if kind == PINGRESP:
        return Pingresp()
    if kind == SUBSCRIBE:
        return read_subscribe(fields, max_filters)
    if kind == SUBACK:
        return read_suback(fields)
    if kind == UNSUBSCRIBE:
        return read_unsubscribe(fields, max_filters)
    if kind == CONNECT:
        return read_connect(fields)
    if kind == CONNACK:
        return read_connack(fields)
    return Disconnect()


def read_connect(fields: Fields) -> Connect:
    """The fields of CONNECT. Its form is checked first, then whether it can be accepted."""
    start = fields.pos
    name = fields.octets("protocol name")
    if name != PROTOCOL_NAME:
        wrong = fields.wrong(f"the protocol name is {name[:16]!r}, not {PROTOCOL_NAME!r}", "MQTT-030", start)
        if name == OLD_PROTOCOL_NAME:
            wrong.reply = Connack(False, UNACCEPTABLE_PROTOCOL_VERSION)
        raise wrong
    level = fields.octet("protocol level")
    if level & ~BRIDGE != PROTOCOL_LEVEL:
        # Other levels have other fields, so nothing behind this one can be judged.
        error = fields.wrong(f"the protocol level is {level}, only {PROTOCOL_LEVEL} is spoken", "MQTT-031", start + 6)
        error.reply = Connack(False, UNACCEPTABLE_PROTOCOL_VERSION)
        raise error
    flags = fields.octet("connect flags")
    at = fields.pos - 1
    will_qos = (flags & WILL_QOS) >> 3
    if flags & RESERVED_FLAG != 0:
        raise fields.wrong("the reserved bit of the connect flags is set", "MQTT-032", at)
    if flags & WILL == 0 and will_qos != 0:
        raise fields.wrong(f"will QoS is {will_qos} without a will", "MQTT-042", at)
    if will_qos == 3:
        raise fields.wrong("will QoS is 3, and must be 0, 1 or 2", "MQTT-043", at)
    if flags & WILL == 0 and flags & WILL_RETAIN != 0:
        raise fields.wrong("will retain is set without a will", "MQTT-044", at)
    if flags & USER_NAME == 0 and flags & PASSWORD != 0:
        raise fields.wrong("there is a password without a user name", "MQTT-051", at)
    keep_alive = fields.number("keep alive")
    named = fields.pos
    client_id = fields.text("client id")
    will: Will | None = None
    if flags & WILL != 0:
        topic = fields.topic_name("will topic")
        will = Will(topic, fields.octets("will message"), will_qos, flags & WILL_RETAIN != 0)
    user_name: str | None = None
    if flags & USER_NAME != 0:
        user_name = fields.text("user name")
    password: bytes | None = None
    if flags & PASSWORD != 0:
        password = fields.octets("password")
    fields.finish()
    clean_session = flags & CLEAN_SESSION != 0
    if not client_id and not clean_session:
        error = fields.wrong("an empty client id needs clean session", "MQTT-064", named)
        error.reply = Connack(False, IDENTIFIER_REJECTED)
        raise error
    return Connect(client_id, clean_session, keep_alive, will, user_name, password, level & BRIDGE != 0)


def read_connack(fields: Fields) -> Connack:
    """The fields of CONNACK."""
    flags = fields.octet("acknowledge flags")
    code = fields.octet("return code")
    if flags > 1:
        raise fields.wrong(f"the acknowledge flags are {flags:#04x}, only 0 and 1 exist", "MQTT-078", fields.pos - 2)
    if code > NOT_AUTHORIZED:
        raise fields.wrong(f"the return code is {code}, only 0 to {NOT_AUTHORIZED} exist", "MQTT-083", fields.pos - 1)
    if code != 0 and flags != 0:
        raise fields.wrong(f"session present is set with return code {code}", "MQTT-082", fields.pos - 2)
    return Connack(flags == 1, code)


def read_subscribe(fields: Fields, max_filters: i64) -> Subscribe:
    """The fields of SUBSCRIBE."""
    packet_id = fields.packet_id("MQTT-017")
    filters: list[tuple[str, int]] = []
    if fields.pos == fields.end:
        raise fields.wrong("it has no topic filter, and must have one at least", "MQTT-110", fields.pos)
    while fields.pos < fields.end:
        if i64(len(filters)) == max_filters:
            raise fields.wrong(f"it has more than {max_filters} topic filters", "MQTT-181", fields.pos)
        topic_filter = fields.topic_filter()
        qos = fields.octet("QoS")
        if qos > 2:
            raise fields.wrong(f"the octet of QoS is {qos:#04x}, and must be 0, 1 or 2", "MQTT-111", fields.pos - 1)
        filters.append((topic_filter, int(qos)))
    return Subscribe(packet_id, tuple(filters))


def read_suback(fields: Fields) -> Suback:
    """The fields of SUBACK."""
    packet_id = fields.packet_id("MQTT-024")
    codes: list[int] = []
    if fields.pos == fields.end:
        raise fields.wrong("it has no return code, and must have one at least", "MQTT-026", fields.pos)
    while fields.pos < fields.end:
        code = fields.octet("return code")
        if code > 2 and code != FAILURE:
            raise fields.wrong(f"a return code is {code}, only 0, 1, 2 and 128 exist", "MQTT-120", fields.pos - 1)
        codes.append(int(code))
    return Suback(packet_id, tuple(codes))


def read_unsubscribe(fields: Fields, max_filters: i64) -> Unsubscribe:
    """The fields of UNSUBSCRIBE."""
    packet_id = fields.packet_id("MQTT-017")
    filters: list[str] = []
    if fields.pos == fields.end:
        raise fields.wrong("it has no topic filter, and must have one at least", "MQTT-124", fields.pos)
    while fields.pos < fields.end:
        if i64(len(filters)) == max_filters:
            raise fields.wrong(f"it has more than {max_filters} topic filters", "MQTT-181", fields.pos)
        filters.append(fields.topic_filter())
    return Unsubscribe(packet_id, tuple(filters))
