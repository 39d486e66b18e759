"""A message on its way through the hub.

It is created once, independent of its protocol, and encoded at most once per form it is sent in: the first to encode it
leaves the result in ``encoded`` for the others.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

SHOWN: Final = 40
"""Bytes of a body that are shown of a message."""


@final
@mypyc_attr(acyclic=True)
class Date:
    """A header's point in time: seconds since 1970, UTC."""

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Date) and self.seconds == other.seconds

    def __hash__(self) -> int:
        return hash(self.seconds)

    def __repr__(self) -> str:
        return f"Date({self.seconds!r})"


@final
@mypyc_attr(acyclic=True)
class FailedAttachment:
    """Takes the place of an attachment that its sender could not deliver; ``text`` is the sender's reason."""

    def __init__(self, text: str) -> None:
        self.text: Final = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FailedAttachment) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"FailedAttachment({self.text!r})"


Attached = bytes | FailedAttachment
HeaderValue = str | int | float | Date
Headers = tuple[tuple[str, HeaderValue], ...]


@final
@mypyc_attr(acyclic=True)
class Message:
    """What is published, queued or sent with a call. ``time`` is in nanoseconds since 1970; ``origin`` a connection.

    ``qos`` is the delivery guarantee its publisher asked for, as in MQTT: 0 at most once, 1 at least once, 2
    exactly once. Publishers of other protocols leave it to the subscriber, so theirs is the highest.
    ``body_failed``: the body was to be the first attachment, which failed. ``body`` is empty then, and the failure
    comes first in ``attachments``. Only receivers with ``takes_failed_body`` get such a message.
    ``binary``: its publisher marked the body as binary, though it may be UTF-8. Otherwise it is text if it is UTF-8.
    ``offset`` is its row in the journal, -1 where it has none.
    ``encoded`` belongs to the encoders: one slot for each form the message may be sent in.
    """

    def __init__(
        self,
        channel: str,
        body: bytes,
        content_type: str = "",
        headers: Headers = (),
        attachments: tuple[Attached, ...] = (),
        retain: bool = False,
        time: int = 0,
        origin: int = 0,
        qos: int = 2,
        body_failed: bool = False,
        binary: bool = False,
    ) -> None:
        self.channel: Final = channel
        self.body: Final = body
        self.content_type: Final = content_type
        self.headers: Final = headers
        self.attachments: Final = attachments
        self.retain: Final = retain
        self.time: Final = time
        self.origin: Final = origin
        self.qos: Final = qos
        self.body_failed: Final = body_failed
        self.binary: Final = binary
        self.offset: i64 = -1
        self._encoded: dict[int, object] | None = None

    @property
    def encoded(self) -> dict[int, object]:
        """The forms it has been encoded in so far. Made when it is asked for: many messages never need it."""
        found = self._encoded
        if found is None:
            found = {}
            self._encoded = found
        return found

    def forget_encoded(self) -> None:
        """Nobody needs them any more."""
        self._encoded = None

    def unretained(self) -> "Message":
        """The same message, not to be retained."""
        return Message(
            self.channel,
            self.body,
            self.content_type,
            self.headers,
            self.attachments,
            retain=False,
            time=self.time,
            origin=self.origin,
            qos=self.qos,
            body_failed=self.body_failed,
            binary=self.binary,
        )

    def with_headers(self, without: tuple[str, ...], added: Headers, channel: str = "", time: int = -1) -> "Message":
        """The same message without some headers and with others; ``channel`` and ``time`` replace its own if given."""
        kept = [pair for pair in self.headers if pair[0] not in without]
        return Message(
            channel or self.channel,
            self.body,
            self.content_type,
            (*kept, *added),
            self.attachments,
            self.retain,
            self.time if time < 0 else time,
            self.origin,
            self.qos,
            body_failed=self.body_failed,
            binary=self.binary,
        )

    def again(self) -> "Message":
        """The same message for another delivery: what is encoded for that is not kept with this one."""
        message = Message(
            self.channel,
            self.body,
            self.content_type,
            self.headers,
            self.attachments,
            self.retain,
            self.time,
            self.origin,
            self.qos,
            body_failed=self.body_failed,
            binary=self.binary,
        )
        message.offset = self.offset
        if self._encoded is not None:
            message.encoded.update(self._encoded)
        return message

    def header(self, name: str) -> HeaderValue | None:
        """The value of a header, or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def size(self) -> int:
        """Roughly how many bytes it takes: the body, the attachments, the headers' texts."""
        total = len(self.channel) + len(self.body)
        for attachment in self.attachments:
            total += len(attachment) if isinstance(attachment, bytes) else len(attachment.text)
        for key, value in self.headers:
            total += len(key) + (len(value) if isinstance(value, str) else 8)
        return total

    def __repr__(self) -> str:
        return f"Message({self.channel!r}, {self.body[:SHOWN]!r}{'…' if len(self.body) > SHOWN else ''})"
