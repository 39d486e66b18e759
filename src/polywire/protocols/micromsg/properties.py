"""A message's properties, ``key:value;key:value;``, and the typed values they and filters are made of.

A message keeps its properties as the text they came in: most messages are passed on without anybody looking. The
decoder has checked that text with ``problem``, so that ``read`` can't fail on it.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Final

from mypy_extensions import i64

from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.protocols.micromsg.url_encoding import decoded, encoded, hexadecimal, shown

Value = int | float | str | datetime
"""What a property or a filter compares: a number, a text, or a date with its time zone."""

MAX_OCTETS: Final = 65535
"""MICROMSG-52: the length field has two octets."""

RULE: Final = "MICROMSG-161"
ESCAPE_RULE: Final = "MICROMSG-162"
COLON: Final = 58
SEMICOLON: Final = 59
PERCENT: Final = 37
FINE: Final = -1
HIGH_ESCAPES: Final = -2
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1
MICROSECOND: Final = timedelta(microseconds=1)


def problem(octets: bytes, start: i64, end: i64) -> MalformedError | None:
    """Why the properties at ``octets[start:end]`` are invalid, or None where they are fine."""
    wrong: i64 = _scan(octets, start, end)
    if wrong >= 0:
        return _explained(octets, wrong, start, end)
    if wrong == HIGH_ESCAPES:
        try:
            read(octets[start:end].decode("ascii"))
        except MalformedError as error:
            return error
    return None


def read(text: str) -> dict[str, Value]:
    """The properties by key; of a key that stands twice the last one. Raises ``MalformedError``."""
    octets = text.encode("utf-8", "surrogatepass")
    end: i64 = len(octets)
    wrong: i64 = _scan(octets, 0, end)
    if wrong >= 0:
        raise _explained(octets, wrong, 0, end)
    found: dict[str, Value] = {}
    pos: i64 = 0
    while pos < end:
        colon = pos
        while octets[colon] != COLON:
            colon += 1
        behind = colon + 1
        while behind < end and octets[behind] != SEMICOLON:
            behind += 1
        value = text[colon + 1 : behind]
        typed = read_value(value, colon + 1)
        found[text[pos:colon]] = decoded(value, colon + 1) if typed is None else typed
        pos = behind + 1
    return found


def _scan(octets: bytes, start: i64, end: i64) -> i64:
    """The place of the first octet that is wrong, FINE, or HIGH_ESCAPES where escapes are still to be decoded."""
    pos = start
    fine: i64 = FINE
    while pos < end:
        key = pos
        while pos < end and _is_key(octets[pos]):
            pos += 1
        if pos == key or pos == end or octets[pos] != COLON:  # noqa: PLR1714, SIM109 - native comparisons
            return pos
        pos += 1
        while pos < end:
            octet: i64 = octets[pos]
            if octet == SEMICOLON:
                break
            if octet == PERCENT:
                if pos + 3 > end or hexadecimal(octets, pos + 1) < 0 or hexadecimal(octets, pos + 2) < 0:
                    return pos
                if hexadecimal(octets, pos + 1) >= 8:
                    fine = HIGH_ESCAPES
                pos += 2
            elif octet < 32 or octet > 126:
                return pos
            pos += 1
        pos += 1
    return fine


def _is_key(octet: i64) -> bool:
    """Whether an octet may stand in a key: those of a FIELD, and ``_`` (MICROMSG-143)."""
    return 97 <= octet <= 122 or 48 <= octet <= 57 or octet == 45 or octet == 95  # noqa: PLR1714 - native


def _explained(octets: bytes, at: i64, start: i64, end: i64) -> MalformedError:
    """What ``_scan`` found wrong at a place, in words."""
    rule = RULE
    key = octets.rfind(b";", start, at) + 1 or start
    if at == end:
        reason = "the last property has no colon"
    elif octets.find(b":", key, at) < 0:
        reason = f"octet {octets[at]} stands where a property's key or its colon should be"
    elif octets[at] == PERCENT:
        reason = "a % in the properties is not followed by two hexadecimal digits"
        rule = ESCAPE_RULE
    else:
        reason = f"octet {octets[at]} in the properties is not printable ASCII; escape it"
    return MalformedError(reason, rule=rule, at=at - start)


def write(properties: dict[str, Value]) -> str:
    """The text of properties, every value with its type. Raises ``LocalProtocolError``."""
    written: list[str] = []
    for key, value in properties.items():
        if not is_key(key):
            raise LocalProtocolError(f"{shown(key)} can't be a property's key", rule="MICROMSG-52")
        written.append(f"{key}:{write_value(value)};")
    return "".join(written)


def is_key(text: str) -> bool:
    """Whether a text may be the key of a property."""
    end: i64 = len(text)
    at: i64 = 0
    while at < end:
        if not _is_key(i64(ord(text[at]))):
            return False
        at += 1
    return end > 0


def read_value(text: str, at: int = 0) -> Value | None:
    """A typed value, or None where the text has no valid type letter. Raises ``MalformedError`` for bad escapes."""
    letter = text[:1]
    if letter == "T":
        return decoded(text[1:], at + 1)
    if letter == "N":
        return _read_number(text[1:])
    if letter == "D":
        return _read_date(text[1:])
    return None


def write_value(value: Value) -> str:
    """The text of a typed value. Raises ``LocalProtocolError`` for what MicroMsg2 can't carry."""
    if isinstance(value, str):
        return "T" + encoded(value)
    if isinstance(value, bool):
        raise LocalProtocolError(f"{value} is neither number, date nor text", rule="MICROMSG-77")
    if isinstance(value, int):
        if not LEAST <= value <= MOST:
            raise LocalProtocolError(f"{value} is not a 64-bit integer", rule="MICROMSG-78")
        return f"N{value}"
    if isinstance(value, float):
        if not isfinite(value):
            raise LocalProtocolError(f"{value} is not a number that can be written", rule="MICROMSG-78")
        digits = format(Decimal(repr(value)), "f")
        return f"N{digits}" if "." in digits else f"N{digits}.0"
    if value.tzinfo is None:
        raise LocalProtocolError(f"the date {value} has no time zone", rule="MICROMSG-79")
    microseconds = (value - EPOCH) // MICROSECOND
    sign = "-" if microseconds < 0 else ""
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    return f"D{sign}{seconds}.{f'{fraction:06}'.rstrip('0') or '0'}"


