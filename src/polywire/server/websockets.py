"""Connections that are WebSockets: one port, several paths.

``websockets`` does the opening handshake, ``wire/websocket.py`` reads and writes frames. Sessions frame their own
messages; for protocols that are byte streams (MQTT) everything of one turn becomes one binary message.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from websockets.datastructures import MultipleValuesError
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from polywire.hub.client import Counters
from polywire.server.address import Address
from polywire.server.endpoint import HIGH_WATER, Endpoint
from polywire.server.gate import Gate, Knock
from polywire.server.logs import Seldom
from polywire.wire.websocket import (
    BINARY,
    CLOSE,
    FAULT,
    INVALID_TEXT,
    MESSAGE_TOO_BIG,
    NORMAL,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    UNSUPPORTED_DATA,
    Reader,
    close,
    header,
)

SPARE = 64 * 1024
"""Bytes over the limit that are still read, so that the session can refuse the message with its protocol's error."""

UPGRADE = 16 * 1024
"""The largest request that may open a WebSocket, in bytes."""

END_OF_REQUEST = b"\r\n\r\n"
VERSION = "13"

FAULTS = {
    PROTOCOL_ERROR: "websocket-protocol",
    UNSUPPORTED_DATA: "websocket-kind",
    INVALID_TEXT: "websocket-text",
    MESSAGE_TOO_BIG: "websocket-size",
}

log = logging.getLogger("polywire.server")
quiet = logging.getLogger("polywire.server.websockets")  # ``websockets`` has a line for each connection
quiet.setLevel(logging.ERROR)

NO_TRANSPORT = cast("asyncio.Transport", None)
"""That of a protocol that has none yet, or no more: nothing is called on it then."""

MakeEndpoint = Callable[[], Endpoint]


