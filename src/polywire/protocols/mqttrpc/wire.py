"""The fields of a message, walked over without decoding them: what tells a Request from a Response.

Both travel on one topic and only the numbers and wire types of their fields say which is which (MQTTRPC-36 to 38).
protobuf has no way to ask for that, so this is the one place that reads its wire format; the values are decoded by the
generated module. The walk allocates nothing that grows with the message, and goes over the outermost fields only.
"""

from typing import Final, final

from mypy_extensions import i64

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
TIMEOUT: Final = 5
TIMEOUT_UNIT: Final = 6

TAG_OCTETS: Final = 5  # MQTTRPC-79: a tag or a length has 32 bits
VALUE_OCTETS: Final = 10  # MQTTRPC-79: another number has 64
MAX_TAG: Final = 0xFFFF_FFFF
MAX_DEPTH: Final = 100  # MQTTRPC-82: protobuf's own limit on groups in groups
UINT64: Final = 0xFFFF_FFFF_FFFF_FFFF

CUT: Final = -1
OVERLONG: Final = -2


@final
class Fields:
    """What a walk found: ``rule`` is empty where nothing is wrong.

    ``request_at`` and ``response_at`` are where the first field stands that only a Request, or only a Response, has, or
    -1 where there is none.
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
    """The number at ``pos`` and the position behind it; instead of that, ``CUT`` or ``OVERLONG``."""
    value: i64 = 0
    shift: i64 = 0
    stop: i64 = pos + most
    while pos < end and pos < stop:
        octet: i64 = data[pos]
        value |= (octet & 0x7F) << shift
        pos += 1
        if octet < 0x80:
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
        tag, pos = varint(message, pos, end, TAG_OCTETS)
        if pos < 0:
            _number(found, "the tag of a field", TAG_OCTETS, pos, start)
            return found
        if tag > MAX_TAG:
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
            value, pos = varint(message, pos, end, VALUE_OCTETS)
            if pos < 0:
                _number(found, f"the number in field {number}", VALUE_OCTETS, pos, start)
                return found
        elif kind == LENGTH_DELIMITED:
            value, pos = varint(message, pos, end, TAG_OCTETS)
            if pos < 0:
                _number(found, f"the length of field {number}", TAG_OCTETS, pos, start)
                return found
            if value > end - pos:
                reason = f"field {number} is to have {value} octets, but {end - pos} are left"
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
                found.wrong("MQTTRPC-82", f"a group {number} ends that is not the one open", start)
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
    """Remember what a field says of the message it is in."""
    if number == CORRELATION_ID:
        found.correlation_id = int(value) & UINT64
    elif number == RESPONSE_EOS or (number == EOS_OR_ERROR_DATA and kind == LENGTH_DELIMITED):
        if found.response_at < 0:
            found.response_at = start  # MQTTRPC-37
    elif number != BODY and found.request_at < 0:
        found.request_at = start  # MQTTRPC-36


def _number(found: Fields, what: str, most: i64, why: i64, start: i64) -> None:
    """Note why a number could not be read."""
    if why == CUT:
        found.wrong("MQTTRPC-78", f"the message ends inside {what}", start)
    else:
        found.wrong("MQTTRPC-79", f"{what} takes more than {most} octets", start)
