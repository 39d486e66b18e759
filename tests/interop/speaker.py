"""What clients of all protocols have in common for tests: one blocking face, and the wires below it.

A ``Speaker`` keeps every frame it hears until somebody wants it, so the order in which a test asks does not matter.
Each operation returns when the hub has answered it, or raises ``RefusedError`` with the protocol's own words.
"""

import itertools
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Protocol, Self, TypeVar

from websockets.exceptions import ConnectionClosed

from polywire.wire.frame import Frame
from tests.web import open_web

SECONDS = 20.0
TYPE_NAME = "dotnet-type"

HeaderValue = str | int | float | datetime
Handler = Callable[[str, bytes], bytes]
F = TypeVar("F")


class RefusedError(Exception):
    """The hub, or a service, said no: ``code`` as the protocol writes it, ``text`` its words, ``frame`` all of it."""

    def __init__(self, code: str, text: str = "", frame: Frame | None = None) -> None:
        super().__init__(f"{code} {text}")
        self.code, self.text, self.frame = code, text, frame


class FailureError(Exception):
    """What a handler raises to answer a call with an error; ``retry_after`` is in milliseconds.

    Without a tag UMQ has nothing but the text, and sABC only the code and the text.
    """

    def __init__(self, code: int, tag: str, text: str, retry_after: int = 0) -> None:
        super().__init__(text)
        self.code, self.tag, self.text, self.retry_after = code, tag, text, retry_after


class CannotSayError(Exception):
    """The protocol has no way to say this."""


class HungUpError(Exception):
    """The hub has closed the connection."""


@dataclass(frozen=True)
class Heard:
    """A message as a subscriber got it. ``retained``: it was marked so. ``channel`` is empty where it is not told."""

    channel: str
    body: bytes
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    content_type: str = ""
    attachments: tuple[bytes, ...] = ()
    retained: bool = False


class Wire(Protocol):
    """A connection to the hub."""

    def send(self, data: str | bytes) -> None: ...

    def receive(self) -> str | bytes: ...

    def close(self) -> None: ...


class StreamWire:
    """A byte stream: TCP, TLS or a Unix socket."""

    def __init__(self, address: str, trust: ssl.SSLContext | None = None) -> None:
        scheme, _, rest = address.partition(":")
        if scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(SECONDS)
            self._socket.connect(rest)
            return
        host, _, port = rest.removeprefix("//").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if trust is not None:
            self._socket = trust.wrap_socket(self._socket, server_hostname="localhost")

    def send(self, data: str | bytes) -> None:
        self._socket.sendall(data.encode() if isinstance(data, str) else data)

    def receive(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise HungUpError
        return data

    def close(self) -> None:
        self._socket.close()


class WebSocketWire:
    """A WebSocket by somebody else's implementation."""

    def __init__(self, address: str, subprotocol: str = "", trust: ssl.SSLContext | None = None) -> None:
        self._socket = open_web(address, trust, subprotocols=[subprotocol] if subprotocol else [])

    @property
    def subprotocol(self) -> str | None:
        return self._socket.subprotocol

    def send(self, data: str | bytes) -> None:
        self._socket.send(data)

    def receive(self) -> str | bytes:
        try:
            return self._socket.recv()
        except ConnectionClosed:
            raise HungUpError from None

    def close(self) -> None:
        self._socket.close()


class Speaker(ABC):
    """A client of one protocol. Channels are written as the hub does: ``*`` one level, ``**`` any number."""

    tells_channel: ClassVar[bool] = True
    has_rest: ClassVar[bool] = True

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._waiting: list[Frame] = []
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.wire.close()

    @abstractmethod
    def subscribe(self, pattern: str) -> None:
        """Hear what is published to a pattern, or take from ``queue/<name>``."""

    @abstractmethod
    def publish(
        self,
        channel: str,
        body: bytes,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        content_type: str = "",
        attachments: tuple[bytes, ...] = (),
        retain: bool = False,
    ) -> None:
        """Publish to a topic, or put into ``queue/<name>``."""

    @abstractmethod
    def receive(self, *, acknowledge: bool = True) -> Heard:
        """The next message of a subscription, acknowledged where the protocol does that and it is wanted."""

    def begin_call(self, service: str, method: str, body: bytes) -> object:
        """Call a service; what is returned is for ``end_call``."""
        raise CannotSayError(service, method, body)

    def end_call(self, ticket: object) -> bytes:
        """The reply. An error raises ``RefusedError``."""
        raise CannotSayError(ticket)

    def call(self, service: str, method: str, body: bytes) -> bytes:
        """Call a service that somebody else answers meanwhile, and wait for the reply."""
        return self.end_call(self.begin_call(service, method, body))

    def serve(self, service: str) -> None:
        """Offer a service."""
        raise CannotSayError(service)

    def answer(self, handler: Handler) -> None:
        """Wait for one call, and answer it with what the handler returns or raises (``FailureError``)."""
        raise CannotSayError(handler)

    @abstractmethod
    def _heard(self, data: str | bytes) -> list[Frame]:
        """The frames that this completes."""

    def _until(self, wanted: Callable[[Frame], F | None]) -> F:
        """The first frame that is wanted, now or later; the others stay."""
        at = 0
        while True:
            while at < len(self._waiting):
                found = wanted(self._waiting[at])
                if found is not None:
                    del self._waiting[at]
                    return found
                at += 1
            self._waiting += self._heard(self.wire.receive())
