"""What both decoders do with a frame once they know where it ends: check it against the session, and count it.

The byte-stream decoder and the message decoder differ only in how they find a frame's end; the rest is here.
"""

from typing import Final, final

from mypy_extensions import i64

from polywire.protocols.sabc.bodies import boundary_mark, from_base64
from polywire.protocols.sabc.commands import Error, Message
from polywire.protocols.sabc.errors import LIMIT, MALFORMED, UNAUTHORIZED, Refused, RemoteProtocolError
from polywire.protocols.sabc.head import (
    KIND_CONNECT,
    KIND_CONNECTED,
    KIND_ERROR,
    KIND_MESSAGE,
    Head,
    line_offset,
    parse_head,
    readable_msg_id,
    shown,
)
from polywire.protocols.sabc.headers import BASE64, COMMANDS, CONTENT_ENCODING, TRUNCATED, YES, header, without
from polywire.protocols.sabc.unfinished import Unfinished
from polywire.wire.frame import RAW_KEPT, Discarded, Frame

MAX_MESSAGE: Final = 16 * 1024 * 1024
MAX_HEAD: Final = 16 * 1024
MAX_HEADERS: Final = 100
MAX_UNFINISHED: Final = 64  # SABC-108
MAX_DROPPED: Final = 1024
LEAST_HEAD: Final = 512

BLANK: Final = b"\r\n\r\n"  # SABC-09
NULL_PORTION: Final = 5
"""Octets of the blank line and NUL that end a message."""

SILENT: Final = ""
"""The code of a refusal that is not answered."""

# Longest first, because the octets before a session id that end in DISCONNECT also end in CONNECT.
COMMAND_OCTETS: Final = tuple(sorted([command.encode() for command in COMMANDS], key=len, reverse=True))


def error_reply(code: str, reason: str, session_id: str | None = None, ref_msg_id: str | None = None) -> Error:
    """The ERROR frame that tells a peer what was wrong (SABC-67)."""
    return Error(code, reason.encode(errors="replace"), session_id, ref_msg_id)


def head_too_long(limit: i64) -> Refused:
    """SABC-120."""
    return Refused(LIMIT, "SABC-120", f"the frame's head is longer than the {limit} octets allowed")


def head_over_limit(size: i64, limit: i64) -> Refused:
    """SABC-133."""
    reason = f"the command and headers have {size} bytes, more than the {limit} allowed for the whole message"
    return Refused(MALFORMED, "SABC-133", reason)


def of_dropped_message() -> Refused:
    """SABC-104."""
    return Refused(SILENT, "SABC-104", "the frame belongs to a message that is being dropped")


def error_too_large(limit: i64) -> Refused:
    """SABC-130."""
    return Refused(SILENT, "SABC-130", f"the ERROR frame is larger than the {limit} octets allowed")


