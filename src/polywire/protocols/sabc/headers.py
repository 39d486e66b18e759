"""The head of a frame: its command and headers, the grammar of a header line, and the values with a form of their own.

A header is one line ``key::value`` (SABC-08). The nine reserved headers mean what the specification says and are
allowed only on the commands listed in ``PLACES``; all others belong to the application. Some of those have a meaning on
a hub: ``op``, ``destination`` and the others below. ``parse_head`` raises ``Refused`` for a head that breaks the
grammar or the table of headers; whether the frame fits the session is checked elsewhere.
"""

from calendar import timegm
from datetime import UTC, datetime
from math import isfinite
from typing import Final, final

from mypy_extensions import i64

from polywire.protocols.sabc.errors import LIMIT, MALFORMED, UNAUTHORIZED, Refused

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

OP: Final = "op"
DESTINATION: Final = "destination"
SERVICE: Final = "service"
METHOD: Final = "method"
SUBSCRIPTION: Final = "subscription"
CONTENT_TYPE: Final = "content-type"
SENT_MSG_ID: Final = "sent-msg-id"
"""On an ERROR of the hub: the id of the hub's own message it is about."""

ERROR_TAG: Final = "error-tag"
RETRY_AFTER: Final = "retry-after"
ERROR_SOURCE: Final = "error-source"
BY_SERVICE: Final = "service"
"""SABC-138, SABC-139: headers on the ERROR of a failed call; the last is the source of one that a service sent."""

NACK: Final = "nack"
"""SABC-141: the ``op`` of an answer that rejects a queue's message."""
DELAY: Final = "delay"
"""On such an answer: how many seconds to wait, at least, before the message is delivered again."""

MAX_SESSION_ID: Final = 255
"""SABC-122: bytes of a session id; every body is searched for it."""

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def header(headers: tuple[Header, ...], key: str) -> str | None:
    """The value of the first header with this key."""
    for name, value in headers:
        if name == key:
            return value
    return None


def without(headers: tuple[Header, ...], key: str) -> tuple[Header, ...]:
    """The headers except those with this key."""
    return tuple([pair for pair in headers if pair[0] != key])


def is_yes(value: str | None) -> bool:
    """SABC-52, SABC-59: only ``yes`` means yes; any other value, or none, means no."""
    return value == YES


def line_problem(key: str, value: str) -> tuple[str, str] | None:
    """Why a header can't be written, as (rule, reason), or None if it can."""
    if not key:
        return ("SABC-87", "a header has an empty key")
    if "::" in value:
        return ("SABC-71", f"the value of header {key!r} contains '::', which separates key and value")
    if "::" in key or key.endswith(":"):
        return ("SABC-87", f"the header key {key!r} contains '::' or ends in ':', so its value can't be recognized")
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
    """SABC-36: the seconds since 1970 of ``Tue, 01 Jun 2017 21:47:38 GMT``, or None if it is not such a date.

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
    """SABC-36: the seconds since 1970 as an HTTP date in GMT, or None outside years 1 to 9999."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    day, month = DAYS[moment.weekday()], MONTHS[moment.month - 1]
    return f"{day}, {moment.day:02} {month} {moment.year:04} {moment:%H:%M:%S} GMT"


def error_headers(tag: str, retry_after: int, *, by_service: bool = False) -> tuple[Header, ...]:
    """SABC-138: the headers of a failed call's ERROR besides its code. A tag that no header can hold is left out."""
    headers: list[Header] = []
    if tag and line_problem(ERROR_TAG, tag) is None:
        headers.append((ERROR_TAG, tag))
    if retry_after > 0:
        headers.append((RETRY_AFTER, str(retry_after)))
    if by_service:
        headers.append((ERROR_SOURCE, BY_SERVICE))
    return tuple(headers)


def read_retry_after(headers: tuple[Header, ...]) -> int:
    """The ``retry-after`` of an ERROR in milliseconds, 0 if it is missing or can't be read."""
    text = header(headers, RETRY_AFTER) or ""
    return int(text) if len(text) <= 10 and text.isascii() and text.isdigit() else 0


