"""sABC's frames where the transport keeps messages apart, such as WebSocket: one message is one frame (SABC-73)."""

from typing import final

from mypy_extensions import i64

from polywire.protocols.sabc.bodies import TERMINATOR
from polywire.protocols.sabc.commands import Message
from polywire.protocols.sabc.errors import MALFORMED, Refused, RemoteProtocolError
from polywire.protocols.sabc.head import KIND_ERROR, KIND_MESSAGE, Head, line_offset, plain_message
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
from polywire.wire.frame import Frame


@final
class MessageDecoder:
    """Turns the messages of a message transport, such as WebSocket, into frames: one is one (SABC-73).

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
        """Nothing is ever held: a message is a whole frame."""
        return 0

    def finish(self) -> list[Frame]:
        """The connection has ended; no frame is ever cut."""
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
        blank: i64 = raw.find(BLANK, 0, intake.max_head)
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
            top = raw[:blank] + BLANK
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
        """The short way for a whole message in one frame, or None: it is none."""
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
            raise Refused(MALFORMED, "SABC-73", f"{size - found - NULL_PORTION} octets follow the null portion")
        stop = found if ended else size
        stop = max(stop, body_at)
        if size <= body_at and not head.more:
            ended = True  # SABC-132: where there is no body, the end of the message is the end of the frame
        allowance = intake.allowance(head)
        if allowance < 0:
            intake.rest(head, ended, 0)
            raise of_dropped_message()
        if intake.too_large_a_head(head, blank, allowance):
            intake.rest(head, ended, 0)
            raise head_over_limit(blank, intake.max_message)
        if size <= allowance:
            return [intake.complete(head, raw[body_at:stop], size, ended, 0)]
        if head.kind == KIND_ERROR:
            raise error_too_large(intake.max_message)
        stop = min(stop, allowance)
        frame = intake.cut(head, raw[body_at:stop] if stop > body_at else b"")
        intake.rest(head, ended, 0)
        return [frame]
