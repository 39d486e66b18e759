"""Links that are WebSockets, on either side.

``websockets`` does the opening handshake, ``wire/websocket.py`` reads and writes frames. All frames of a turn are
written at once. A client's are masked (RFC 6455, 5.3), with keys from the system's generator, which is asked for many
at a time.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from polywire.client.errors import ClientError
from polywire.client.link import CLOSE_TIME, Link, Receiver, SaysTooBig
from polywire.wire.websocket import (
    BINARY,
    CLOSE,
    FAULT,
    INVALID_TEXT,
    MESSAGE_TOO_BIG,
    NORMAL,
    PING,
    PONG,
    TEXT,
    Reader,
    header,
    masked,
)

KEYS: Final = 1024
"""How many masking keys are made at once."""

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""Bytes a message may have by default."""

MAX_HEAD: Final = 64 * 1024
"""Bytes a request or a response of the opening handshake may have."""

END_OF_HEAD: Final = b"\r\n\r\n"
GOING_AWAY: Final = 1001

quiet = logging.getLogger("polywire.client.websocket")
quiet.setLevel(logging.CRITICAL)  # what goes wrong is raised


class WebSocketError(ClientError):
    """The peer broke a rule of WebSockets, or closed with a code that says something is wrong. ``code`` is that one."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(f"{reason} (WebSocket {code})")
        self.code = code


class HandshakeError(ClientError):
    """The peer did not open a WebSocket."""


class Opening:
    """One side's opening handshake. ``write`` is what to send, ``opened`` and ``error`` how it ended."""

    def __init__(self) -> None:
        self.write = b""
        self.opened = False
        self.error: HandshakeError | None = None
        self._received = b""

    def receive(self, data: bytes) -> bytes:
        """Read what the peer sends. Returns what came after the handshake."""
        self._received += data
        head, end, rest = self._received.partition(END_OF_HEAD)
        if len(head) > MAX_HEAD:
            self.error = HandshakeError(f"the head of an HTTP message has more than {MAX_HEAD} bytes")
        elif end:
            self._received = b""
            self._head(head + end, rest)
        return rest if self.opened else b""

    def receive_end(self) -> None:
        """The peer sends nothing more."""
        self.error = self.error or HandshakeError("the peer closed the connection")

    def _head(self, head: bytes, rest: bytes) -> None:
        raise NotImplementedError


class ClientOpening(Opening):
    """The client's handshake."""

    def __init__(self, url: str, subprotocol: str | None) -> None:
        super().__init__()
        offered = [Subprotocol(subprotocol)] if subprotocol else None
        self._protocol = ClientProtocol(parse_uri(url), subprotocols=offered, logger=quiet)
        self._protocol.send_request(self._protocol.connect())
        self.write = b"".join(self._protocol.data_to_send())
        self._refused = False

    def receive(self, data: bytes) -> bytes:
        """Read the response; one that refuses has a body with the reason."""
        if not self._refused:
            return super().receive(data)
        self._protocol.receive_data(data)
        self._look()
        return b""

    def receive_end(self) -> None:
        """The server sends nothing more."""
        if self._refused:
            self._protocol.receive_eof()
            self._look()
        super().receive_end()

    def _head(self, head: bytes, rest: bytes) -> None:
        self._refused = head.split(b" ", 2)[1:2] != [b"101"]
        self._protocol.receive_data(head + rest if self._refused else head)
        self._look()

    def _look(self) -> None:
        events = self._protocol.events_received()
        problem = self._protocol.handshake_exc
        if problem is not None:
            words = cast("Response", events[0]).body if events else b""
            said = bytes(words or b"").decode(errors="replace").strip().partition("\n")[0]
            self.error = HandshakeError(f"{problem}{said and ': '}{said[:500]}")
        elif events:
            self.opened = True