def read_delay(headers: tuple[Header, ...]) -> float | None:
    """The delay of a rejection in seconds, 0 if there is none; None if it is not a number of seconds."""
    text = header(headers, DELAY)
    if text is None:
        return 0.0
    try:
        delay = float(text)
    except ValueError:
        return None
    return delay if isfinite(delay) and delay >= 0 else None


SHOWN: Final = 40

# Each reserved header is a bit; a command's mask has the bits of those that are allowed on it.
KINDS: Final[dict[str, int]] = {command: number for number, command in enumerate(COMMANDS)}
BITS: Final[dict[str, int]] = {key: 1 << number for number, key in enumerate(PLACES)}
MASKS: Final[list[int]] = [
    sum(BITS[key] for key, places in PLACES.items() if command in places) for command in COMMANDS
]

KIND_CONNECT: Final = 0
KIND_CONNECTED: Final = 1
KIND_DISCONNECT: Final = 2
KIND_DISCONNECTING: Final = 3
KIND_MESSAGE: Final = 4
KIND_ERROR: Final = 5

BIT_CLIENT_ID: Final = 1
BIT_CLIENT_PASSCODE: Final = 2
BIT_SESSION_ID: Final = 4
BIT_SESSION_EXPIRY: Final = 8
BIT_MSG_ID: Final = 16
BIT_REF_MSG_ID: Final = 32
BIT_SEND_ONLY: Final = 64
BIT_MSG_MORE: Final = 128
BIT_ERROR_CODE: Final = 256


@final
class Head:
    """A frame's command and headers, the reserved ones as fields. ``kind`` is the command's index in ``COMMANDS``."""

    def __init__(self, kind: i64) -> None:
        self.kind: i64 = kind
        self.session_id: str | None = None
        self.msg_id: str | None = None
        self.ref_msg_id: str | None = None
        self.send_only = False
        self.more = False
        self.client_id: str | None = None
        self.client_passcode: str | None = None
        self.error_code: str | None = None
        self.expiry: int | None = None
        self.headers: tuple[Header, ...] = ()

    def key(self) -> str:
        """What the frames of one message have in common: a msg-id or a ref-msg-id, which never mix (SABC-69)."""
        if self.msg_id is not None:
            return "m" + self.msg_id
        return "r" + (self.ref_msg_id or "")


def shown(text: str) -> str:
    """A peer's text as an error quotes it: shortened."""
    return repr(text) if len(text) <= SHOWN else repr(text[:SHOWN]) + "…"


