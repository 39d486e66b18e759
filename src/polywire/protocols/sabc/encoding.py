"""Frames to octets: what sABC lets this side write, and messages in several frames.

``encode`` writes CR LF, session-id first, and the null portion on all but a frame with ``msg-more`` (SABC-79 to
SABC-81). What would be read as something else is refused with ``LocalProtocolError``.
"""

from typing import Final

from mypy_extensions import i64

from polywire.protocols.sabc.bodies import TERMINATOR, to_base64, unfit
from polywire.protocols.sabc.commands import Connect, Connected, Disconnect, Disconnecting, Error, Message
from polywire.protocols.sabc.errors import LocalProtocolError
from polywire.protocols.sabc.headers import (
    BASE64,
    CLIENT_ID,
    CLIENT_PASSCODE,
    CONTENT_ENCODING,
    ERROR_CODE,
    MAX_SESSION_ID,
    MSG_ID,
    PLACE_RULES,
    PLACES,
    REF_MSG_ID,
    RESERVED,
    SESSION_EXPIRY,
    SESSION_ID,
    Header,
    header,
    http_date,
    line_problem,
)
from polywire.wire.frame import Frame

EMPTY_LINE: Final = b"\r\n\r\n"


def encode(frame: Frame) -> bytes:
    """The octets of a frame: always valid UTF-8. Raises ``LocalProtocolError`` for what sABC does not allow.

    A message in a single frame whose body can't stand on the wire is sent as base64. One in several frames is made by
    ``split``, which does that for the message as a whole.
    """
    if isinstance(frame, Message):
        return _message(frame)
    if isinstance(frame, Error):
        return _error(frame)
    if isinstance(frame, Connect):
        if not frame.client_id:
            raise LocalProtocolError("CONNECT needs a client-id", rule="SABC-85")
        lines = ["CONNECT", "client-id::" + frame.client_id]
        pairs: list[Header] = [(CLIENT_ID, frame.client_id)]
        if frame.client_passcode is not None:
            pairs.append((CLIENT_PASSCODE, frame.client_passcode))
            lines.append("client-passcode::" + frame.client_passcode)
        return _head(lines, pairs, frame.headers) + b"\r\n\r\n\0"
    if isinstance(frame, Connected):
        lines = ["CONNECTED", _session_line(frame.session_id)]
        pairs = [(SESSION_ID, frame.session_id)]
        if frame.session_expiry is not None:
            date = http_date(frame.session_expiry)
            if date is None:
                raise LocalProtocolError(f"{frame.session_expiry} is no time in years 1 to 9999", rule="SABC-36")
            pairs.append((SESSION_EXPIRY, date))
            lines.append("session-expiry::" + date)
        return _head(lines, pairs, frame.headers) + b"\r\n\r\n\0"
    if isinstance(frame, Disconnect):
        lines = ["DISCONNECT", _session_line(frame.session_id)]
        return _head(lines, [(SESSION_ID, frame.session_id)], frame.headers) + b"\r\n\r\n\0"
    if isinstance(frame, Disconnecting):
        lines = ["DISCONNECTING", _session_line(frame.session_id)]
        return _head(lines, [(SESSION_ID, frame.session_id)], frame.headers) + b"\r\n\r\n\0"
    raise LocalProtocolError(f"{type(frame).__name__} is not an sABC frame", rule="SABC-15")


def split(message: Message, max_frame: int) -> list[Message]:
    """The message as frames of at most ``max_frame`` octets each (SABC-129). The first carries all headers."""
    if message.more:
        raise LocalProtocolError("only a whole message can be split, not one of its frames", rule="SABC-129")
    body = message.body
    headers = message.headers
    encoded = header(headers, CONTENT_ENCODING) is not None
    wrong = unfit(body, message.session_id)
    if wrong is not None and not encoded:
        body, headers, encoded = to_base64(body), (*headers, (CONTENT_ENCODING, BASE64)), True
    elif wrong is not None:
        raise LocalProtocolError(wrong[1], rule=wrong[0])
    whole = Message(message.session_id, message.msg_id, body, headers, message.ref_msg_id, message.send_only)
    if len(encode(whole)) <= max_frame:
        return [whole]
    cuts = _cuts(message, headers, body, max_frame)
    if cuts is None and not encoded:
        body, headers = to_base64(body), (*headers, (CONTENT_ENCODING, BASE64))
        cuts = _cuts(message, headers, body, max_frame)
    if cuts is None:
        raise LocalProtocolError("the body has no place where it can be cut", rule="SABC-129")
    frames = []
    for i in range(len(cuts) - 1):
        more = i < len(cuts) - 2
        piece = body[cuts[i] : cuts[i + 1]]
        frames.append(_piece(message, headers if i == 0 else (), piece, i == 0, more))
    return frames


def _piece(message: Message, headers: tuple[Header, ...], body: bytes, first: bool, more: bool) -> Message:
    send_only = first and message.send_only  # SABC-68, SABC-116: later frames need not repeat it
    return Message(message.session_id, message.msg_id, body, headers, message.ref_msg_id, send_only, more)


