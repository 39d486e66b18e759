"""sABC's headers: their grammar, the reserved ones and where each may stand, and the values with a form of their own.

A header is one line ``key::value`` (SABC-08). The nine reserved headers mean what the specification says and may stand
only on the commands of ``PLACES``; all others belong to the application.
"""

from calendar import timegm
from datetime import UTC, datetime
from typing import Final

Header = tuple[str, str]

CONNECT: Final = "CONNECT"
CONNECTED: Final = "CONNECTED"
DISCONNECT: Final = "DISCONNECT"
DISCONNECTING: Final = "DISCONNECTING"
MESSAGE: Final = "MESSAGE"
ERROR: Final = "ERROR"

COMMANDS: Final = (CONNECT, CONNECTED, DISCONNECT, DISCONNECTING, MESSAGE, ERROR)  # SABC-15
BODYLESS: Final = (CONNECT, CONNECTED, DISCONNECT, DISCONNECTING)  # SABC-76

CLIENT_ID: Final = "client-id"
CLIENT_PASSCODE: Final = "client-passcode"
SESSION_ID: Final = "session-id"
SESSION_EXPIRY: Final = "session-expiry"
MSG_ID: Final = "msg-id"
REF_MSG_ID: Final = "ref-msg-id"
SEND_ONLY: Final = "send-only"
MSG_MORE: Final = "msg-more"
ERROR_CODE: Final = "error-code"

PLACES: Final[dict[str, tuple[str, ...]]] = {  # SABC-22 to SABC-29; on ERROR there are no rules (SABC-66)
    CLIENT_ID: (CONNECT, ERROR),
    CLIENT_PASSCODE: (CONNECT, ERROR),
    SESSION_ID: (CONNECTED, DISCONNECT, DISCONNECTING, MESSAGE, ERROR),
    SESSION_EXPIRY: (CONNECTED, ERROR),
    MSG_ID: (MESSAGE, ERROR),
    REF_MSG_ID: (MESSAGE, ERROR),
    SEND_ONLY: (MESSAGE, ERROR),
    MSG_MORE: (MESSAGE, ERROR),
    ERROR_CODE: (ERROR,),
}

PLACE_RULES: Final[dict[str, str]] = {
    CLIENT_ID: "SABC-22",
    CLIENT_PASSCODE: "SABC-23",
    SESSION_ID: "SABC-24",
    SESSION_EXPIRY: "SABC-25",
    MSG_ID: "SABC-26",
    REF_MSG_ID: "SABC-26",
    SEND_ONLY: "SABC-27",
    MSG_MORE: "SABC-28",
    ERROR_CODE: "SABC-29",
}

RESERVED: Final = frozenset(PLACES)  # SABC-30

MESSAGE_ID: Final = "message-id"
"""What the document calls the msg-id of an ERROR in header rule 10. It is not reserved."""

CONTENT_ENCODING: Final = "content-encoding"
BASE64: Final = "base64"
TRUNCATED: Final = "truncated"
YES: Final = "yes"

MAX_SESSION_ID: Final = 255
"""SABC-122: octets of a session id; every body is searched for it."""

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def header(headers: tuple[Header, ...], key: str) -> str | None:
    """The value of the first header with this key."""
    for name, value in headers:
        if name == key:
            return value
    return None


def without(headers: tuple[Header, ...], key: str) -> tuple[Header, ...]:
    """The headers but those with this key."""
    return tuple([pair for pair in headers if pair[0] != key])


def is_yes(value: str | None) -> bool:
    """SABC-52, SABC-59: only ``yes`` is yes; all other values, and none at all, are no."""
    return value == YES


def line_problem(key: str, value: str) -> tuple[str, str] | None:
    """Why a header can't be written, as (rule, reason), or None where it can."""
    if not key:
        return ("SABC-87", "a header has an empty key")
    if "::" in value:
        return ("SABC-71", f"the value of header {key!r} contains '::', which parts key and value")
    if "::" in key or key.endswith(":"):
        return ("SABC-87", f"the header key {key!r} contains '::' or ends in ':', so its value could not be told apart")
    for text in (key, value):
        if "\r" in text or "\n" in text or "\0" in text:
            return ("SABC-89", f"header {key!r} contains CR, LF or NUL")
    try:
        key.encode()
        value.encode()
    except UnicodeEncodeError:
        return ("SABC-70", f"header {key!r} can't be written as UTF-8")
    return None


def parse_http_date(text: str) -> int | None:
    """SABC-36: the seconds since 1970 of ``Tue, 01 Jun 2017 21:47:38 GMT``, or None where it is not such a date.

    The name of the day is not compared with the date: the specification's own example has the wrong one.
    """
    if len(text) != 29 or not text.isascii() or text[:3] not in DAYS or text[8:11] not in MONTHS:
        return None
    if text[3:5] != ", " or text[7] + text[11] + text[16] != "   " or text[19] + text[22] != "::":
        return None
    if text[25:] != " GMT":
        return None
    digits = text[5:7] + text[12:16] + text[17:19] + text[20:22] + text[23:25]
    if not digits.isdigit():
        return None
    day, year, hour = int(digits[:2]), int(digits[2:6]), int(digits[6:8])
    minute, second = int(digits[8:10]), int(digits[10:12])
    if hour > 23 or minute > 59 or second > 60 or year < 1:
        return None
    month = MONTHS.index(text[8:11]) + 1
    try:
        datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return None
    return timegm((year, month, day, hour, minute, second))


def http_date(seconds: int) -> str | None:
    """SABC-36: the seconds since 1970 as an HTTP date in GMT, or None where they lie outside years 1 to 9999."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    day, month = DAYS[moment.weekday()], MONTHS[moment.month - 1]
    return f"{day}, {moment.day:02} {month} {moment.year:04} {moment:%H:%M:%S} GMT"
