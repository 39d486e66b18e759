"""sABC's frames as values, and values to bytes: the six commands, messages in several frames, and the hub's operations.

``encode`` writes CR LF, session-id first, and the null portion on all but a frame with ``msg-more`` (SABC-79 to
SABC-81); what a peer would read as something else is refused with ``LocalProtocolError``. ``split`` cuts a long message
into frames and ``Assembly`` joins them again. ``operation`` reads what a whole message asks of a hub. Bytes are read by
``decoder``.

Reserved headers are fields of a frame; its ``headers`` are the application's (key, value) pairs, in their order on the
wire.
"""

from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import ClassVar, Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from polywire.protocols.sabc.errors import MALFORMED, LocalProtocolError
from polywire.protocols.sabc.headers import (
    BASE64,
    CLIENT_ID,
    CLIENT_PASSCODE,
    CONTENT_ENCODING,
    DESTINATION,
    ERROR_CODE,
    MAX_SESSION_ID,
    MESSAGE_ID,
    METHOD,
    MSG_ID,
    OP,
    PLACE_RULES,
    PLACES,
    REF_MSG_ID,
    RESERVED,
    SERVICE,
    SESSION_EXPIRY,
    SESSION_ID,
    TRUNCATED,
    YES,
    Header,
    header,
    http_date,
    is_yes,
    line_problem,
    without,
)
from polywire.wire.frame import RAW_KEPT, Discarded, Frame

TERMINATOR: Final = b"\r\n\r\n\0"
"""SABC-10: the null portion."""

EMPTY_LINE: Final = b"\r\n\r\n"  # SABC-09
NUL: Final = 0
CR: Final = 13

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"
CALL: Final = "call"
SERVE: Final = "serve"
UNSERVE: Final = "unserve"

NEEDS: Final[dict[str, tuple[str, ...]]] = {  # SABC-112, SABC-113
    PUBLISH: (DESTINATION,),
    SUBSCRIBE: (DESTINATION,),
    UNSUBSCRIBE: (DESTINATION,),  # SABC-117
    CALL: (SERVICE, METHOD),
    SERVE: (SERVICE,),
    UNSERVE: (SERVICE,),
}


