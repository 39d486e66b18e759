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
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1
MICROSECOND: Final = timedelta(microseconds=1)


def problem(octets: bytes, start: i64, end: i64) -> MalformedError | None:
    """Why the properties at ``octets[start:end]`` are invalid, or None where they are fine."""
    pos = start
    high = False
    while pos < end:
        key = pos
        while pos < end and _is_key(octets[pos]):
            pos += 1
        if pos == key or pos == end or octets[pos] != 58:  # noqa: PLR1714, SIM109 - native comparisons; 58 is a colon
            return _key_problem(octets, key, pos, start, end)
        pos += 1
        while pos < end:
            octet: i64 = octets[pos]
            if octet == 59:  # a semicolon
                break
            if octet == 37:  # a percent sign
                if pos + 3 > end or hexadecimal(octets, pos + 1) < 0 or hexadecimal(octets, pos + 2) < 0:
                    reason = "a % in the properties is not followed by two hexadecimal digits"
                    return MalformedError(reason, rule=ESCAPE_RULE, at=pos - start)
                high = high or hexadecimal(octets, pos + 1) >= 8
                pos += 2
            elif octet < 32 or octet > 126:
                reason = f"octet {octet} in the properties is not printable ASCII; escape it"
                return MalformedError(reason, rule=RULE, at=pos - start)
            pos += 1
        pos += 1
    if high:
        try:
            read(octets[start:end].decode("ascii"))
        except MalformedError as error:
            return error
    return None


def _is_key(octet: i64) -> bool:
    """Whether an octet may stand in a key: those of a FIELD, and ``_`` (MICROMSG-143)."""
    return 97 <= octet <= 122 or 48 <= octet <= 57 or octet == 45 or octet == 95  # noqa: PLR1714 - native


def _key_problem(octets: bytes, key: i64, pos: i64, start: i64, end: i64) -> MalformedError:
    if pos == end:
        reason = "the last property has no colon"
    elif pos == key:
        reason = f"a property begins with octet {octets[pos]}, not with a key"
    else:
        reason = f"octet {octets[pos]} can't stand in a property's key"
    return MalformedError(reason, rule=RULE, at=pos - start)


def read(text: str) -> dict[str, Value]:
    """The properties by key; of a key that stands twice the last one. Raises ``MalformedError``."""
    found: dict[str, Value] = {}
    at = 0
    for piece in text.split(";"):
        if piece or at < len(text):
            colon = piece.find(":")
            if colon < 0 or not is_key(piece[:colon]):
                raise MalformedError(f"{shown(piece)} is not a property, key:value", rule=RULE, at=at)
            value = piece[colon + 1 :]
            typed = read_value(value, at + colon + 1)
            found[piece[:colon]] = decoded(value, at + colon + 1) if typed is None else typed
        at += len(piece) + 1
    return found


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
    for character in text:
        if not ("a" <= character <= "z" or "0" <= character <= "9" or character in "-_"):
            return False
    return bool(text)


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