def parse_head(raw: bytes, max_headers: i64) -> Head:
    """Parse the head ``raw``, which ends before the empty line."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\r\n", 0, error.start)
        raise Refused(MALFORMED, "SABC-70", f"line {line + 1} of the frame is not UTF-8", line) from None
    lines = text.split("\r\n")
    count: i64 = len(lines) - 1
    kind = KINDS.get(lines[0])
    if kind is None:
        raise Refused(
            MALFORMED, "SABC-88", f"{shown(lines[0])} is not a command; the commands are {', '.join(COMMANDS)}"
        )
    if count == 0:
        raise Refused(MALFORMED, "SABC-86", f"the {lines[0]} frame has no header")
    if count > max_headers:
        raise Refused(LIMIT, "SABC-120", f"the frame has {count} headers, more than the {max_headers} allowed")
    head = Head(kind)
    others: list[Header] = []
    seen: i64 = 0
    number: i64 = 1
    # Counting over the whole head finds what checking each line would: a second "::", a stray CR, LF or NUL.
    suspect = text.count("::") != count or text.count("\n") != count or text.count("\r") != count or "\0" in text
    while number <= count:
        line_text = lines[number]
        at: i64 = line_text.find("::")
        if at <= 0 or suspect:
            _check_line(line_text, number)
        key = line_text[:at]
        value = line_text[at + 2 :]
        bit = BITS.get(key)
        if bit is None:
            others.append((key, value))
        else:
            if seen & bit:
                raise Refused(MALFORMED, "SABC-121", f"header {key!r} appears twice", number)
            seen |= bit
            _reserved(head, bit, key, value, others, number)
        number += 1
    misplaced = seen & ~i64(MASKS[kind])
    if misplaced:
        _misplaced(lines, misplaced)
    head.headers = tuple(others)
    _check_mandatory(head, seen)
    return head


def _reserved(head: Head, bit: i64, key: str, value: str, others: list[Header], number: i64) -> None:
    """Store a reserved header in its field."""
    if bit == BIT_SESSION_ID:
        head.session_id = value
    elif bit == BIT_REF_MSG_ID:
        head.ref_msg_id = value
    elif head.kind == KIND_ERROR:
        if bit == BIT_ERROR_CODE:
            head.error_code = value
        else:
            others.append((key, value))
    elif bit == BIT_MSG_ID:
        head.msg_id = value
    elif bit == BIT_SEND_ONLY:
        head.send_only = value == "yes"
    elif bit == BIT_MSG_MORE:
        head.more = value == "yes"
    elif bit == BIT_CLIENT_ID:
        head.client_id = value
    elif bit == BIT_CLIENT_PASSCODE:
        head.client_passcode = value
    elif bit == BIT_SESSION_EXPIRY:
        head.expiry = parse_http_date(value)
        if head.expiry is None and head.kind == KIND_CONNECTED:
            reason = f"session-expiry {shown(value)} is not a date such as 'Thu, 01 Jun 2017 21:47:38 GMT'"
            raise Refused(MALFORMED, "SABC-109", reason, number)


def _check_mandatory(head: Head, seen: i64) -> None:
    """Raise if a header is missing that the command requires."""
    if head.kind == KIND_CONNECT:
        if not head.client_id:
            raise Refused(MALFORMED, "SABC-85", "the CONNECT frame has no client-id")
        return
    session_id = head.session_id
    if not session_id:
        if head.kind != KIND_ERROR or session_id is not None:
            raise Refused(UNAUTHORIZED, "SABC-90", f"the {COMMANDS[head.kind]} frame has no session-id")
    elif len(session_id) > MAX_SESSION_ID or len(session_id.encode()) > MAX_SESSION_ID:
        raise Refused(LIMIT, "SABC-122", f"the session-id is longer than {MAX_SESSION_ID} bytes")
    if head.kind == KIND_MESSAGE:
        if seen & (BIT_MSG_ID | BIT_REF_MSG_ID) == 0 or head.msg_id == "" or head.ref_msg_id == "":
            raise Refused(MALFORMED, "SABC-49", "the MESSAGE frame has no msg-id and no ref-msg-id")
        if head.send_only and head.ref_msg_id is not None:
            raise Refused(MALFORMED, "SABC-53", "a send-only message can't have a ref-msg-id")


def _check_line(line: str, number: i64) -> None:
    """Raise if a header line is malformed."""
    key, separator, value = line.partition("::")
    if not separator:
        raise Refused(MALFORMED, "SABC-87", f"header {shown(line)} has no '::' between key and value", number)
    wrong = line_problem(key, value)
    if wrong is not None:
        rule, _ = wrong
        reasons = {
            "SABC-87": f"header {shown(line)} has no key",
            "SABC-71": f"header {shown(line)} has '::' in its value",
            "SABC-89": f"header {shown(line)} contains CR, LF or NUL",
        }
        raise Refused(MALFORMED, rule, reasons[rule], number)


def _misplaced(lines: list[str], misplaced: i64) -> None:
    """Raise for the first reserved header that is not allowed on this command."""
    for number in range(1, len(lines)):
        key = lines[number].partition("::")[0]
        if misplaced & i64(BITS.get(key, 0)):
            where = " and ".join(PLACES[key])
            reason = f"header {key!r} is not allowed on {lines[0]}, only on {where}"
            raise Refused(MALFORMED, PLACE_RULES[key], reason, number)


def line_offset(raw: bytes, line: int) -> int:
    """Where in a head its line of this number begins."""
    at: i64 = 0
    for _ in range(line):
        at = raw.find(b"\r\n", at) + 2
    return at


def readable_msg_id(raw: bytes) -> str | None:
    """The msg-id of a head that may be malformed, if it can be read."""
    at: i64 = raw.find(b"\r\nmsg-id::")
    if at < 0:
        return None
    stop: i64 = raw.find(b"\r\n", at + 10)
    if stop < 0:
        return None
    try:
        text = raw[at + 10 : stop].decode()
    except UnicodeDecodeError:
        return None
    return text if text and line_problem(MSG_ID, text) is None else None