class ServerOpening(Opening):
    """The server's handshake, for one path."""

    def __init__(self, path: str, subprotocol: str | None) -> None:
        super().__init__()
        self._path = path
        self._subprotocol = subprotocol

    def _head(self, head: bytes, rest: bytes) -> None:  # noqa: ARG002 - frames come after the handshake
        def subprotocol(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
            return next((each for each in offered if each == self._subprotocol), None)

        protocol = ServerProtocol(select_subprotocol=subprotocol, logger=quiet)
        protocol.receive_data(head)
        events = protocol.events_received()
        if events:
            request = cast("Request", events[0])
            path = request.path.partition("?")[0]
            if path == self._path:
                response = protocol.accept(request)
            else:
                response = protocol.reject(404, f"nothing is spoken at {path}; there is {self._path}\n")
            protocol.send_response(response)
            self.opened = response.status_code == HTTPStatus.SWITCHING_PROTOCOLS
        if not self.opened:
            self.error = HandshakeError("the request does not open a WebSocket")
        self.write = b"".join(protocol.data_to_send())


class WebSocketLink(Link, asyncio.Protocol):
    """A link on a WebSocket. On a ``stream`` all bytes of a turn are one binary message.

    ``handshake_time`` is how many seconds the opening handshake may take, None if somebody else looks after that.
    """

    def __init__(
        self,
        opening: Opening,
        receiver: Receiver | None = None,
        accept: Callable[[Link], Receiver] | None = None,
        *,
        stream: bool = False,
        max_message: int = MAX_MESSAGE,
        handshake_time: float | None = None,
    ) -> None:
        super().__init__(receiver)
        self._opening = opening
        self._accept = accept
        self._client = accept is None
        self._stream = stream
        self._max_message = max_message
        self._handshake_time = handshake_time
        self._patience: asyncio.TimerHandle | None = None
        self._below: asyncio.Transport | None = None  # the transport, before and after the handshake
        self._open = False
        self.shaken: asyncio.Future[None] = self._loop.create_future()
        """Done once the opening handshake is, with an error where it failed."""
        self._reader = Reader(max_message, masked=not self._client, stream=stream)
        self._keys = memoryview(b"").cast("I")
        self._next_key = 0
        self._close_sent = False
        self._closed_with: tuple[int, str] | None = None  # the peer's code, 0 for none, and its reason

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection: open a WebSocket on it."""
        self._below = cast("asyncio.Transport", transport)
        if self._handshake_time is not None:
            self._patience = self._loop.call_later(self._handshake_time, self._below.abort)
        if self._opening.write:
            self._below.write(self._opening.write)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        if not self._open:
            self._opening.receive_end()
        self._handshake_done()
        self._below = None
        error = exc
        if self._closed_with is not None:
            error = None
            code, reason = self._closed_with
            self.peer_says_too_large = code == MESSAGE_TOO_BIG
            if code not in {0, NORMAL, GOING_AWAY}:
                error = WebSocketError(f"the peer closed: {reason or 'no reason given'}", code)
        elif error is None and not self._closing:
            error = ConnectionResetError("the connection ended without a closing handshake")
        self._lost(error)

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer: its handshake, then frames."""
        self.heard += 1
        if not self._open:
            data = self._shake_hands(data)
            if not data:
                return
        for kind, payload in self._reader.feed(data):
            if kind == BINARY:
                self._deliver(payload, text=False)
            elif kind == TEXT:
                self._text(payload)
            elif kind == PING:
                self._write_now(PONG, payload)
            elif kind == CLOSE:
                code = int.from_bytes(payload[:2], "big")
                self._closed_with = (code, payload[2:].decode())
                self._write_close(code or NORMAL)
                self._hang_up_below()
            elif kind == FAULT:
                self._refuse(int.from_bytes(payload[:2], "big"), payload[2:].decode())

    def send(self, payload: bytes, *, text: bool) -> None:
        """Send one message."""
        self.write(self._framed(TEXT if text else BINARY, payload))

    def _shake_hands(self, data: bytes) -> bytes:
        """Go on with the opening handshake. Returns what came after it."""
        opening = self._opening
        rest = opening.receive(data)
        if not opening.opened and opening.error is None:
            return b""
        below = cast("asyncio.Transport", self._below)
        if not self._client and opening.write:
            below.write(opening.write)
        self._open = opening.opened
        self._handshake_done()
        if not self._open:
            below.close()
            return b""
        self._opened(below)
        if self._accept is not None:
            self._adopted = True
            self._receiver = self._accept(self)
        return rest

    def _handshake_done(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if not self._client or self.shaken.done():
            return
        if self._opening.error is None:
            self.shaken.set_result(None)
        else:
            self.shaken.set_exception(self._opening.error)
            self.shaken.exception()  # the one who dials may have given up

    def _text(self, payload: bytes) -> None:
        if not payload.isascii():
            try:
                payload.decode()
            except UnicodeDecodeError:
                self._refuse(INVALID_TEXT, "a text message that is not UTF-8")
                return
        self._deliver(payload, text=True)

    def _refuse(self, code: int, reason: str) -> None:
        """Say what is wrong, and hang up."""
        if code == MESSAGE_TOO_BIG:
            reason = f"a message has more than {self._max_message} bytes"
        self._error = self._error or WebSocketError(reason, code)
        receiver: object = self._receiver
        if code == MESSAGE_TOO_BIG and not self._closing and isinstance(receiver, SaysTooBig):
            receiver.too_big()
        self.flush()
        self._closing = True
        self._write_close(code, reason.encode())
        transport = self._transport
        if code == MESSAGE_TOO_BIG and transport is not None:
            # The peer is still sending. Closing now would reset the connection, and it would not see why.
            transport.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()
            self._patience = self._loop.call_later(CLOSE_TIME, transport.abort)
        else:
            self._hang_up_below()

    def _say_goodbye(self) -> None:
        """The closing handshake; the peer's answer ends the connection."""
        if self._transport is not None:
            self._transport.resume_reading()
            self._write_close(MESSAGE_TOO_BIG if self.too_big else NORMAL)

    def _write_close(self, code: int, reason: bytes = b"") -> None:
        if not self._close_sent:
            self._close_sent = True
            self._write_now(CLOSE, code.to_bytes(2, "big") + reason)

    def _write_now(self, opcode: int, payload: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._framed(opcode, payload))

    def _hang_up_below(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
            self._transport.close()

    def _joined(self, pending: list[bytes]) -> bytes:
        whole = super()._joined(pending)
        return self._framed(BINARY, whole) if self._stream else whole

    def _framed(self, opcode: int, payload: bytes) -> bytes:
        if not self._client:
            return header(opcode, len(payload)) + payload
        if self._next_key >= len(self._keys):
            self._keys = memoryview(os.urandom(4 * KEYS)).cast("I")
            self._next_key = 0
        key = self._keys[self._next_key]
        self._next_key += 1
        return masked(opcode, payload, key)

    def abort(self, error: Exception | None = None) -> None:
        """End at once."""
        super().abort(error)
        if self._below is not None:
            self._below.abort()
