"""Bytes to frames: ``Decoder`` for byte streams, ``MessageDecoder`` for transports that keep messages apart.

On a byte stream a frame with a body has no length: it ends at its null portion, or where the next frame of the session
begins (SABC-74, SABC-77). The decoder looks for both in what is new of the body only. What may be the beginning of
either at the end of a chunk is held back; all else is known to be body and is kept apart, so that no byte is examined
twice however the stream is cut. On a WebSocket one message is one frame (SABC-73).

The two differ only in how they find the end of a frame. ``Intake`` does the rest: it checks frames against the session
and counts them.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.protocols.sabc.errors import LIMIT, MALFORMED, UNAUTHORIZED, Refused, RemoteProtocolError
from polywire.protocols.sabc.frames import (
    CR,
    EMPTY_LINE,
    TERMINATOR,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    boundary_mark,
    error_reply,
    from_base64,
)
from polywire.protocols.sabc.headers import (
    BASE64,
    BODYLESS,
    COMMANDS,
    CONTENT_ENCODING,
    KIND_CONNECT,
    KIND_CONNECTED,
    KIND_DISCONNECT,
    KIND_ERROR,
    KIND_MESSAGE,
    MSG_ID,
    REF_MSG_ID,
    RESERVED,
    SEND_ONLY,
    TRUNCATED,
    YES,
    Head,
    Header,
    header,
    line_offset,
    parse_head,
    readable_msg_id,
    shown,
    without,
)
from polywire.wire.frame import RAW_KEPT, Discarded, Frame

MAX_MESSAGE: Final = 16 * 1024 * 1024
MAX_HEAD: Final = 16 * 1024
MAX_HEADERS: Final = 100
MAX_UNFINISHED: Final = 64  # SABC-108
MAX_DROPPED: Final = 1024
LEAST_HEAD: Final = 512

NULL_PORTION: Final = 5
"""The length of ``TERMINATOR``."""

DROP: Final = -1
SILENT: Final = ""
"""The code of a refusal that is not answered."""

# Longest first, because what ends in DISCONNECT also ends in CONNECT.
COMMAND_BYTES: Final = tuple(sorted([command.encode() for command in COMMANDS], key=len, reverse=True))

NUL_BYTE: Final = b"\0"
SHORT: Final = 1024

# What of the current frame is being read.
HEAD: Final = 0
BODY: Final = 1
REST: Final = 2  # past the size limit: delivered already, the rest is dropped
SKIP: Final = 3  # refused: reported at its end

# Where the next null portion of a chunk is, if not found.
UNKNOWN: Final = -2
NONE: Final = -1


def head_too_long(limit: i64) -> Refused:
    """SABC-120."""
    return Refused(LIMIT, "SABC-120", f"the frame's head is longer than the {limit} bytes allowed")


def head_over_limit(size: i64, limit: i64) -> Refused:
    """SABC-133."""
    reason = f"the command and headers have {size} bytes, more than the {limit} allowed for the whole message"
    return Refused(MALFORMED, "SABC-133", reason)


def of_dropped_message() -> Refused:
    """SABC-104."""
    return Refused(SILENT, "SABC-104", "the frame belongs to a message that is being dropped")


def error_too_large(limit: i64) -> Refused:
    """SABC-130."""
    return Refused(SILENT, "SABC-130", f"the ERROR frame is larger than the {limit} bytes allowed")


@final
class Unfinished:
    """Which messages of a session are unfinished, how large each is so far, and which are being dropped.

    The size limit counts all frames of a message (SABC-62), and the number of unfinished messages is limited
    (SABC-108). So a decoder asks here, before it holds a body, how many bytes the next frame may have.
    """

    def __init__(self, max_message: int, max_unfinished: int, max_dropped: int) -> None:
        self.max_message = max_message
        self.max_unfinished: Final[int] = max_unfinished
        self.max_dropped: Final[int] = max_dropped
        self._total: i64 = 0
        self._sizes: dict[str, int] = {}
        # Only hashes of the messages being dropped are kept, so that long ids take no memory.
        self._dropped: set[int] = set()

    def idle(self) -> bool:
        """Whether every message so far is complete."""
        return not self._sizes and not self._dropped

    def allowance(self, key: str) -> i64:
        """How many bytes the next frame of this message may have, or ``DROP``."""
        if self._dropped and hash(key) in self._dropped:
            return DROP
        return self.max_message - self._sizes.get(key, 0)

    def too_much(self, size: i64) -> bool:
        """SABC-131: whether another frame of this size is more than all unfinished messages may have together."""
        return self._total + size > 2 * self.max_message

    def grow(self, key: str, size: i64) -> bool:
        """Count a frame that is not the last. False if the message would be one too many."""
        known = self._sizes.get(key)
        if known is None:
            if len(self._sizes) >= self.max_unfinished:
                return False
            known = 0
        self._sizes[key] = known + size
        self._total += size
        return True

    def end(self, key: str) -> None:
        """The message has ended."""
        self._total -= self._sizes.pop(key, 0)
        self._dropped.discard(hash(key))

    def drop(self, key: str) -> bool:
        """Drop the rest of this message. False if too many are being dropped already."""
        self._total -= self._sizes.pop(key, 0)
        self._dropped.add(hash(key))
        return len(self._dropped) <= self.max_dropped


@final
class Intake:
    """What both decoders do with a frame once they know where it ends.

    ``mark`` is what follows the command at the beginning of a frame of this session; ``prefix`` is how its messages
    begin.
    """

    def __init__(
        self,
        session_id: str | None,
        max_message: int,
        max_head: int,
        max_headers: int,
        max_unfinished: int,
        max_dropped: int,
    ) -> None:
        if max_head < LEAST_HEAD:
            raise ValueError(f"max_head is {max_head}, it must be at least {LEAST_HEAD}")
        self.max_message: i64 = max_message
        self.cuts: i64 = 0
        self.max_head: i64 = max_head
        self.max_headers: i64 = max_headers
        self.unfinished: Final = Unfinished(max_message, max_unfinished, max_dropped)
        self.given_up: list[str] = []
        self.failed: RemoteProtocolError | None = None
        self.session_id: str | None = None
        self.opened = False
        self.own = ""
        self.prefix = b""
        self.mark = b""
        self.boundaries: tuple[bytes, ...] = ()
        if session_id is not None:
            self.name_session(session_id)

    def allow(self, max_message: int, max_head: int) -> None:
        """Apply these limits from the next frame on."""
        if max_head < LEAST_HEAD:
            raise ValueError(f"max_head is {max_head}, it must be at least {LEAST_HEAD}")
        self.max_message = max_message
        self.max_head = max_head
        self.unfinished.max_message = max_message

    def begin(self) -> None:
        """Prepare to read more."""
        self.check()
        if self.given_up:
            self.given_up = []

    def check(self) -> None:
        """Raise the error that ended decoding again, if there was one."""
        error = self.failed
        if error is not None:
            raise RemoteProtocolError(error.reason, rule=error.rule, position=error.position, reply=error.reply)

    def failure(self, error: RemoteProtocolError, frames: list[Frame]) -> RemoteProtocolError:
        """End decoding. Returns the error to raise, with the frames that were complete before it."""
        self.failed = error
        return RemoteProtocolError(
            error.reason, rule=error.rule, position=error.position, reply=error.reply, frames=frames
        )

    def name_session(self, session_id: str) -> None:
        """Set the session's id."""
        self.session_id = session_id
        self.own = session_id
        self.mark = boundary_mark(session_id) + b"\r\n"
        self.prefix = b"MESSAGE" + self.mark
        self.boundaries = tuple([command + self.mark for command in COMMAND_BYTES])

    @property
    def ready(self) -> bool:
        """Whether the session has an id and no message is unfinished, so that most frames are whole messages."""
        return self.session_id is not None and self.unfinished.idle()

    def boundary(self, chunk: bytes, low: i64, high: i64) -> i64:
        """Where in ``chunk[low:high]`` the next frame of this session begins, or -1 (SABC-77)."""
        mark = self.mark
        if not mark:
            return -1
        at: i64 = chunk.find(b"\r", low, high)
        if at < 0:
            return -1
        at = chunk.find(mark, at, high)
        while at >= 0:
            for command in COMMAND_BYTES:
                begin: i64 = at - i64(len(command))
                if begin >= 0 and chunk[begin:at] == command:
                    if begin >= low:
                        return begin
                    break
            at = chunk.find(mark, at + 1, high)
        return -1

    def head(self, raw: bytes) -> Head:
        """Parse a head, which ends before its empty line, and check it against the session. Raises ``Refused``."""
        head = parse_head(raw, self.max_headers)
        own = self.session_id
        kind = head.kind
        if own is not None and head.session_id is not None and kind != KIND_CONNECTED and head.session_id != own:
            raise Refused(UNAUTHORIZED, "SABC-90", f"session-id {shown(head.session_id)} is not this session's")
        return head

    def bodyless(self, head: Head) -> Frame:
        """The frame of a command without a body."""
        session_id = head.session_id or ""
        if head.kind == KIND_CONNECT:
            self.opened = True
            return Connect(head.client_id or "", head.client_passcode, head.headers)
        if head.kind == KIND_CONNECTED:
            if self.session_id is None:
                self.opened = True
                self.name_session(session_id)
            return Connected(session_id, head.expiry, head.headers)
        if head.kind == KIND_DISCONNECT:
            return Disconnect(session_id, head.headers)
        return Disconnecting(session_id, head.headers)

    def allowance(self, head: Head) -> i64:
        """How many bytes this frame may have; negative if its message is being dropped."""
        if head.kind != KIND_MESSAGE or self.unfinished.idle():
            return self.max_message
        return self.unfinished.allowance(head.key())

    def too_large_a_head(self, head: Head, size: i64, allowance: i64) -> bool:
        """SABC-133: whether the command and headers alone are over the size limit.

        A message with earlier frames has something to deliver, and is truncated instead.
        """
        return size > allowance and head.kind == KIND_MESSAGE and allowance == self.max_message

    def complete(self, head: Head, body: bytes, size: i64, position: i64, *, ended: bool) -> Frame:
        """The frame, which is complete and within its allowance. Raises ``Refused`` if its end is wrong."""
        if head.kind == KIND_ERROR:
            if not ended:
                raise Refused(SILENT, "SABC-64", "the ERROR frame has no null portion")
            return self._error(head, body)
        if ended:
            if not self.unfinished.idle():
                self.unfinished.end(head.key())
            return _message(head, body, more=False)
        if not head.more:
            raise Refused(MALFORMED, "SABC-106", "the frame has neither a null portion nor msg-more::yes")
        key = head.key()
        if self.unfinished.too_much(size):
            self._drop(key, position)
            self.given_up.append(key)
            raise Refused(LIMIT, "SABC-131", f"all unfinished messages have more than {2 * self.max_message} bytes")
        if not self.unfinished.grow(key, size):
            self._drop(key, position)
            most = self.unfinished.max_unfinished
            raise Refused(LIMIT, "SABC-108", f"{most} messages are unfinished already, more are not allowed")
        return _message(head, body, more=True)

    def cut(self, head: Head, body: bytes) -> Message:
        """The last frame of a message that has reached the size limit (SABC-103)."""
        self.cuts += 1
        head.headers = (*without(head.headers, TRUNCATED), (TRUNCATED, YES))
        return _message(head, body, more=False)

    def rest(self, head: Head, position: i64, *, ended: bool) -> None:
        """A frame of a message that is being dropped has ended (SABC-104)."""
        key = head.key()
        if ended or not head.more:
            self.unfinished.end(key)
        else:
            self._drop(key, position)

    def answer(self, refused: Refused, raw: bytes) -> Error | None:
        """The answer to a refused frame with the head ``raw`` (SABC-127); none to an ERROR (SABC-123)."""
        if refused.code == SILENT or raw.startswith(b"ERROR\r\n"):
            return None
        session_id = self.session_id if self.opened else None
        return error_reply(refused.code, refused.reason, session_id, readable_msg_id(raw))

    def refuse_connect(self, refused: Refused, raw: bytes, position: i64) -> None:
        """Raise if the refused frame is the CONNECT that should have opened the session (SABC-96)."""
        if self.opened or not raw.startswith(b"CONNECT\r\n"):
            return
        raise RemoteProtocolError(
            refused.reason,
            rule=refused.rule,
            position=position + line_offset(raw, refused.line),
            reply=self.answer(refused, raw),
        )

    def discarded(self, refused: Refused, raw: bytes, size: i64, position: i64, reply: Error | None) -> Discarded:
        """The report of a refused frame."""
        return Discarded(refused.rule, refused.reason, position, raw[:RAW_KEPT], size, reply)

    def _error(self, head: Head, body: bytes) -> Error:
        headers = head.headers
        if header(headers, CONTENT_ENCODING) == BASE64:
            plain = from_base64(body)
            left = without(headers, CONTENT_ENCODING)
            named = head.error_code is not None or head.session_id is not None or head.ref_msg_id is not None
            if plain is not None and (left or named):  # a frame keeps one header at least
                body = plain
                headers = left
        return Error(head.error_code, body, head.session_id, head.ref_msg_id, headers)

    def _drop(self, key: str, position: i64) -> None:
        if self.unfinished.drop(key):
            return
        reason = f"more than {self.unfinished.max_dropped} messages are being dropped at once"
        reply = error_reply(LIMIT, reason, self.session_id if self.opened else None)
        raise RemoteProtocolError(reason, rule="SABC-128", position=position, reply=reply)