@final
@mypyc_attr(acyclic=True)
class Connect(Frame):
    """A client asks for a session."""

    __match_args__: ClassVar[tuple[str, ...]] = ("client_id", "client_passcode", "headers")

    def __init__(self, client_id: str, client_passcode: str | None = None, headers: tuple[Header, ...] = ()) -> None:
        self.client_id: Final = client_id
        self.client_passcode: Final = client_passcode
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Connected(Frame):
    """The server opens the session. ``session_expiry``: seconds since 1970 up to which it is valid."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_id", "session_expiry", "headers")

    def __init__(self, session_id: str, session_expiry: int | None = None, headers: tuple[Header, ...] = ()) -> None:
        self.session_id: Final = session_id
        self.session_expiry: Final = session_expiry
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Disconnect(Frame):
    """A client asks the server to end the session once its messages are handled."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_id", "headers")

    def __init__(self, session_id: str, headers: tuple[Header, ...] = ()) -> None:
        self.session_id: Final = session_id
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Disconnecting(Frame):
    """Either side ends the session at once."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_id", "headers")

    def __init__(self, session_id: str, headers: tuple[Header, ...] = ()) -> None:
        self.session_id: Final = session_id
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Message(Frame):
    """One frame of a message. With ``more`` others follow; without, it has the null portion and ends the message.

    ``body`` is as it is on the wire: ``Assembly`` decodes base64 once the message is whole.
    """

    __match_args__: ClassVar[tuple[str, ...]] = (
        "session_id",
        "msg_id",
        "body",
        "headers",
        "ref_msg_id",
        "send_only",
        "more",
    )

    def __init__(
        self,
        session_id: str,
        msg_id: str | None = None,
        body: bytes = b"",
        headers: tuple[Header, ...] = (),
        ref_msg_id: str | None = None,
        send_only: bool = False,
        more: bool = False,
    ) -> None:
        self.session_id: Final = session_id
        self.msg_id: Final = msg_id
        self.body: Final = body
        self.headers: Final = headers
        self.ref_msg_id: Final = ref_msg_id
        self.send_only: Final = send_only
        self.more: Final = more

    @property
    def ended(self) -> bool:
        """Whether it has the null portion, which ends its message."""
        return not self.more

    def key(self) -> str:
        """What the frames of one message have in common: a msg-id or a ref-msg-id, which never mix (SABC-69)."""
        if self.msg_id is not None:
            return "m" + self.msg_id
        return "r" + (self.ref_msg_id or "")

    @property
    def truncated(self) -> bool:
        """SABC-103: whether the message was cut at the size limit."""
        return is_yes(header(self.headers, TRUNCATED))


@final
@mypyc_attr(acyclic=True)
class Error(Frame):
    """Something went wrong: a code, a description in the body, and the message it is about, if any.

    An ERROR may have any reserved header (SABC-66); those that are not fields are among ``headers``.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("error_code", "body", "session_id", "ref_msg_id", "headers")

    def __init__(
        self,
        error_code: str | None,
        body: bytes = b"",
        session_id: str | None = None,
        ref_msg_id: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        self.error_code: Final = error_code
        self.body: Final = body
        self.session_id: Final = session_id
        self.ref_msg_id: Final = ref_msg_id
        self.headers: Final = headers

    @property
    def about(self) -> str | None:
        """SABC-134: the id of the receiver's message that it is about, or None if it names none."""
        if self.ref_msg_id is not None:
            return self.ref_msg_id
        msg_id = header(self.headers, MSG_ID)
        return header(self.headers, MESSAGE_ID) if msg_id is None else msg_id


@final
@mypyc_attr(acyclic=True)
class Whole(Frame):
    """A whole message. ``headers`` are the application's; ``truncated`` ones have ``truncated::yes`` among them."""

    __match_args__: ClassVar[tuple[str, ...]] = (
        "session_id",
        "msg_id",
        "body",
        "headers",
        "ref_msg_id",
        "send_only",
        "truncated",
    )

    def __init__(
        self,
        session_id: str,
        msg_id: str | None = None,
        body: bytes = b"",
        headers: tuple[Header, ...] = (),
        ref_msg_id: str | None = None,
        send_only: bool = False,
        truncated: bool = False,
    ) -> None:
        self.session_id: Final = session_id
        self.msg_id: Final = msg_id
        self.body: Final = body
        self.headers: Final = headers
        self.ref_msg_id: Final = ref_msg_id
        self.send_only: Final = send_only
        self.truncated: Final = truncated

    @property
    def wants_answer(self) -> bool:
        """SABC-50, SABC-51: whether its sender waits for an answer."""
        return self.msg_id is not None and not self.send_only


@final
@mypyc_attr(acyclic=True)
class Operation(Frame):
    """What a message asks of the hub. ``headers`` are those that travel with it (SABC-118)."""

    __match_args__: ClassVar[tuple[str, ...]] = ("op", "destination", "service", "method", "headers")

    def __init__(
        self,
        op: str = PUBLISH,
        destination: str | None = None,
        service: str | None = None,
        method: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        self.op: Final = op
        self.destination: Final = destination
        self.service: Final = service
        self.method: Final = method
        self.headers: Final = headers


def error_reply(code: str, reason: str, session_id: str | None = None, ref_msg_id: str | None = None) -> Error:
    """The ERROR frame that reports a mistake to its sender (SABC-67)."""
    return Error(code, reason.encode(errors="replace"), session_id, ref_msg_id)


def encode(frame: Frame) -> bytes:
    """The bytes of a frame, always valid UTF-8. Raises ``LocalProtocolError`` for what sABC does not allow.

    A message in a single frame whose body can't be sent as it is goes as base64. A message in several frames is made by
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
                raise LocalProtocolError(f"{frame.session_expiry} is not a time in the years 1 to 9999", rule="SABC-36")
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
    """The message as frames of at most ``max_frame`` bytes each (SABC-129). The first has all headers."""
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
        raise LocalProtocolError("the body can't be split anywhere", rule="SABC-129")
    frames = []
    for i in range(len(cuts) - 1):
        more = i < len(cuts) - 2
        piece = body[cuts[i] : cuts[i + 1]]
        frames.append(_piece(message, headers if i == 0 else (), piece, first=i == 0, more=more))
    return frames


def _piece(message: Message, headers: tuple[Header, ...], body: bytes, *, first: bool, more: bool) -> Message:
    send_only = first and message.send_only  # SABC-68, SABC-116: later frames need not repeat it
    return Message(message.session_id, message.msg_id, body, headers, message.ref_msg_id, send_only, more)


def _cuts(message: Message, headers: tuple[Header, ...], body: bytes, max_frame: i64) -> list[int] | None:
    """Where to cut the body, both ends included, or None if there is a piece without a place to cut."""
    cuts = [0]
    at: i64 = 0
    end: i64 = len(body)
    room: i64 = (
        max_frame - i64(len(encode(_piece(message, headers, b"", first=True, more=True)))) - i64(len(TERMINATOR))
    )
    while end - at > room:
        if room < 1:
            raise LocalProtocolError(f"frames of {max_frame} bytes have no room for a body", rule="SABC-129")
        cut = cut_before(body, at, at + room)
        if cut == at:
            return None
        cuts.append(cut)
        at = cut
        if len(cuts) == 2:
            room = max_frame - i64(len(encode(_piece(message, (), b"", first=False, more=True)))) - i64(len(TERMINATOR))
    cuts.append(end)
    return cuts


def cut_before(body: bytes, start: i64, stop: i64) -> i64:
    """The last place up to ``stop`` where the next frame's body may begin, or ``start`` if there is none."""
    while stop > start and not may_begin(body, stop):
        stop -= 1
    return stop


def may_begin(body: bytes, at: i64) -> bool:
    """Whether a frame's body may begin here: at the start of a character, and not with what ends a body."""
    byte: i64 = body[at]
    if byte & 0xC0 == 0x80 or byte == 0:
        return False
    return byte != 13 or body[at : at + 3] != b"\r\n\0"


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
        raise LocalProtocolError(f"the session-id is longer than {MAX_SESSION_ID} bytes", rule="SABC-122")
    return "session-id::" + session_id


def _head(lines: list[str], pairs: list[Header], headers: tuple[Header, ...]) -> bytes:
    """Command and headers, without the empty line. ``lines`` and ``pairs`` are what the frame's fields make."""
    command = lines[0]
    for key, value in headers:
        if key in RESERVED and (command != "ERROR" or key in {SESSION_ID, ERROR_CODE, REF_MSG_ID}):
            where = " and ".join(PLACES[key])
            reason = f"header {key!r} is reserved: it is a field of the frame, and allowed on {where}"
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


def unfit(body: bytes, session_id: str | None) -> tuple[str, str] | None:
    """Why a body can't be sent as it is, as (rule, reason), or None if it can.

    It ends at the null portion, so a NUL in the wrong place would end it early; and the specification wants UTF-8.
    Bodies that don't fit are sent as base64 (SABC-82).
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return ("SABC-82", f"the body is not UTF-8 at byte {error.start}")
    if NUL in body:
        if body.startswith((b"\0", b"\r\n\0")):
            return ("SABC-82", "the body begins with NUL or CR LF NUL, which would end it")
        if TERMINATOR in body:
            return ("SABC-82", "the body contains CR LF CR LF NUL, which would end it")
    if session_id is not None and CR in body and boundary_mark(session_id) in body:
        return ("SABC-126", "the body contains what begins a frame of its own session")
    return None


def boundary_mark(session_id: str) -> bytes:
    """What follows the command in every frame of a session (SABC-77), up to the end of its line."""
    return b"\r\nsession-id::" + session_id.encode(errors="replace")


def to_base64(body: bytes) -> bytes:
    """The body as base64 text."""
    return b64encode(body)


def from_base64(text: bytes, *, truncated: bool = False) -> bytes | None:
    """Decode base64, None if it is invalid.

    Frames of one message may have been encoded one by one, so there may be padding inside (SABC-125). If the text is
    truncated, its last incomplete group of four is dropped.
    """
    if truncated:
        text = text[: len(text) // 4 * 4]
    out = bytearray()
    start = 0
    while start < len(text):
        padding = text.find(b"=", start)
        stop = len(text) if padding < 0 else (padding // 4 + 1) * 4
        if stop - start != (stop - start) // 4 * 4:
            return None
        try:
            out += a2b_base64(text[start:stop], strict_mode=True)
        except Base64Error:
            return None
        start = stop
    return bytes(out)


@final
class Pieces:
    """The frames of one unfinished message: the first one, and all bodies so far."""

    def __init__(self, first: Message) -> None:
        self.first: Final = first
        self.body: Final = BytesWriter()
        self.body.write(first.body)


@final
class Assembly:
    """Joins frames to whole messages by their id, however they interleave, and decodes base64.

    The decoder has already counted: no more messages are unfinished than allowed, and a message that reached its size
    limit ends there with a frame marked ``truncated``.
    """

    def __init__(self) -> None:
        self._unfinished: dict[str, Pieces] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def pending(self) -> int:
        """How many bytes of bodies are held."""
        held = 0
        for pieces in self._unfinished.values():
            held += len(pieces.body)
        return held

    def add(self, frame: Message) -> Whole | Discarded | None:
        """The message that ``frame`` completes, or None if more frames follow."""
        if not frame.more and not self._unfinished:
            return _whole(frame, frame.body, truncated=frame.truncated)
        key = frame.key()
        pieces = self._unfinished.get(key)
        if pieces is not None:
            pieces.body.write(frame.body)
        elif frame.more:
            self._unfinished[key] = Pieces(frame)
        if frame.more:
            return None
        if pieces is None:
            return _whole(frame, frame.body, truncated=frame.truncated)
        del self._unfinished[key]
        return _whole(pieces.first, pieces.body.getvalue(), truncated=frame.truncated or pieces.first.truncated)

    def forget(self, key: str) -> None:
        """The decoder has given this message up (SABC-131)."""
        self._unfinished.pop(key, None)


def _whole(first: Message, body: bytes, *, truncated: bool) -> Whole | Discarded:
    """The message with the first frame's headers (SABC-124) and all bodies."""
    headers = first.headers
    if headers and header(headers, CONTENT_ENCODING) == BASE64:
        plain = from_base64(body, truncated=truncated)
        if plain is None:
            reason = "the body is not the base64 its content-encoding announces"
            reply = error_reply(MALFORMED, reason, first.session_id, first.msg_id)
            return Discarded("SABC-125", reason, 0, body[:RAW_KEPT], len(body), reply)
        body = plain
        headers = without(headers, CONTENT_ENCODING)
    if truncated and header(headers, TRUNCATED) != YES:
        headers = (*without(headers, TRUNCATED), (TRUNCATED, YES))
    return Whole(first.session_id, first.msg_id, body, headers, first.ref_msg_id, first.send_only, truncated)


def operation(message: Whole) -> Operation | Discarded:
    """What an originating message asks for, or why that is not clear, with the ERROR to answer."""
    found: dict[str, str] = {}
    others: list[Header] = []
    for pair in message.headers:
        key, value = pair
        if key not in {OP, DESTINATION, SERVICE, METHOD}:
            others.append(pair)
        elif key in found:
            return _refused(message, "SABC-121", f"header {key!r} appears twice")
        else:
            found[key] = value
    op = found.get(OP, PUBLISH)
    needs = NEEDS.get(op)
    if needs is None:
        return _refused(message, "SABC-112", f"op {op[:40]!r} is not one of {', '.join(NEEDS)}")
    for key in needs:
        if not found.get(key):
            return _refused(message, "SABC-113", f"{op} needs the header {key!r}")
    return Operation(op, found.get(DESTINATION), found.get(SERVICE), found.get(METHOD), tuple(others))


def is_publication(message: Whole) -> bool:
    """Whether an originating message is a publication, valid or not."""
    for key, value in message.headers:
        if key == OP:
            return value == PUBLISH
    return True


def _refused(message: Whole, rule: str, reason: str) -> Discarded:
    reply = error_reply(MALFORMED, reason, message.session_id, message.msg_id)
    return Discarded(rule, reason, 0, message.body[:RAW_KEPT], len(message.body), reply)