@final
class Intake:
    """The session's side of decoding.

    ``mark`` is what follows a command where a frame of this session begins, ``prefix`` how its messages begin.
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
        """From the next frame on these are the limits."""
        if max_head < LEAST_HEAD:
            raise ValueError(f"max_head is {max_head}, it must be at least {LEAST_HEAD}")
        self.max_message = max_message
        self.max_head = max_head
        self.unfinished.max_message = max_message

    def begin(self) -> None:
        """More is to be read: forget what was given up before."""
        self.check()
        if self.given_up:
            self.given_up = []

    def check(self) -> None:
        """Raise again what made it impossible to read on, if there was such a thing."""
        error = self.failed
        if error is not None:
            raise RemoteProtocolError(error.reason, rule=error.rule, position=error.position, reply=error.reply)

    def failure(self, error: RemoteProtocolError, frames: list[Frame]) -> RemoteProtocolError:
        """From here on nothing can be read. Returns what to raise, with the frames that were whole before it."""
        self.failed = error
        return RemoteProtocolError(
            error.reason, rule=error.rule, position=error.position, reply=error.reply, frames=frames
        )

    def name_session(self, session_id: str) -> None:
        """From here on this is the session's id."""
        self.session_id = session_id
        self.own = session_id
        self.mark = boundary_mark(session_id) + b"\r\n"
        self.prefix = b"MESSAGE" + self.mark
        self.boundaries = tuple([command + self.mark for command in COMMAND_OCTETS])

    @property
    def ready(self) -> bool:
        """Whether the session has an id and no message is unfinished: most frames are whole messages then."""
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
            for command in COMMAND_OCTETS:
                begin: i64 = at - i64(len(command))
                if begin >= 0 and chunk[begin:at] == command:
                    if begin >= low:
                        return begin
                    break
            at = chunk.find(mark, at + 1, high)
        return -1

    def head(self, raw: bytes) -> Head:
        """The head with these octets, without its empty line, checked against the session. Raises ``Refused``."""
        head = parse_head(raw, self.max_headers)
        own = self.session_id
        kind = head.kind
        if own is not None and head.session_id is not None and kind != KIND_CONNECTED and head.session_id != own:
            raise Refused(UNAUTHORIZED, "SABC-90", f"session-id {shown(head.session_id)} is not this session's")
        return head

    def bodyless(self, head: Head) -> Frame:
        """The frame of a command without body. A session begins with one."""
        if head.kind == KIND_CONNECT:
            self.opened = True
        elif head.kind == KIND_CONNECTED and self.session_id is None and head.session_id is not None:
            self.opened = True
            self.name_session(head.session_id)
        return head.bodyless()

    def allowance(self, head: Head) -> i64:
        """How many octets this frame may have; negative: it belongs to a message that is being dropped."""
        if head.kind != KIND_MESSAGE or self.unfinished.idle():
            return self.max_message
        return self.unfinished.allowance(head.key())

    def too_large_a_head(self, head: Head, size: i64, allowance: i64) -> bool:
        """SABC-133: whether the command and headers alone are over the size limit, so that not even they were read.

        A message of which frames were read before has something to deliver, and is truncated instead.
        """
        return size > allowance and head.kind == KIND_MESSAGE and allowance == self.max_message

    def complete(self, head: Head, body: bytes, size: i64, ended: bool, position: i64) -> Frame:
        """The frame, all of it there and within its allowance. Raises ``Refused`` where its end is wrong."""
        if head.kind == KIND_ERROR:
            if not ended:
                raise Refused(SILENT, "SABC-64", "the ERROR frame has no null portion")
            return self._error(head, body)
        if ended:
            if not self.unfinished.idle():
                self.unfinished.end(head.key())
            return head.message(body, False)
        if not head.more:
            raise Refused(MALFORMED, "SABC-106", "the frame has neither a null portion nor msg-more::yes")
        key = head.key()
        if self.unfinished.too_much(size):
            self._drop(key, position)
            self.given_up.append(key)
            raise Refused(LIMIT, "SABC-131", f"all unfinished messages have more than {2 * self.max_message} octets")
        if not self.unfinished.grow(key, size):
            self._drop(key, position)
            most = self.unfinished.max_unfinished
            raise Refused(LIMIT, "SABC-108", f"{most} messages are unfinished already, more are not allowed")
        return head.message(body, True)

    def cut(self, head: Head, body: bytes) -> Message:
        """The last frame of a message that has reached the size limit (SABC-103)."""
        self.cuts += 1
        head.headers = (*without(head.headers, TRUNCATED), (TRUNCATED, YES))
        return head.message(body, False)

    def rest(self, head: Head, ended: bool, position: i64) -> None:
        """A frame of a message that is being dropped has come to its end (SABC-104)."""
        key = head.key()
        if ended or not head.more:
            self.unfinished.end(key)
        else:
            self._drop(key, position)

    def answer(self, refused: Refused, raw: bytes) -> Error | None:
        """What a refused frame with the head ``raw`` is answered with (SABC-127); an ERROR with nothing (SABC-123)."""
        if refused.code == SILENT or raw.startswith(b"ERROR\r\n"):
            return None
        session_id = self.session_id if self.opened else None
        return error_reply(refused.code, refused.reason, session_id, readable_msg_id(raw))

    def refuse_connect(self, refused: Refused, raw: bytes, position: i64) -> None:
        """Raise where the refused frame is the CONNECT that should have opened the session (SABC-96)."""
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