@final
class Decoder:
    """Turns the bytes of one connection into frames.

    ``session_id``: the id a server will give this connection; a client's decoder learns it from CONNECTED.
    ``max_message``: bytes of all frames of one message; it is truncated there. ``max_head``: bytes of a frame's
    command and headers, ``max_headers``: their number. ``max_unfinished``: messages whose end has not come.
    ``max_dropped``: messages whose rest is being dropped.
    """

    def __init__(
        self,
        *,
        session_id: str | None = None,
        max_message: int = MAX_MESSAGE,
        max_head: int = MAX_HEAD,
        max_headers: int = MAX_HEADERS,
        max_unfinished: int = MAX_UNFINISHED,
        max_dropped: int = MAX_DROPPED,
    ) -> None:
        self._intake = Intake(session_id, max_message, max_head, max_headers, max_unfinished, max_dropped)
        self._offset: i64 = 0  # of the first byte held, in the stream
        self._tail = b""
        self._searched: i64 = 0  # bytes of the tail that are known to have no empty line
        self._null_due = False  # a command without a body came last: a NUL may follow
        self._found: i64 = UNKNOWN  # the null portion found last in this chunk
        # The frame being read. Places are offsets in the stream.
        self._state: i64 = HEAD
        self._head: Head | None = None
        self._raw = b""
        self._body: BytesWriter | None = None
        self._start: i64 = 0
        self._low: i64 = 0  # before this no other frame begins
        self._done: i64 = 0  # up to here the body, or the raw bytes, are kept
        self._limit: i64 = 0  # where the size limit cuts it
        self._refused: Refused | None = None
        self._position: i64 = 0
        self._reply: Error | None = None

    @property
    def session_id(self) -> str | None:
        """The session's id, None while it is not known."""
        return self._intake.session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self._intake.name_session(session_id)

    def allow(self, *, max_message: int, max_head: int) -> None:
        """Apply these limits from the next frame on: those before a login are lower than those after it."""
        self._intake.allow(max_message, max_head)

    def cuts(self) -> int:
        """How many messages were cut at the size limit."""
        return int(self._intake.cuts)

    def given_up(self) -> str:
        """The key of the message the next ``Discarded`` of SABC-131 is about, of those the last ``feed`` returned."""
        return self._intake.given_up.pop(0)

    def pending(self) -> int:
        """How many bytes of an unfinished frame are held."""
        body = self._body
        held: i64 = i64(len(self._tail)) + i64(len(self._raw))
        if body is not None:
            held += i64(len(body))
            if self._low > self._offset:  # the end of the head is held twice, the null portion may begin in it
                held -= self._low - self._offset
        return held

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, in order; what broke a rule is ``Discarded``."""
        self._intake.begin()
        frames: list[Frame] = []
        tail = self._tail
        if tail:
            data = tail + data  # bounded: the tail is an unfinished head, or may be the start of a frame's end
            self._tail = b""
        self._found = UNKNOWN
        try:
            self._read(data, frames)
        except RemoteProtocolError as error:
            self._fail(error, frames)
        return frames

    def finish(self) -> list[Frame]:
        """The connection has ended: a frame with ``msg-more`` ends here too, what is cut is ``Discarded``."""
        self._intake.check()
        frames: list[Frame] = []
        tail = self._tail
        self._tail = b""
        end = self._offset + i64(len(tail))
        try:
            if self._state != HEAD:
                self._consume(tail, end)
                self._close(frames, end, ended=False)
            elif tail:
                refused = Refused(MALFORMED, "SABC-43", "the connection ended inside a frame")
                frames.append(self._intake.discarded(refused, tail, len(tail), self._offset, None))
        except RemoteProtocolError as error:
            self._fail(error, frames)
        self._offset = end
        return frames

    def _fail(self, error: RemoteProtocolError, frames: list[Frame]) -> None:
        self._tail = self._raw = b""
        self._body = None
        raise self._intake.failure(error, frames) from None

    def _read(self, chunk: bytes, frames: list[Frame]) -> None:
        """Decode ``chunk``, which begins at ``_offset``."""
        intake = self._intake
        end: i64 = len(chunk)
        pos: i64 = 0
        if self._state != HEAD:
            pos = self._scan(chunk, 0, frames)
            if pos < 0:
                return
        max_head = intake.max_head
        while pos < end:
            if self._null_due:
                skipped = self._skip_null(chunk, pos, end)
                if skipped < 0:
                    break
                pos = skipped
                self._null_due = False
                continue
            blank: i64 = chunk.find(EMPTY_LINE, pos + self._searched, pos + max_head)
            if blank < 0 and end - pos < max_head:
                self._searched = end - pos - 3 if end - pos > 3 else 0
                break
            self._searched = 0
            if blank < 0:
                pos = self._refuse(chunk, pos, pos + max_head, head_too_long(max_head), frames)
                if pos < 0:
                    return
                continue
            body_at: i64 = blank + 4
            if intake.ready and chunk[pos : pos + i64(len(intake.prefix))] == intake.prefix:
                following = self._plain(chunk, pos, blank, frames)
                if following >= 0:
                    pos = following
                    continue
            try:
                head = intake.head(chunk[pos:blank])
            except Refused as refused:
                pos = self._refuse(chunk, pos, body_at, refused, frames)
                if pos < 0:
                    return
                continue
            if head.kind < KIND_MESSAGE:
                frames.append(intake.bodyless(head))
                self._null_due = True
                pos = body_at
                continue
            pos = self._enter(chunk, pos, blank, head, frames)
            if pos < 0:
                return
        self._tail = chunk[pos:]
        self._offset += pos

    def _plain(self, chunk: bytes, pos: i64, blank: i64, frames: list[Frame]) -> i64:
        """The fast path for a whole message in one frame. Returns where the next begins, or -1 if it is not one."""
        intake = self._intake
        found = self._terminator(chunk, blank)
        start = pos + i64(len(intake.prefix))
        if found < 0 or start >= blank or found + NULL_PORTION - pos > intake.max_message:
            return -1
        body_at = blank + 4
        body = chunk[body_at:found] if body_at < found <= body_at + SHORT else b""
        # A boundary contains a CR. Only a short body is searched for one; a long one may be many frames.
        if (CR in body or found > body_at + SHORT) and intake.boundary(chunk, body_at, found + 2) >= 0:
            return -1
        if found > body_at + SHORT:
            body = chunk[body_at:found]
        message = plain_message(intake.own, chunk[start:blank], body, intake.max_headers)
        if message is None:
            return -1
        frames.append(message)
        return found + NULL_PORTION

    def _skip_null(self, chunk: bytes, pos: i64, end: i64) -> i64:
        """Where the next frame begins after a command without a body, or -1 if more bytes are needed (SABC-76)."""
        if chunk[pos] == 0:
            return pos + 1
        head = chunk[pos : pos + NULL_PORTION]
        if head == TERMINATOR:
            return pos + NULL_PORTION
        if end - pos < NULL_PORTION and TERMINATOR.startswith(head):
            return -1
        return pos

    def _terminator(self, chunk: bytes, low: i64) -> i64:
        """Where the next null portion of this chunk begins, or -1. The result is kept for the next frame."""
        if self._found != NONE and self._found < low:
            nul: i64 = chunk.find(NUL_BYTE, low + 4)
            if nul < 0:
                self._found = NONE
            elif chunk[nul - 4 : nul] == EMPTY_LINE:
                self._found = nul - 4
            else:
                self._found = chunk.find(TERMINATOR, nul - 3)
        return self._found

    def _enter(self, chunk: bytes, pos: i64, blank: i64, head: Head, frames: list[Frame]) -> i64:
        """Begin a frame with a body, whose head ends at ``blank``. Returns as ``_scan``."""
        allowance = self._intake.allowance(head)
        if allowance < 0:
            self._head = head
            return self._refuse(chunk, pos, blank + 4, of_dropped_message(), frames)
        if self._intake.too_large_a_head(head, blank - pos, allowance):
            self._head = head
            refused = head_over_limit(blank - pos, self._intake.max_message)
            return self._refuse(chunk, pos, blank + 4, refused, frames)
        self._state = BODY
        self._head = head
        self._raw = chunk[pos : blank + 4]
        self._body = BytesWriter()
        self._start = self._offset + pos
        self._low = self._done = self._offset + blank + 4
        self._limit = self._start + allowance
        return self._scan(chunk, blank, frames)

    def _refuse(self, chunk: bytes, pos: i64, stop: i64, refused: Refused, frames: list[Frame]) -> i64:
        """Begin to skip the frame at ``pos``, whose head ends at ``stop``. Returns as ``_scan``."""
        intake = self._intake
        raw = chunk[pos:stop]
        start = self._offset + pos
        intake.refuse_connect(refused, raw, start)
        self._state = SKIP
        self._refused = refused
        self._reply = intake.answer(refused, raw)
        self._position = start + line_offset(raw, refused.line)
        self._start = self._done = start
        self._raw = b""
        self._low = start + 1
        if raw.endswith(EMPTY_LINE) and _bodyless(raw):
            boundary = intake.boundary(chunk, pos + 1, stop)
            if boundary < 0:
                boundary = stop
                self._null_due = True
            self._consume(chunk, self._offset + boundary)
            self._close(frames, self._offset + boundary, ended=False)
            return boundary
        return self._scan(chunk, pos, frames)

    def _scan(self, chunk: bytes, at: i64, frames: list[Frame]) -> i64:
        """Read on in the current frame from ``chunk[at]``. Returns where the next begins, or -1 if it goes on."""
        end: i64 = len(chunk)
        low = self._low - self._offset
        low = max(low, at)
        found = self._terminator(chunk, at)
        boundary = self._intake.boundary(chunk, low, end if found < 0 else found + 2)
        if boundary >= 0:
            self._consume(chunk, self._offset + boundary)
            self._close(frames, self._offset + boundary, ended=False)
            return boundary
        if found >= 0:
            following = found + NULL_PORTION
            self._consume(chunk, self._offset + (found if self._state == BODY else following))
            self._close(frames, self._offset + following, ended=True)
            return following
        hold = self._held_back(chunk, at, low)
        self._consume(chunk, self._offset + hold)
        if self._state == BODY and self._offset + hold > self._limit:
            self._cut(frames)
        self._tail = chunk[hold:]
        self._offset += hold
        return -1

    def _held_back(self, chunk: bytes, at: i64, low: i64) -> i64:
        """Where the longest end of ``chunk`` begins that may be the beginning of a null portion or of a frame."""
        boundaries = self._intake.boundaries
        end: i64 = len(chunk)
        longest: i64 = NULL_PORTION
        if boundaries:
            longest = len(boundaries[0])
        i = end - longest + 1
        i = max(i, at)
        while i < end:
            byte: i64 = chunk[i]
            # CR, or the first letter of a command
            if byte == 13 or byte == 77 or byte == 67 or byte == 68 or byte == 69:  # noqa: PLR1714 - native comparisons
                part = chunk[i:]
                if TERMINATOR.startswith(part):
                    return i
                if i >= low:
                    for boundary in boundaries:
                        if boundary.startswith(part):
                            return i
            i += 1
        return end

    def _consume(self, chunk: bytes, stop: i64) -> None:
        """Keep what is needed of the frame's bytes up to ``stop``."""
        done = self._done
        if stop <= done:
            return
        keep = stop
        if self._state == BODY:
            body = self._body
            keep = min(keep, self._limit)
            if keep > done and body is not None:
                body.write(chunk[done - self._offset : keep - self._offset])
        elif self._state == SKIP:
            keep = min(keep, self._start + RAW_KEPT)
            if keep > done:
                self._raw += chunk[done - self._offset : keep - self._offset]
        self._done = stop

    def _cut(self, frames: list[Frame]) -> None:
        """The size limit is reached inside this frame: deliver what there is, drop the rest."""
        head = self._head
        body = self._body
        if head is None or body is None:
            return
        content = body.getvalue()
        self._body = None
        if head.kind == KIND_ERROR:
            self._state = SKIP
            self._refused = error_too_large(self._intake.max_message)
            self._reply = None
            self._position = self._start
            self._raw = (self._raw + content)[:RAW_KEPT]
            self._done = self._start + RAW_KEPT + self._limit  # nothing more is kept
            return
        self._raw = b""
        self._state = REST
        frames.append(self._intake.cut(head, content))

    def _close(self, frames: list[Frame], stop: i64, *, ended: bool) -> None:
        """The current frame ends at ``stop``, with the null portion or without."""
        intake = self._intake
        size = stop - self._start
        if self._state == BODY and stop > self._limit:
            self._cut(frames)
        state = self._state
        head = self._head
        body = self._body
        raw = self._raw
        refused = self._refused
        self._state = HEAD
        self._head = None
        self._body = None
        self._raw = b""
        self._refused = None
        if state == BODY and head is not None and body is not None:
            content = body.getvalue()
            try:
                frames.append(intake.complete(head, content, size, self._start, ended=ended))
            except Refused as late:
                reply = intake.answer(late, raw)
                frames.append(intake.discarded(late, raw + content[:RAW_KEPT], size, self._start, reply))
            return
        if state == SKIP and refused is not None:
            frames.append(intake.discarded(refused, raw, size, self._position, self._reply))
            self._reply = None
        if head is not None and head.kind == KIND_MESSAGE:
            intake.rest(head, self._start, ended=ended)


