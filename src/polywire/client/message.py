"""A message as the one face over all protocols shows it."""

import datetime as dt
import json as json_module
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
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

DELIVERIES: Final = "polywire-deliveries"
"""The header with which the hub says how often it has delivered a queue's message, from the second time on."""


@dataclass(frozen=True, slots=True)
class Message:
    """What came from a topic or a queue, or as the answer to a call.

    ``headers`` and ``content_type`` are what the protocol carries of them. ``retain``: the peer keeps it for later
    subscribers, where the protocol tells. An attachment that failed is there as its error. ``timestamp`` is when the
    hub received it, None where the protocol does not carry that: only UMQ does. ``deliveries`` says how often a queue
    has handed the message out, 1 the first time; None for topics, and over FMQP and MQTT, which do not carry it.
    """

    channel: str
    body: bytes
    headers: Mapping[str, Header] = field(default_factory=lambda: NO_HEADERS)
    content_type: str | None = None
    retain: bool = False
    attachments: tuple[bytes | AttachmentFailed, ...] = ()
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    timestamp: dt.datetime | None = None
    deliveries: int | None = None
    reject: Callable[[float, str], None] | None = field(default=None, repr=False, compare=False)

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

    def nack(self, delay: float = 0.0, reason: str = "") -> None:
        """This message of a queue could not be handled: the queue delivers it again, or gives it up as its policy says.

        It is not delivered again before ``delay`` seconds have passed. ``reason`` goes with the message where it is
        given up. After ``ack`` it does nothing. Raises ``Unsupported`` where the protocol can't reject messages.
        """
        if not (isfinite(delay) and delay >= 0):
            raise ValueError(f"delay is {delay}, and must be a number of seconds, 0 or more")
        if self.reject is not None:
            self.reject(delay, reason)


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


def delivery_count(headers: dict[str, Header]) -> int:
    """How often a queue's message was delivered, taken out of its headers."""
    told = headers.pop(DELIVERIES, 1)
    try:
        return max(1, int(told)) if isinstance(told, int | float | str) else 1
    except (ValueError, OverflowError):
        return 1


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
