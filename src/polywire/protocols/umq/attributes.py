"""The attributes the other side has set on this connection (UMQ-108).

An attribute counts from its ``S`` on; the attachments that are part of its value fill in as they arrive.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from polywire.protocols.umq.errors import FatalCode, RemoteProtocolError
from polywire.protocols.umq.frames import Attachment, AttachmentError, SetAttribute, UnsetAttribute, violation

MAX_ATTRIBUTES: Final = 256
MAX_SIZE: Final = 1024 * 1024


class Attribute:
    """A value: its text, and its attachments: None where not there yet, the error where one could not be sent."""

    __slots__ = ("_attachments", "due", "ordinal", "value")

    def __init__(self, value: str, attachments: int, ordinal: int) -> None:
        self.value: Final = value
        self.ordinal: Final = ordinal
        self.due = attachments
        self._attachments: list[bytes | AttachmentError | None] = [None] * attachments

    @property
    def attachments(self) -> tuple[bytes | AttachmentError | None, ...]:
        """The attachments in order."""
        return tuple(self._attachments)

    def __repr__(self) -> str:
        return f"Attribute({self.value!r}, {len(self._attachments)} attachments)"

    @property
    def complete(self) -> bool:
        """Whether all attachments are there, and none has failed."""
        return all(isinstance(one, bytes) for one in self._attachments)

    def fill(self, frame: Attachment | AttachmentError) -> None:
        """Put what arrived into its place."""
        self.due -= 1
        self._attachments[frame.index] = frame.body if isinstance(frame, Attachment) else frame


class Attributes(Mapping[str, Attribute]):
    """The peer's attributes by name: at most ``limit`` of them, and ``max_size`` characters and bytes in all.

    ``view`` is the same for those who only read.
    """

    def __init__(self, *, limit: int = MAX_ATTRIBUTES, max_size: int = MAX_SIZE) -> None:
        self.limit: Final = limit
        self.max_size: Final = max_size
        self.size = 0
        self._named: dict[str, Attribute] = {}
        self._waiting: dict[int, str] = {}
        self.view: Final[Mapping[str, Attribute]] = MappingProxyType(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __getitem__(self, name: str) -> Attribute:
        return self._named[name]

    def set(self, frame: SetAttribute) -> None:
        """Note an ``S``. The new value replaces the old one, whose missing attachments are no longer waited for."""
        known = self._named.get(frame.name)
        if known is None and len(self._named) >= self.limit:
            raise _too_much(f"more than {self.limit} attributes")
        before = 0 if known is None else _size(frame.name, known)
        # An attachment that is due takes room as well, so that announcing is not free.
        self._grow(len(frame.name) + len(frame.value) + frame.attachments - before)
        if known is not None:
            self._waiting.pop(known.ordinal, None)
        self._named[frame.name] = Attribute(frame.value, frame.attachments, frame.ordinal)
        if frame.attachments:
            self._waiting[frame.ordinal] = frame.name

    def unset(self, frame: UnsetAttribute) -> None:
        """Note an ``X``; one for an attribute that is not set changes nothing."""
        known = self._named.pop(frame.name, None)
        if known is not None:
            self.size -= _size(frame.name, known)
            self._waiting.pop(known.ordinal, None)

    def fill(self, frame: Attachment | AttachmentError) -> bool:
        """Take an attachment that is part of a value. False: it belongs to another message, or a replaced value."""
        name = self._waiting.get(frame.owner)
        if name is None:
            return False
        attribute = self._named[name]
        self._grow(_size_of(frame.body if isinstance(frame, Attachment) else frame) - 1)
        attribute.fill(frame)
        if attribute.due == 0:
            del self._waiting[frame.owner]
        return True

    def _grow(self, growth: int) -> None:
        if self.size + growth > self.max_size:
            raise _too_much(f"attributes of more than {self.max_size} characters and octets in all")
        self.size += growth


def _size_of(attachment: bytes | AttachmentError | None) -> int:
    if attachment is None:
        return 1
    return len(attachment) if isinstance(attachment, bytes) else len(attachment.message)


def _size(name: str, attribute: Attribute) -> int:
    return len(name) + len(attribute.value) + sum(map(_size_of, attribute.attachments))


def _too_much(reason: str) -> RemoteProtocolError:
    return violation(FatalCode.LIMIT_EXCEEDED, reason, "UMQ-136")
