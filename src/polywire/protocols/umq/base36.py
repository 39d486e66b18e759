"""UMQ's numbers: base 36 with upper-case digits, unsigned, 64 bits (UMQ-08, UMQ-84).

Twelve digits always fit a native integer, so only longer numbers take the slow way.
"""

from typing import Final

from librt.strings import StringWriter
from mypy_extensions import i32, i64

from polywire.protocols.umq.errors import LocalProtocolError

MAX_NUMBER: Final = 0xFFFF_FFFF_FFFF_FFFF  # UMQ-84
SAFE_DIGITS: Final = 12
SPLIT: Final = 36**6
SHORT: Final = 36**11  # what mypyc compares without making an object


def digit(char: i32) -> i64:
    """The value of a digit, or -1 for another character, as a lower-case letter is (UMQ-76)."""
    if 48 <= char <= 57:
        return i64(char) - 48
    if 65 <= char <= 90:
        return i64(char) - 55
    return -1


def read(text: str, start: i64, end: i64) -> int:
    """The number in ``text[start:end]``, which holds digits only (none at all: 0, UMQ-77), or -1 where too large."""
    while start < end and ord(text[start]) == 48:
        start += 1
    if end - start > SAFE_DIGITS + 1:
        return -1
    value: i64 = 0
    last = end if end - start <= SAFE_DIGITS else start + SAFE_DIGITS
    pos = start
    while pos < last:
        value = value * 36 + digit(ord(text[pos]))
        pos += 1
    if pos == end:
        return value
    large = int(value) * 36 + int(digit(ord(text[pos])))
    return large if large <= MAX_NUMBER else -1


def parse(text: str) -> int | None:
    """The number in a text, or None where it is none."""
    pos: i64 = 0
    while pos < len(text):
        if digit(ord(text[pos])) < 0:
            return None
        pos += 1
    number = read(text, 0, pos)
    return number if number >= 0 else None


def write(number: int) -> str:
    """The shortest text of a number; 0 is ``0``."""
    out = StringWriter()
    if 0 <= number < SHORT:
        append_number(out, number)
    elif 0 < number <= MAX_NUMBER:
        append_number(out, number // SPLIT)
        append_digits(out, number % SPLIT, SPLIT // 36)
    else:
        raise LocalProtocolError(f"{number} is not a number from 0 to {MAX_NUMBER}", rule="UMQ-84")
    return out.getvalue()


def append_number(out: StringWriter, value: i64) -> None:
    """Write a number without leading zeros."""
    power: i64 = 1
    while value // power >= 36:
        power *= 36
    append_digits(out, value, power)


def append_digits(out: StringWriter, value: i64, power: i64) -> None:
    """Write the digits of ``value`` from the one of weight ``power`` down."""
    while power > 0:
        top: i64 = value // power
        out.append(48 + top if top < 10 else 55 + top)
        value -= top * power
        power //= 36