@final
class MessageDecoder:
    """Turns the messages of a message transport, such as WebSocket, into frames, one from each (SABC-73).

    The arguments are those of ``Decoder``. Positions are offsets in the message.
    """

    def __init__(
        self,
        *,
        session_id: str | None = None,
        max_message: int = MAX_MESSAGE,
        max_head: int = MAX_HEAD,
        max_headers: int = MAX_HEADERS,
        max_unfinished: int = MAX_UNFINISHED,
        max_dropped: int = MAX_DROPPED,
    ) -> None:
        self._intake = Intake(session_id, max_message, max_head, max_headers, max_unfinished, max_dropped)

    @property
    def session_id(self) -> str | None:
        """The session's id, None while it is not known."""
        return self._intake.session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self._intake.name_session(session_id)

    def allow(self, *, max_message: int, max_head: int) -> None:
        """Apply these limits from the next frame on: those before a login are lower than those after it."""
        self._intake.allow(max_message, max_head)

    def cuts(self) -> int:
        """How many messages were cut at the size limit."""
        return int(self._intake.cuts)

    def given_up(self) -> str:
        """The key of the message the next ``Discarded`` of SABC-131 is about, of those the last ``feed`` returned."""
        return self._intake.given_up.pop(0)

    def pending(self) -> int:
        """Always 0: a message is a whole frame."""
        return 0

    def finish(self) -> list[Frame]:
        """The connection has ended. No frame is ever incomplete."""
        return []

    def feed(self, data: bytes | str) -> list[Frame]:
        """The frame in one message, text or binary; what broke a rule is ``Discarded``."""
        self._intake.begin()
        raw = data if isinstance(data, bytes) else data.encode(errors="surrogatepass")
        try:
            return self._read(raw)
        except RemoteProtocolError as error:
            raise self._intake.failure(error, []) from None

    def _read(self, raw: bytes) -> list[Frame]:
        intake = self._intake
        blank: i64 = raw.find(EMPTY_LINE, 0, intake.max_head)
        if blank >= 0 and intake.ready:
            plain = self._plain(raw, blank)
            if plain is not None:
                return [plain]
        top = raw[: intake.max_head]
        try:
            if blank < 0:
                if i64(len(raw)) >= intake.max_head:
                    raise head_too_long(intake.max_head)
                blank = len(raw.removesuffix(b"\r\n"))  # SABC-132: the message is a head and nothing else
            top = raw[:blank] + EMPTY_LINE
            head = intake.head(raw[:blank])
            if head.kind < KIND_MESSAGE:
                if raw[blank + 4 :] not in {b"", b"\0", TERMINATOR}:
                    raise Refused(MALFORMED, "SABC-76", "the frame has a body, which its command can't have")  # noqa: TRY301 - one place answers all refusals
                return [intake.bodyless(head)]
            return self._with_body(raw, blank, head)
        except Refused as refused:
            intake.refuse_connect(refused, top, 0)
            place = line_offset(top, refused.line)
            return [intake.discarded(refused, raw, len(raw), place, intake.answer(refused, top))]

    def _plain(self, raw: bytes, blank: i64) -> Message | None:
        """The fast path for a whole message in one frame; None if it is not one."""
        intake = self._intake
        start: i64 = len(intake.prefix)
        found: i64 = i64(len(raw)) - NULL_PORTION
        if start >= blank or found < blank or found + NULL_PORTION > intake.max_message or raw[:start] != intake.prefix:
            return None
        if i64(raw.find(TERMINATOR, blank)) != found:
            return None
        body = raw[blank + 4 : found] if found > blank + 4 else b""
        return plain_message(intake.own, raw[start:blank], body, intake.max_headers)

    def _with_body(self, raw: bytes, blank: i64, head: Head) -> list[Frame]:
        intake = self._intake
        body_at = blank + 4
        size: i64 = len(raw)
        found: i64 = raw.find(TERMINATOR, blank)
        ended = found >= 0
        if ended and found + NULL_PORTION != size:
            raise Refused(MALFORMED, "SABC-73", f"{size - found - NULL_PORTION} bytes follow the null portion")
        stop = found if ended else size
        stop = max(stop, body_at)
        if size <= body_at and not head.more:
            ended = True  # SABC-132: without a body, the end of the message is the end of the frame
        allowance = intake.allowance(head)
        if allowance < 0:
            intake.rest(head, 0, ended=ended)
            raise of_dropped_message()
        if intake.too_large_a_head(head, blank, allowance):
            intake.rest(head, 0, ended=ended)
            raise head_over_limit(blank, intake.max_message)
        if size <= allowance:
            return [intake.complete(head, raw[body_at:stop], size, 0, ended=ended)]
        if head.kind == KIND_ERROR:
            raise error_too_large(intake.max_message)
        stop = min(stop, allowance)
        frame = intake.cut(head, raw[body_at:stop] if stop > body_at else b"")
        intake.rest(head, 0, ended=ended)
        return [frame]


def plain_message(session_id: str, raw: bytes, body: bytes, max_headers: i64) -> Message | None:
    """The whole message with these header lines after its session-id, or None if ``parse_head`` must look at them.

    This is the fast path for the most frequent frames. It refuses nothing, and accepts nothing ``parse_head`` would
    refuse.
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
    return Message(session_id, msg_id, body, tuple(others), ref_msg_id, send_only == YES, more=False)


def _bodyless(raw: bytes) -> bool:
    """Whether a head, valid or not, has a command without a body."""
    command = raw[: raw.find(b"\r\n")]
    return command.decode(errors="replace") in BODYLESS


def _message(head: Head, body: bytes, *, more: bool) -> Message:
    """The MESSAGE frame with this head."""
    return Message(head.session_id or "", head.msg_id, body, head.headers, head.ref_msg_id, head.send_only, more)
