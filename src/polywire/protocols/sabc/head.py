"""The head of a frame, from its command to its empty line, taken apart.

``parse_head`` raises ``Refused`` for what breaks the grammar or the table of headers. Whether the frame fits the
session is for others to say.
"""

from typing import Final, final

from mypy_extensions import i64

from polywire.protocols.sabc.commands import Connect, Connected, Disconnect, Disconnecting, Message
from polywire.protocols.sabc.errors import LIMIT, MALFORMED, UNAUTHORIZED, Refused
from polywire.protocols.sabc.headers import (
    COMMANDS,
    MAX_SESSION_ID,
    MSG_ID,
    PLACE_RULES,
    PLACES,
    REF_MSG_ID,
    RESERVED,
    SEND_ONLY,
    YES,
    Header,
    line_problem,
    parse_http_date,
)
from polywire.wire.frame import Frame

SHOWN: Final = 40

# Each reserved header is a bit; a command's mask has the bits of those that may stand on it.
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
    """A frame's command and headers, the reserved ones apart. ``kind`` is the place of the command in ``COMMANDS``."""

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
        """What joins the frames of one message: its msg-id, or its ref-msg-id, which is another name (SABC-69)."""
        if self.msg_id is not None:
            return "m" + self.msg_id
        return "r" + (self.ref_msg_id or "")

    def message(self, body: bytes, more: bool) -> Message:
        """The MESSAGE frame with this head."""
        return Message(self.session_id or "", self.msg_id, body, self.headers, self.ref_msg_id, self.send_only, more)

    def bodyless(self) -> Frame:
        """The frame with this head, of a command that has no body."""
        if self.kind == KIND_CONNECT:
            return Connect(self.client_id or "", self.client_passcode, self.headers)
        if self.kind == KIND_CONNECTED:
            return Connected(self.session_id or "", self.expiry, self.headers)
        if self.kind == KIND_DISCONNECT:
            return Disconnect(self.session_id or "", self.headers)
        return Disconnecting(self.session_id or "", self.headers)


def shown(text: str) -> str:
    """A peer's text as an error quotes it: not all of it."""
    return repr(text) if len(text) <= SHOWN else repr(text[:SHOWN]) + "…"


def parse_head(raw: bytes, max_headers: i64) -> Head:
    """The head whose octets, without the empty line, are ``raw``."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\r\n", 0, error.start)
        raise Refused(MALFORMED, "SABC-70", f"line {line + 1} of the frame is not UTF-8", line) from None
    lines = text.split("\r\n")
    count: i64 = len(lines) - 1
    kind = KINDS.get(lines[0])
    if kind is None:
        raise Refused(MALFORMED, "SABC-88", f"{shown(lines[0])} is no command; there are {', '.join(COMMANDS)}")
    if count == 0:
        raise Refused(MALFORMED, "SABC-86", f"the {lines[0]} frame has no header")
    if count > max_headers:
        raise Refused(LIMIT, "SABC-120", f"the frame has {count} headers, more than the {max_headers} allowed")
    head = Head(kind)
    others: list[Header] = []
    seen: i64 = 0
    number: i64 = 1
    # One count over the whole head finds what a look at each line would: a second "::", a stray CR, LF or NUL.
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
                raise Refused(MALFORMED, "SABC-121", f"header {key!r} stands twice", number)
            seen |= bit
            _reserved(head, bit, key, value, others, number)
        number += 1
    misplaced = seen & ~i64(MASKS[kind])
    if misplaced:
        _misplaced(lines, misplaced)
    head.headers = tuple(others)
    _check_mandatory(head, seen)
    return head


def plain_message(session_id: str, raw: bytes, body: bytes, max_headers: i64) -> Message | None:
    """The whole message with these header lines behind its session-id, or None where ``parse_head`` must look at them.

    This is the short way for what is sent most: nothing is refused here, and nothing taken that would be refused there.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    msg_id: str | None = None
    ref_msg_id: str | None = None
    send_only: str | None = None
    others: list[Header] = []
    end: i64 = len(text)
    start: i64 = 0
    number: i64 = 1  # the session-id is the first
    at: i64 = text.find("::")
    while start < end:
        stop: i64 = text.find("\r", start)
        feed: i64 = text.find("\n", start)
        if stop < 0 and feed < 0:
            stop = end
        elif feed != stop + 1 or feed + 1 == end:
            return None
        following: i64 = text.find("::", at + 2)
        number += 1
        if at <= start or at >= stop or 0 <= following < stop or number > max_headers:
            return None
        key = text[start:at]
        value = text[at + 2 : stop]
        if key not in RESERVED:
            others.append((key, value))
        elif key == MSG_ID and msg_id is None and value:
            msg_id = value
        elif key == REF_MSG_ID and ref_msg_id is None and value:
            ref_msg_id = value
        elif key == SEND_ONLY and send_only is None:
            send_only = value
        else:
            return None
        start = stop + 2
        at = following
    if (msg_id is None and ref_msg_id is None) or (ref_msg_id is not None and send_only is not None):
        return None
    return Message(session_id, msg_id, body, tuple(others), ref_msg_id, send_only == YES, False)


def _reserved(head: Head, bit: i64, key: str, value: str, others: list[Header], number: i64) -> None:
    """Put a reserved header where it belongs."""
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
    """Raise where a header is missing that the command demands."""
    if head.kind == KIND_CONNECT:
        if not head.client_id:
            raise Refused(MALFORMED, "SABC-85", "the CONNECT frame has no client-id")
        return
    session_id = head.session_id
    if not session_id:
        if head.kind != KIND_ERROR or session_id is not None:
            raise Refused(UNAUTHORIZED, "SABC-90", f"the {COMMANDS[head.kind]} frame has no session-id")
    elif len(session_id) > MAX_SESSION_ID or len(session_id.encode()) > MAX_SESSION_ID:
        raise Refused(LIMIT, "SABC-122", f"the session-id is longer than {MAX_SESSION_ID} octets")
    if head.kind == KIND_MESSAGE:
        if seen & (BIT_MSG_ID | BIT_REF_MSG_ID) == 0 or head.msg_id == "" or head.ref_msg_id == "":
            raise Refused(MALFORMED, "SABC-49", "the MESSAGE frame has no msg-id and no ref-msg-id")
        if head.send_only and head.ref_msg_id is not None:
            raise Refused(MALFORMED, "SABC-53", "a send-only message can't have a ref-msg-id")


def _check_line(line: str, number: i64) -> None:
    """Raise where a header line is malformed."""
    key, parted, value = line.partition("::")
    if not parted:
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
    """Raise for the first reserved header that may not stand on this command."""
    for number in range(1, len(lines)):
        key = lines[number].partition("::")[0]
        if misplaced & i64(BITS.get(key, 0)):
            where = " and ".join(PLACES[key])
            reason = f"header {key!r} can't stand on {lines[0]}, only on {where}"
            raise Refused(MALFORMED, PLACE_RULES[key], reason, number)


def line_offset(raw: bytes, line: int) -> int:
    """How many octets of a head stand before its line of this number."""
    at: i64 = 0
    for _ in range(line):
        at = raw.find(b"\r\n", at) + 2
    return at


def readable_msg_id(raw: bytes) -> str | None:
    """The msg-id of a head that may be malformed, where it can be read."""
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