def _cuts(message: Message, headers: tuple[Header, ...], body: bytes, max_frame: i64) -> list[int] | None:
    """Where to cut the body, both its ends included, or None where some piece can't be cut rightly."""
    cuts = [0]
    at: i64 = 0
    end: i64 = len(body)
    room: i64 = max_frame - i64(len(encode(_piece(message, headers, b"", True, True)))) - i64(len(TERMINATOR))
    while end - at > room:
        if room < 1:
            raise LocalProtocolError(f"frames of {max_frame} octets have no room for a body", rule="SABC-129")
        cut = cut_before(body, at, at + room)
        if cut == at:
            return None
        cuts.append(cut)
        at = cut
        if len(cuts) == 2:
            room = max_frame - i64(len(encode(_piece(message, (), b"", False, True)))) - i64(len(TERMINATOR))
    cuts.append(end)
    return cuts


def cut_before(body: bytes, start: i64, stop: i64) -> i64:
    """The last place up to ``stop`` where the next frame's body may begin, or ``start`` where there is none."""
    while stop > start and not may_begin(body, stop):
        stop -= 1
    return stop


def may_begin(body: bytes, at: i64) -> bool:
    """Whether a frame's body may begin here: at the start of a character, and not with what ends a body."""
    octet: i64 = body[at]
    if octet & 0xC0 == 0x80 or octet == 0:
        return False
    return octet != 13 or body[at : at + 3] != b"\r\n\0"


def _message(frame: Message) -> bytes:
    session_id = frame.session_id
    msg_id = frame.msg_id
    ref_msg_id = frame.ref_msg_id
    lines = ["MESSAGE", _session_line(session_id)]
    pairs: list[Header] = [(SESSION_ID, session_id)]
    if msg_id:
        lines.append("msg-id::" + msg_id)
        pairs.append((MSG_ID, msg_id))
    if ref_msg_id:
        lines.append("ref-msg-id::" + ref_msg_id)
        pairs.append((REF_MSG_ID, ref_msg_id))
    if len(lines) == 2 or msg_id == "" or ref_msg_id == "":
        raise LocalProtocolError("a MESSAGE needs a msg-id or a ref-msg-id", rule="SABC-49")
    if frame.send_only:
        if ref_msg_id is not None:
            raise LocalProtocolError("a send-only message can't have a ref-msg-id", rule="SABC-53")
        lines.append("send-only::yes")
    if frame.more:
        lines.append("msg-more::yes")
    body = frame.body
    wrong = unfit(body, session_id)
    if wrong is not None:
        if frame.more or header(frame.headers, CONTENT_ENCODING) is not None:
            raise LocalProtocolError(wrong[1], rule=wrong[0])
        lines.append("content-encoding::base64")
        body = to_base64(body)
    start = _head(lines, pairs, frame.headers) + EMPTY_LINE
    if frame.more:
        return start + body
    return start + body + TERMINATOR if body else start + b"\0"


def _error(frame: Error) -> bytes:
    lines = ["ERROR"]
    pairs: list[Header] = []
    if frame.session_id is not None:
        lines.append(_session_line(frame.session_id))
        pairs.append((SESSION_ID, frame.session_id))
    if frame.error_code is not None:
        lines.append("error-code::" + frame.error_code)
        pairs.append((ERROR_CODE, frame.error_code))
    if frame.ref_msg_id is not None:
        lines.append("ref-msg-id::" + frame.ref_msg_id)
        pairs.append((REF_MSG_ID, frame.ref_msg_id))
    body = frame.body
    wrong = unfit(body, frame.session_id)
    encoding = header(frame.headers, CONTENT_ENCODING)
    if wrong is not None and encoding is not None:
        raise LocalProtocolError(wrong[1], rule=wrong[0])
    if wrong is not None:
        lines.append("content-encoding::base64")
        body = to_base64(body)
    if len(lines) == 1 and not frame.headers:
        raise LocalProtocolError("an ERROR needs at least one header", rule="SABC-14")
    start = _head(lines, pairs, frame.headers) + EMPTY_LINE
    return start + body + TERMINATOR if body else start + b"\0"


def _session_line(session_id: str) -> str:
    if not session_id:
        raise LocalProtocolError("the frame needs a session-id", rule="SABC-24")
    if len(session_id) > MAX_SESSION_ID or len(session_id.encode(errors="replace")) > MAX_SESSION_ID:
        raise LocalProtocolError(f"the session-id is longer than {MAX_SESSION_ID} octets", rule="SABC-122")
    return "session-id::" + session_id


def _head(lines: list[str], pairs: list[Header], headers: tuple[Header, ...]) -> bytes:
    """Command and headers, without the empty line. ``lines`` and ``pairs`` are what the frame's fields make."""
    command = lines[0]
    for key, value in headers:
        if key in RESERVED and (command != "ERROR" or key in {SESSION_ID, ERROR_CODE, REF_MSG_ID}):
            where = " and ".join(PLACES[key])
            reason = f"header {key!r} is reserved: it is a field of the frame, and stands on {where}"
            raise LocalProtocolError(reason, rule=PLACE_RULES[key] if command not in PLACES[key] else "SABC-30")
        if not key or ":" in key:
            _check(key, value)
        lines.append(key + "::" + value)
    text = "\r\n".join(lines)
    count: i64 = len(lines) - 1
    if text.count("::") != count or text.count("\n") != count or text.count("\r") != count or "\0" in text:
        _check_all(pairs, headers)
    try:
        return text.encode()
    except UnicodeEncodeError:
        _check_all(pairs, headers)
        raise


def _check_all(pairs: list[Header], headers: tuple[Header, ...]) -> None:
    for key, value in pairs:
        _check(key, value)
    for key, value in headers:
        _check(key, value)


def _check(key: str, value: str) -> None:
    wrong = line_problem(key, value)
    if wrong is not None:
        raise LocalProtocolError(wrong[1], rule=wrong[0])
