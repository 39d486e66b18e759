"""A message as the one face over all protocols shows it."""

import datetime as dt
import json as json_module
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from polywire.client.errors import AttachmentFailed

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A value as JSON, with its content type. Made by ``polywire.json``."""

    data: bytes
    content_type: str = JSON


Header = str | int | float | dt.datetime
Body = bytes | bytearray | memoryview | str | JsonBody
"""What can be sent: text (as UTF-8), anything bytes-like, or a value through ``polywire.json``."""

NO_HEADERS: Mapping[str, Header] = {}


@dataclass(frozen=True, slots=True)
class Message:
    """What came from a topic or a queue, or as the answer to a call.

    ``headers`` and ``content_type`` are what the protocol carries of them. ``retain``: the peer keeps it for later
    subscribers, where the protocol tells. An attachment that failed is there as its error. ``timestamp`` is when the
    hub received it, None where the protocol does not carry that: only UMQ does.
    """

    channel: str
    body: bytes
    headers: Mapping[str, Header] = field(default_factory=lambda: NO_HEADERS)
    content_type: str | None = None
    retain: bool = False
    attachments: tuple[bytes | AttachmentFailed, ...] = ()
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    timestamp: dt.datetime | None = None

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as the JSON it is."""
        return json_module.loads(self.body)

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
        return json_module.loads(self.body)


@dataclass(frozen=True, slots=True)
class Demand:
    """How many subscribers a topic has."""

    channel: str
    subscribers: int


def json(value: Any) -> JsonBody:
    """A value as a JSON body, for ``publish``, ``put``, ``call`` and what a service returns.

    Its content type is ``application/json``, where the protocol carries one. Raises ``TypeError`` for a value that JSON
    has no form for, ``ValueError`` for NaN and infinities.
    """
    return JsonBody(json_module.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def octets(body: object, name: str = "body") -> bytes:
    """A body as the bytes that are sent: a text is its UTF-8. ``TypeError``, with the argument's name, for the rest."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, JsonBody):
        return body.data
    try:
        return bytes(memoryview(body))  # type: ignore[arg-type] # which is what is found out here
    except TypeError:
        hint = "use polywire.json(value) to send it as JSON, str(value) to send it as text"
        raise TypeError(f"{name} must be str or bytes-like, not {type(body).__name__}; {hint}") from None
