"""sABC's frames: octets to frames and back, on byte streams; on message transports ``message_frames`` reads them.

On a byte stream a frame with a body has no length: it ends at its null portion, or where the next frame of the session
begins (SABC-74, SABC-77). The decoder looks for both in what is new of the body only. What might be the beginning of
either at the end of a chunk is held back; all else is known to be body and is kept apart, so that no octet is looked at
again and again however the stream is cut.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.protocols.sabc.bodies import TERMINATOR
from polywire.protocols.sabc.commands import Error
from polywire.protocols.sabc.encoding import encode
from polywire.protocols.sabc.errors import MALFORMED, Refused, RemoteProtocolError
from polywire.protocols.sabc.head import KIND_ERROR, KIND_MESSAGE, Head, line_offset, plain_message
from polywire.protocols.sabc.headers import BODYLESS
from polywire.protocols.sabc.intake import (
    BLANK,
    MAX_DROPPED,
    MAX_HEAD,
    MAX_HEADERS,
    MAX_MESSAGE,
    MAX_UNFINISHED,
    NULL_PORTION,
    Intake,
    error_too_large,
    head_over_limit,
    head_too_long,
    of_dropped_message,
)
from polywire.protocols.sabc.message_frames import MessageDecoder
from polywire.wire.frame import RAW_KEPT, Frame

__all__ = ["Decoder", "MessageDecoder", "encode"]

NUL: Final = b"\0"
CR: Final = 13
SHORT: Final = 1024

# What of the current frame is being read.
HEAD: Final = 0
BODY: Final = 1
REST: Final = 2  # behind the size limit: delivered already, the rest is dropped
SKIP: Final = 3  # refused: reported at its end

UNKNOWN: Final = -2
NONE: Final = -1


def _bodyless(raw: bytes) -> bool:
    """Whether a head, valid or not, has a command without body."""
    command = raw[: raw.find(b"\r\n")]
    return command.decode(errors="replace") in BODYLESS


@final
class Decoder:
    """Turns the octets of one connection into frames.

    ``session_id``: a server names the id it will give this connection; a client's decoder learns it from CONNECTED.
    ``max_message``: octets of all frames of one message; it is truncated there. ``max_head``: octets of a frame's
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
        self._offset: i64 = 0  # of the first octet held in the stream
        self._tail = b""
        self._searched: i64 = 0  # octets of the tail known to hold no empty line
        self._null_due = False  # a command without body came last: a NUL may follow it
        self._found: i64 = UNKNOWN  # the null portion found last in this chunk
        # The frame being read. Places are offsets in the stream.
        self._state: i64 = HEAD
        self._head: Head | None = None
        self._raw = b""
        self._body: BytesWriter | None = None
        self._start: i64 = 0
        self._low: i64 = 0  # before this no other frame begins
        self._done: i64 = 0  # up to here the body, or the raw octets, are kept
        self._limit: i64 = 0  # where the size limit cuts it
        self._refused: Refused | None = None
        self._position: i64 = 0
        self._reply: Error | None = None

    @property
    def session_id(self) -> str | None:
        """The session's id, as far as it is known."""
        return self._intake.session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self._intake.name_session(session_id)

    def allow(self, *, max_message: int, max_head: int) -> None:
        """From the next frame on these limits hold: those before a login are narrower than those behind it."""
        self._intake.allow(max_message, max_head)

    def cuts(self) -> int:
        """How many messages were cut at the size limit."""
        return int(self._intake.cuts)

    def given_up(self) -> str:
        """The key of the message the next ``Discarded`` of SABC-131 is about, of those the last ``feed`` returned."""
        return self._intake.given_up.pop(0)

    def pending(self) -> int:
        """How many octets of an unfinished frame are held."""
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
                self._close(frames, False, end)
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
        """Take ``chunk`` apart; its first octet is the one at ``_offset``."""
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
            blank: i64 = chunk.find(BLANK, pos + self._searched, pos + max_head)
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
        """The short way for a whole message in one frame. Returns where the next begins, or -1: it is none."""
        intake = self._intake
        found = self._terminator(chunk, blank)
        start = pos + i64(len(intake.prefix))
        if found < 0 or start >= blank or found + NULL_PORTION - pos > intake.max_message:
            return -1
        body_at = blank + 4
        body = chunk[body_at:found] if body_at < found <= body_at + SHORT else b""
        # A boundary has a CR of its own. Only a short body is looked at so; a long one may be many frames.
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
        """Where the next frame begins behind a command without body, or -1 where more octets must tell (SABC-76)."""
        if chunk[pos] == 0:
            return pos + 1
        head = chunk[pos : pos + NULL_PORTION]
        if head == TERMINATOR:
            return pos + NULL_PORTION
        if end - pos < NULL_PORTION and TERMINATOR.startswith(head):
            return -1
        return pos

    def _terminator(self, chunk: bytes, low: i64) -> i64:
        """Where the next null portion of this chunk begins, or -1. Looked for once, however many frames ask."""
        if self._found != NONE and self._found < low:
            nul: i64 = chunk.find(NUL, low + 4)
            if nul < 0:
                self._found = NONE
            elif chunk[nul - 4 : nul] == BLANK:
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
        if raw.endswith(BLANK) and _bodyless(raw):
            boundary = intake.boundary(chunk, pos + 1, stop)
            if boundary < 0:
                boundary = stop
                self._null_due = True
            self._consume(chunk, self._offset + boundary)
            self._close(frames, False, self._offset + boundary)
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
            self._close(frames, False, self._offset + boundary)
            return boundary
        if found >= 0:
            following = found + NULL_PORTION
            self._consume(chunk, self._offset + (found if self._state == BODY else following))
            self._close(frames, True, self._offset + following)
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
            octet: i64 = chunk[i]
            # CR, or the first letter of a command
            if octet == 13 or octet == 77 or octet == 67 or octet == 68 or octet == 69:  # noqa: PLR1714 - native comparisons
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
        """Keep what is to be kept of the frame's octets up to ``stop``."""
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
        octets = body.getvalue()
        self._body = None
        if head.kind == KIND_ERROR:
            self._state = SKIP
            self._refused = error_too_large(self._intake.max_message)
            self._reply = None
            self._position = self._start
            self._raw = (self._raw + octets)[:RAW_KEPT]
            self._done = self._start + RAW_KEPT + self._limit  # nothing more is kept
            return
        self._raw = b""
        self._state = REST
        frames.append(self._intake.cut(head, octets))

    def _close(self, frames: list[Frame], ended: bool, stop: i64) -> None:
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
            octets = body.getvalue()
            try:
                frames.append(intake.complete(head, octets, size, ended, self._start))
            except Refused as late:
                reply = intake.answer(late, raw)
                frames.append(intake.discarded(late, raw + octets[:RAW_KEPT], size, self._start, reply))
            return
        if state == SKIP and refused is not None:
            frames.append(intake.discarded(refused, raw, size, self._position, self._reply))
            self._reply = None
        if head is not None and head.kind == KIND_MESSAGE:
            intake.rest(head, ended, self._start)
