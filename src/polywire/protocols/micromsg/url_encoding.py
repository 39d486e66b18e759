"""URL encoding of values, strict both ways: percent escapes of UTF-8.

A ``+`` is a plus sign: the examples of MicroMsg2 write a space as ``%20``.
"""

from typing import Final
from urllib.parse import quote

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError

RULE: Final = "MICROMSG-162"
PERCENT: Final = 37


def encoded(text: str) -> str:
    """The text with everything but letters, digits and ``-._~`` escaped."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{shown(text)} can't be written as UTF-8", rule=RULE) from error


def decoded(text: str, at: int = 0) -> str:
    """The text without its escapes. ``at`` is where it stands, for the ``MalformedError`` it raises."""
    if "%" not in text:
        return text
    octets = text.encode("utf-8", "surrogatepass")
    end: i64 = len(octets)
    out = BytesWriter()
    pos: i64 = 0
    while pos < end:
        octet: i64 = octets[pos]
        if octet == PERCENT:
            high: i64 = hexadecimal(octets, pos + 1)
            low: i64 = hexadecimal(octets, pos + 2)
            if high < 0 or low < 0:
                raise MalformedError("a % is not followed by two hexadecimal digits", rule=RULE, at=at + pos)
            octet = high * 16 + low
            pos += 2
        out.append(octet)
        pos += 1
    try:
        return out.getvalue().decode()
    except UnicodeDecodeError:
        raise MalformedError("the escapes are not UTF-8", rule=RULE, at=at) from None


def hexadecimal(octets: bytes, at: i64) -> i64:
    """The value of the hexadecimal digit at a place, -1 where there is none."""
    if at >= i64(len(octets)):
        return -1
    octet: i64 = octets[at]
    if 48 <= octet <= 57:
        return octet - 48
    letter: i64 = octet | 32
    if 97 <= letter <= 102:
        return letter - 87
    return -1


def shown(text: str) -> str:
    """A text from the peer as it may stand in a message: quoted, and cut where it is long."""
    return ascii(text) if len(text) <= 40 else f"{text[:40]!a}… ({len(text)} characters)"
