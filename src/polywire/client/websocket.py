"""Links that are WebSockets, on either side. ``picows`` does the opening handshake and reads frames.

What is written goes straight to the transport below, all frames of a turn at once. A client's frames are masked here
(RFC 6455, 5.3), with keys from the system's generator, which is asked for many at a time.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from polywire.client.errors import ClientError
from polywire.client.link import Link, Receiver, SaysTooBig
from polywire.protocols.websocket import BINARY, TEXT, header, masked

if TYPE_CHECKING:
    from picows.picows import WSCloseHandshake

KEYS: Final = 1024
"""How many masking keys are made at once."""

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""Octets a message may have unless told otherwise."""


class WebSocketError(ClientError):
    """The peer broke a rule of WebSockets, or closed with a code that says something is wrong. ``code`` is that one."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(f"{reason} (WebSocket {code})")
        self.code = code


class WebSocketLink(Link, WSListener):
    """A link on a WebSocket. On a ``stream`` all octets of a turn are one binary message."""

    def __init__(
        self,
        receiver: Receiver | None = None,
        accept: Callable[[Link], Receiver] | None = None,
        *,
        stream: bool = False,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        super().__init__(receiver)
        self._accept = accept
        self._client = accept is None
        self._stream = stream
        self._max_message = max_message
        self._web: WSTransport | None = None
        self._watch: asyncio.Task[None] | None = None
        self._keys = memoryview(b"").cast("I")
        self._next_key = 0
        self._parts = bytearray()
        self._kind: WSMsgType | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The opening handshake is done."""
        self._web = transport
        if self._client:
            self._watch = self._loop.create_task(self._ending(transport))
        self._opened(transport.underlying_transport)
        if self._accept is not None:
            self._adopted = True
            self._receiver = self._accept(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The end."""
        # Its stub does not say that there is none where the connection broke.
        closing = cast("WSCloseHandshake | None", transport.close_handshake)
        error: Exception | None = None
        if closing is not None and closing.recv is not None:
            code = closing.recv.code.value
            self.peer_says_too_large = code == WSCloseCode.MESSAGE_TOO_BIG.value
            if code not in {0, WSCloseCode.OK.value, WSCloseCode.GOING_AWAY.value}:
                error = WebSocketError(f"the peer closed: {closing.recv.reason or 'no reason given'}", code)
        elif closing is not None and closing.sent is not None and closing.sent.code is not WSCloseCode.OK:
            error = WebSocketError("the peer broke a rule", closing.sent.code.value)
        elif not self._closing:
            error = ConnectionResetError("the connection ended without a closing handshake")
        self._lost(error)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """One frame: a message, a part of one, or a control frame."""
        self.heard += 1
        kind = frame.msg_type
        if kind is WSMsgType.CLOSE:
            if not transport.is_close_frame_sent:
                code = frame.get_close_code()
                transport.send_close(WSCloseCode.OK if code is WSCloseCode.NO_INFO else code)
            transport.disconnect()
        elif kind is WSMsgType.PING:
            transport.send_pong(frame.get_payload_as_bytes())
        elif kind is not WSMsgType.PONG:
            self._data(frame)

    def send(self, payload: bytes, *, text: bool) -> None:
        """Send one message."""
        self.write(self._framed(TEXT if text else BINARY, payload))

    def _data(self, frame: WSFrame) -> None:
        kind = frame.msg_type
        if (kind is WSMsgType.CONTINUATION) != (self._kind is not None):
            self._refuse(WSCloseCode.PROTOCOL_ERROR, "a frame out of place")
        elif len(self._parts) + frame.payload_size > self._max_message:
            self._refuse(WSCloseCode.MESSAGE_TOO_BIG, f"a message has more than {self._max_message} octets")
        elif self._kind is None and frame.fin:
            self._message(kind, frame.get_payload_as_bytes())
        else:
            if self._kind is None:
                self._kind = kind
            self._parts += frame.get_payload_as_memoryview()
            if frame.fin:
                whole, self._parts = bytes(self._parts), bytearray()
                kind, self._kind = self._kind, None
                self._message(kind, whole)

    def _message(self, kind: WSMsgType, payload: bytes) -> None:
        text = kind is WSMsgType.TEXT
        if text and self._stream:
            self._refuse(WSCloseCode.UNSUPPORTED_DATA, "a text message where only binary ones are spoken")
            return
        if text and not payload.isascii():
            try:
                payload.decode()
            except UnicodeDecodeError:
                self._refuse(WSCloseCode.INVALID_TEXT, "a text message that is not UTF-8")
                return
        self._deliver(payload, text)

    def _refuse(self, code: WSCloseCode, reason: str) -> None:
        """Say what is wrong, and hang up."""
        self._error = self._error or WebSocketError(reason, code.value)
        receiver: object = self._receiver
        if code is WSCloseCode.MESSAGE_TOO_BIG and not self._closing and isinstance(receiver, SaysTooBig):
            receiver.too_big()
        self.flush()
        self._closing = True
        if self._web is not None:
            self._web.send_close(code, reason.encode())
            self._web.disconnect()

    async def _ending(self, transport: WSTransport) -> None:
        """See how it ends, for ``picows`` wants somebody to; what is wrong is told in ``on_ws_disconnected``."""
        with contextlib.suppress(Exception):
            await transport.wait_disconnected()

    def _say_goodbye(self) -> None:
        """The closing handshake; the peer's answer ends the connection."""
        if self._web is not None and self._transport is not None:
            self._transport.resume_reading()
            if not self._web.is_close_frame_sent:
                self._web.send_close(WSCloseCode.MESSAGE_TOO_BIG if self.too_big else WSCloseCode.OK)

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
        if self._web is not None:
            with contextlib.suppress(Exception):
                self._web.disconnect(graceful=False)
