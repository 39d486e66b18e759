"""Messages that wait for their attachments. Those behind them don't wait (UMQ-90).

Attachments come in the order of the messages that announced them, so only the oldest message ever holds some; the
others hold their text. All of it together is bounded.
"""

from typing import Final, final

from mypy_extensions import i64

from polywire.hub.message import Attached, FailedAttachment
from polywire.hub.services import Call
from polywire.protocols.umq.errors import FatalCode, MethodError
from polywire.protocols.umq.frames import Attachment, AttachmentError
from polywire.protocols.umq.methods import Body, CallService, Publish


@final
class Unfinished:
    """A request of the peer (``call_id`` and ``method``), or its answer (``body``) to a ``call`` of its service.

    ``problem`` is the limit that was passed.
    """

    def __init__(
        self,
        attachments: int,
        size: int,
        *,
        call_id: int = 0,
        method: Publish | CallService | None = None,
        call: Call | None = None,
        body: Body | None = None,
    ) -> None:
        self.call_id: Final = call_id
        self.method: Final = method
        self.call: Final = call
        self.body: Final = body
        self.due: i64 = attachments
        self.size: i64 = size
        self.attachments: Final[list[Attached]] = []
        self.problem: MethodError | None = None


@final
class Gathering:
    """The unfinished messages of one connection. ``limit``: characters and octets in all."""

    def __init__(self, limit: int) -> None:
        self._limit: i64 = limit
        self._held: i64 = 0
        self._waiting: Final[dict[int, Unfinished]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def held(self) -> int:
        """How much is held."""
        return self._held

    def add(self, ordinal: int, message: Unfinished) -> bool:
        """Let a message wait. False, and its ``problem`` is set, where there is no room."""
        if self._held + message.size > self._limit:
            message.problem = self._too_much()
            return False
        self._held += message.size
        self._waiting[ordinal] = message
        return True

    def take(self, frame: Attachment | AttachmentError) -> Unfinished | None:
        """Give an attachment to its message. Returns the message where nothing more is to be waited for.

        An attachment of a message that does not wait is passed over.
        """
        message = self._waiting.get(frame.owner)
        if message is None:
            return None
        message.due -= 1
        attachment: Attached
        size: i64
        if isinstance(frame, AttachmentError):
            attachment, size = FailedAttachment(frame.message), len(frame.message)  # UMQ-154: it fails nothing else
        else:
            attachment, size = frame.body, len(frame.body)
        if self._held + size > self._limit:
            message.problem = self._too_much()
        else:
            self._held += size
            message.size += size
            message.attachments.append(attachment)
        if message.due > 0 and message.problem is None:
            return None
        del self._waiting[frame.owner]
        self._held -= message.size
        return message

    def clear(self) -> None:
        """Forget all of them."""
        self._waiting.clear()
        self._held = 0

    def _too_much(self) -> MethodError:
        reason = f"messages that wait for attachments hold more than {self._limit} octets"
        return MethodError(reason, rule="UMQ-151", code=FatalCode.LIMIT_EXCEEDED)


def assembled(body: Body | None, attachments: tuple[Attached, ...]) -> tuple[bytes, tuple[Attached, ...], bool]:
    """A body's bytes, the attachments beside it (UMQ-121), and whether the body was an attachment that failed."""
    if body is not None and body.data is not None:
        return body.data, attachments, False
    first = attachments[0]
    if isinstance(first, bytes):
        return first, attachments[1:], False
    return b"", attachments, True
