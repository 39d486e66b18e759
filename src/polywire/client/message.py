"""A message as the one face over all protocols shows it."""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polywire.client.errors import AttachmentFailed

Header = str | int | float | dt.datetime
Body = bytes | bytearray | memoryview | str

NO_HEADERS: Mapping[str, Header] = {}


@dataclass(frozen=True, slots=True)
class Message:
    """What came from a topic or a queue, or as the answer to a call.

    ``headers`` and ``content_type`` are what the protocol carries of them. ``retain``: the peer keeps it for later
    subscribers, where the protocol tells. An attachment that failed is there as its error.
    """

    channel: str
    body: bytes
    headers: Mapping[str, Header] = field(default_factory=lambda: NO_HEADERS)
    content_type: str | None = None
    retain: bool = False
    attachments: tuple[bytes | AttachmentFailed, ...] = ()
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as the JSON it is."""
        return json.loads(self.body)

    def ack(self) -> None:
        """This message of a queue is done: nobody else gets it. Asking for the next one does the same."""
        if self.acknowledge is not None:
            self.acknowledge()


@dataclass(frozen=True, slots=True)
class Request:
    """A call that came to a service of ours."""

    service: str
    method: str
    body: bytes
    headers: Mapping[str, Header] = field(default_factory=lambda: NO_HEADERS)
    content_type: str | None = None

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as the JSON it is."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Demand:
    """How many subscribers a topic has."""

    channel: str
    subscribers: int


def octets(body: Body) -> bytes:
    """A body as the octets that are sent: a text is its UTF-8."""
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else bytes(body)