def _read_number(text: str) -> int | float | None:
    """MICROMSG-78: a 64-bit integer, or with a decimal point a float."""
    if len(text) < 19 and _are_digits(text):
        return int(text)
    digits = text.removeprefix("-")
    point = digits.find(".")
    if point >= 0:
        if not (_are_digits(digits[:point]) and _are_digits(digits[point + 1 :])):
            return None
        number = float(text)
        return number if isfinite(number) else None
    if not _are_digits(digits) or len(digits.lstrip("0")) > 19:
        return None
    whole = int(digits.lstrip("0") or "0")
    if len(digits) != len(text):
        whole = -whole
    return whole if LEAST <= whole <= MOST else None


def _read_date(text: str) -> datetime | None:
    """MICROMSG-79: seconds since 1970 UTC, to the microsecond."""
    digits = text.removeprefix("-")
    whole, point, fraction = digits.partition(".")
    whole = whole.lstrip("0") or whole[:1]
    if not _are_digits(whole) or len(whole) > 12 or (point and not _are_digits(fraction)):
        return None
    microseconds = int(whole) * 1_000_000 + int(fraction[:6].ljust(6, "0"))
    try:
        return EPOCH + timedelta(microseconds=-microseconds if len(digits) != len(text) else microseconds)
    except OverflowError:
        return None


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
