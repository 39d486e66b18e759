"""Frames of messages to whole messages: joined by their id, however they interleave, base64 undone.

Stands behind the decoder, which has already counted: no more messages are unfinished than allowed, and a message that
reached its size limit ends there with a frame marked ``truncated``.
"""

from typing import ClassVar, Final, final

from librt.strings import BytesWriter
from mypy_extensions import mypyc_attr

from polywire.protocols.sabc.bodies import from_base64
from polywire.protocols.sabc.commands import Message
from polywire.protocols.sabc.errors import MALFORMED
from polywire.protocols.sabc.headers import BASE64, CONTENT_ENCODING, TRUNCATED, YES, Header, header, without
from polywire.protocols.sabc.intake import error_reply
from polywire.wire.frame import RAW_KEPT, Discarded, Frame


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
class Pieces:
    """The frames of one unfinished message: the first one, and all bodies so far."""

    def __init__(self, first: Message) -> None:
        self.first: Final = first
        self.body: Final = BytesWriter()
        self.body.write(first.body)


@final
class Assembly:
    """The unfinished messages of one session."""

    def __init__(self) -> None:
        self._unfinished: dict[str, Pieces] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def pending(self) -> int:
        """How many octets of bodies are held."""
        held = 0
        for pieces in self._unfinished.values():
            held += len(pieces.body)
        return held

    def add(self, frame: Message) -> Whole | Discarded | None:
        """The message that ``frame`` completes, or None where more is to come."""
        if not frame.more and not self._unfinished:
            return _whole(frame, frame.body, frame.truncated)
        key = frame.key()
        pieces = self._unfinished.get(key)
        if pieces is not None:
            pieces.body.write(frame.body)
        elif frame.more:
            self._unfinished[key] = Pieces(frame)
        if frame.more:
            return None
        if pieces is None:
            return _whole(frame, frame.body, frame.truncated)
        del self._unfinished[key]
        return _whole(pieces.first, pieces.body.getvalue(), frame.truncated or pieces.first.truncated)

    def forget(self, key: str) -> None:
        """The decoder has given this message up (SABC-131)."""
        self._unfinished.pop(key, None)


def _whole(first: Message, body: bytes, truncated: bool) -> Whole | Discarded:
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