def as_one_message(chunks: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Chunks of a byte stream as one binary message."""
    return [header(BINARY, sum(map(len, chunks))), *chunks]


@dataclass(frozen=True, slots=True)
class WebSocketPath:
    """The protocol of one path; on a ``stream`` message boundaries do not matter."""

    make_endpoint: MakeEndpoint
    counters: Counters
    subprotocol: str
    stream: bool


class Paths:
    """The WebSocket protocols on one port, by path, and what a request to open one is answered with."""

    def __init__(self, gate: Gate, address: Address) -> None:
        self._gate = gate
        self._address = address
        self._paths: dict[str, WebSocketPath] = {}
        self._refused = Seldom(log, gate.loop.time)

    def add(self, path: str, spoken: WebSocketPath) -> None:
        """Speak a protocol at a path."""
        self._paths[path] = spoken

    def answer(self, head: bytes, peer: str) -> tuple[WebSocketPath | None, bytes]:
        """The path a request opens, None if it is refused, and the response. ``head`` ends with an empty line."""
        path: WebSocketPath | None = None

        def subprotocol(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
            return next((each for each in offered if path is not None and each == path.subprotocol), None)

        opening = ServerProtocol(select_subprotocol=subprotocol, logger=quiet)
        opening.receive_data(head)
        events = opening.events_received()
        if not events:  # not HTTP, or a line of it is too long
            return None, _last_words(opening) or refusal(400, "this request does not open a WebSocket")
        request = cast("Request", events[0])
        path = self._paths.get(request.path.partition("?")[0])
        response = self._response(opening, request, path, peer)
        opening.send_response(response)
        return path if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS else None, _last_words(opening)

    def _response(self, opening: ServerProtocol, request: Request, path: WebSocketPath | None, peer: str) -> Response:
        name = request.path.partition("?")[0]
        if path is None:
            return opening.reject(404, f"no WebSocket endpoint at {name}; available: {', '.join(self._paths)}\n")
        try:
            host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        except MultipleValuesError:
            return opening.reject(400, "Host or Origin appears twice\n")
        # Browsers name the page's origin with every WebSocket, so a request without one is no page's.
        why = None if origin is None else self._gate.origin_problem(host, origin, self._address)
        if why is not None:
            path.counters.fault("origin")
            self._refused.warn("a WebSocket to %s from %s was refused: %s", name, peer, why)
            return opening.reject(403, f"{why}\n")
        if "Upgrade" not in request.headers:
            response = opening.reject(426, f"{name} is a WebSocket: use a WebSocket client, with ws:// or wss://\n")
            response.headers["Upgrade"] = "websocket"
            return response
        versions = request.headers.get_all("Sec-WebSocket-Version")
        if versions and versions != [VERSION]:
            response = opening.reject(426, f"only version {VERSION} of the WebSocket protocol is supported\n")
            response.headers["Upgrade"] = "websocket"
            response.headers["Sec-WebSocket-Version"] = VERSION
            return response
        return opening.accept(request)


def refusal(status: int, words: str) -> bytes:
    """The response to what is not a request for a WebSocket."""
    opening = ServerProtocol(logger=quiet)
    opening.send_response(opening.reject(status, f"{words}\n"))
    return _last_words(opening)


def _last_words(opening: ServerProtocol) -> bytes:
    """What a handshake says. Much of what it has leads back to it, and without that it is freed at once."""
    said = b"".join(opening.data_to_send())
    vars(opening).clear()
    return said


class WebSocketProtocol(asyncio.BufferedProtocol):
    """The event loop's side of an endpoint on a WebSocket. ``knock`` is that of a TLS handshake."""

    def __init__(self, gate: Gate, paths: Paths, knock: Knock | None = None) -> None:
        self._gate = gate
        self._paths = paths
        self._knock = knock
        self._transport = NO_TRANSPORT
        self._request = b""
        self._patience: asyncio.TimerHandle | None = None
        self._endpoint: Endpoint | None = None
        self._reader = Reader(0, masked=True)
        self._over = False
        limits = gate.limits
        # Bytes that may come before the login, -1 once it is done.
        self._before_login = min(limits.message_size_before_auth, limits.message_size) + SPARE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer that wants to open a WebSocket, perhaps."""
        self._transport = cast("asyncio.Transport", transport)
        self._knock = self._knock or self._gate.knock()
        if self._knock is None:
            self._over = True
            self._transport.abort()
        else:
            self._patience = self._gate.loop.call_later(self._gate.handshake_time, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        """The connection has ended."""
        self._handshake_done()
        if self._endpoint is not None:
            self._endpoint.closed()
        self._transport = NO_TRANSPORT  # that of TLS keeps its protocol

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        if self._endpoint is not None:
            self._endpoint.outbox.stall()

    def resume_writing(self) -> None:
        """The transport has room again."""
        if self._endpoint is not None:
            self._endpoint.outbox.drain()

    def get_buffer(self, sizehint: int) -> memoryview:
        """What the next bytes from the peer are read into."""
        return self._gate.little_buffer if self._endpoint is None else self._endpoint.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes from the peer."""
        endpoint = self._endpoint
        self._received(self._gate.buffer[:nbytes].tobytes() if endpoint is None else endpoint.take(nbytes))

    def _received(self, data: bytes) -> None:
        """Its request, then frames."""
        endpoint = self._endpoint
        if endpoint is None:
            self._shake_hands(data)
            return
        if self._over or endpoint.is_closing:
            return
        for kind, payload in self._reader.feed(data):
            if kind == TEXT:
                try:
                    text = payload.decode()
                except UnicodeDecodeError:
                    self._refuse(endpoint, INVALID_TEXT, b"a text message that is not UTF-8")
                    return
                endpoint.deliver(text)
            elif kind == BINARY:
                endpoint.deliver(payload)
            else:
                self._control(endpoint, kind, payload)
        if self._before_login >= 0:
            self._look_at_login(endpoint, len(data))
        if not self._over:
            endpoint.hold(self._reader.pending())

    def _shake_hands(self, data: bytes) -> None:
        """Read the request, and answer it once it is complete."""
        if self._over:
            return
        self._request += data
        head, end, rest = self._request.partition(END_OF_REQUEST)
        if len(head) > UPGRADE:
            self._hang_up(refusal(431, f"the request that opens a WebSocket has more than {UPGRADE} bytes"))
            return
        if not end:
            return
        self._request = b""
        self._handshake_done()
        peer = self._transport.get_extra_info("peername")
        path, response = self._paths.answer(head + end, str(peer[0]) if peer else "unix")
        if path is None:
            self._hang_up(response)
            return
        self._transport.write(response)
        self._reader = Reader(self._gate.limits.message_size + SPARE, masked=True, stream=path.stream)
        self._endpoint = path.make_endpoint()
        self._endpoint.opened(self._transport, close(NORMAL), close(MESSAGE_TOO_BIG))
        if rest:
            self._received(rest)

    def _hang_up(self, response: bytes) -> None:
        self._over = True
        self._handshake_done()
        self._transport.write(response)
        self._transport.close()

    def _handshake_done(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._knock is not None:
            self._knock.done()

    def _control(self, endpoint: Endpoint, kind: int, payload: bytes) -> None:
        if endpoint.is_closing:  # a closing frame is sent once
            return
        if kind == PING:
            # Who pings and does not read is not answered: the answers would pile up.
            if self._transport.get_write_buffer_size() < HIGH_WATER:
                self._transport.write(header(PONG, len(payload)) + payload)
        elif kind == CLOSE:
            self._over = True
            endpoint.close(close(int.from_bytes(payload[:2], "big") or NORMAL))
        elif kind == FAULT:
            self._refuse(endpoint, int.from_bytes(payload[:2], "big"), payload[2:])

    def _look_at_login(self, endpoint: Endpoint, size: int) -> None:
        """Before the login no more bytes are taken than a login has."""
        if endpoint.is_established:
            self._before_login = -1
            return
        self._before_login -= size
        if self._before_login < 0 and not endpoint.is_closing:
            self._refuse(endpoint, MESSAGE_TOO_BIG, b"too much before the login")

    def _refuse(self, endpoint: Endpoint, code: int, words: bytes) -> None:
        """Say what is wrong, and hang up."""
        self._over = True
        if endpoint.is_closing:
            return
        if code == MESSAGE_TOO_BIG:
            endpoint.too_big()
        endpoint.broke(FAULTS[code])
        if code == MESSAGE_TOO_BIG:
            endpoint.linger(close(code, words))
        else:
            endpoint.close(close(code, words))
