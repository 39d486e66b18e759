"""Connections that are WebSockets: one port, several paths.

``picows`` does the opening handshake and reads frames. Messages are put together here, within the limits, and what is
written goes straight to the transport below: sessions frame their own messages, and for protocols that are byte streams
(MQTT) everything of one turn becomes one binary message.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # its stub leaves it out

from polywire.protocols.websocket import BINARY, close, header
from polywire.server.endpoint import HIGH_WATER, Endpoint
from polywire.server.gate import Gate, Knock

READ_BUFFER = 4096
"""Octets a connection's buffer begins with; it doubles whenever a read fills it."""

SPARE = 64 * 1024
"""Octets more than a message may have that are still read, so that the session can refuse it in its own words."""

UPGRADE = 16 * 1024
"""The largest opening handshake that ``picows`` reads."""

FAULTS = {
    WSCloseCode.PROTOCOL_ERROR: "websocket-protocol",
    WSCloseCode.UNSUPPORTED_DATA: "websocket-kind",
    WSCloseCode.INVALID_TEXT: "websocket-text",
    WSCloseCode.MESSAGE_TOO_BIG: "websocket-size",
}
NOT_ON_THE_WIRE = {WSCloseCode.NO_INFO, WSCloseCode.ABNORMAL_CLOSURE}
"""Codes that say how a connection ended, and may not be sent."""

# It has a line for each connection and each error of a peer; the hub counts them instead.
log = logging.getLogger("picows.websocket")
log.setLevel(logging.CRITICAL)


class FrameTooBigError(Exception):
    """A frame's header announces more than a message may have."""


class Quiet(logging.LoggerAdapter[logging.Logger]):
    """``picows``' logger. It reports what is wrong with a frame here before it hangs up.

    Raising keeps it from hanging up on a frame that is too big: the session reports it first. The frame before it is
    lost where both came at once.
    """

    def error(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """An error of the peer; ``picows`` passes the closing code and the words for it."""
        if args and args[0][0] == WSCloseCode.MESSAGE_TOO_BIG:
            raise FrameTooBigError
        super().error(msg, *args, **kwargs)


quiet = Quiet(log, {})

MakeEndpoint = Callable[[], Endpoint]


def as_one_message(chunks: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Chunks of a byte stream as one binary message."""
    return [header(BINARY, sum(map(len, chunks))), *chunks]


class WebSocketListener(WSListener):
    """The event loop's side of an endpoint on a WebSocket. On a ``stream`` it does not matter how messages are cut."""

    def __init__(self, endpoint: Endpoint, limit: int, *, stream: bool) -> None:
        self.endpoint = endpoint
        self._limit = limit
        self._stream = stream
        self._parts = bytearray()
        self._kind: WSMsgType | None = None
        self._over = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The opening handshake is done."""
        too_big = close(WSCloseCode.MESSAGE_TOO_BIG.value)
        self.endpoint.opened(transport.underlying_transport, close(WSCloseCode.OK.value), too_big)

    def on_ws_disconnected(self, transport: WSTransport) -> None:  # noqa: ARG002 - the endpoint knows its transport
        """The end."""
        self.endpoint.closed()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.endpoint.outbox.stall()

    def resume_writing(self) -> None:
        """It has room again."""
        self.endpoint.outbox.drain()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """One frame: a message, a part of one, or a control frame."""
        kind = frame.msg_type
        if self._over:
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self.refuse(transport, WSCloseCode.PROTOCOL_ERROR, b"a reserved bit is set")
        elif kind == WSMsgType.CLOSE:
            self._over = True
            code = frame.get_close_code()
            if not self.endpoint.is_closing:  # a closing frame is sent once
                transport.send_close(WSCloseCode.OK if code in NOT_ON_THE_WIRE else code)
            self.endpoint.close(b"")
        elif kind == WSMsgType.PING:
            # Who pings and does not read is not answered: the answers would pile up.
            if transport.underlying_transport.get_write_buffer_size() < HIGH_WATER:
                transport.send_pong(frame.get_payload_as_bytes())
        elif kind != WSMsgType.PONG:
            self._data(transport, frame)

    def refuse(self, transport: WSTransport, code: WSCloseCode, words: bytes) -> None:
        """Say what is wrong, and hang up."""
        self._over = True
        self._parts.clear()
        if code == WSCloseCode.MESSAGE_TOO_BIG:
            self.endpoint.too_big()
        self.endpoint.outbox.finish()
        transport.send_close(code, words)

    def _data(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if (kind == WSMsgType.CONTINUATION) != (self._kind is not None):
            self.refuse(transport, WSCloseCode.PROTOCOL_ERROR, b"a frame out of place")
        elif self._stream:
            if kind == WSMsgType.TEXT:
                # MQTT-167: octets only.
                self.refuse(transport, WSCloseCode.UNSUPPORTED_DATA, b"only binary messages are spoken here")
                return
            self._kind = None if frame.fin else WSMsgType.BINARY
            self.endpoint.deliver(frame.get_payload_as_bytes())
        elif len(self._parts) + frame.payload_size > self._limit:
            self.refuse(transport, WSCloseCode.MESSAGE_TOO_BIG, b"the message is too big")
        elif self._kind is None and frame.fin:
            self._message(transport, kind, frame.get_payload_as_bytes())
        else:
            if self._kind is None:
                self._kind = kind
            self._parts += frame.get_payload_as_memoryview()
            if frame.fin:
                whole, self._parts = bytes(self._parts), bytearray()
                kind, self._kind = self._kind, None
                self._message(transport, kind, whole)

    def _message(self, transport: WSTransport, kind: WSMsgType, payload: bytes) -> None:
        if kind == WSMsgType.BINARY:
            self.endpoint.deliver(payload)
            return
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self.refuse(transport, WSCloseCode.INVALID_TEXT, b"a text message that is not UTF-8")
            return
        self.endpoint.deliver(text)


class Paths:
    """The WebSocket protocols on one port, by path."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._paths: dict[str, tuple[MakeEndpoint, str, bool]] = {}

    def add(self, path: str, make_endpoint: MakeEndpoint, subprotocol: str, *, stream: bool) -> None:
        """Speak a protocol at a path; ``stream`` if it is a stream of octets."""
        self._paths[path] = (make_endpoint, subprotocol, stream)

    def upgrade(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        """The listener for a request; a path nobody speaks at is 404."""
        path = request.path.decode(errors="replace").partition("?")[0]
        found = self._paths.get(path)
        if found is None:
            words = f"nothing is spoken at {path}; there is {', '.join(self._paths)}\n".encode()
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(404, words), None)
        make_endpoint, subprotocol, stream = found
        listener = WebSocketListener(make_endpoint(), self._gate.limits.message_size + SPARE, stream=stream)
        offered = cast("Mapping[str, str]", request.headers).get("Sec-WebSocket-Protocol", "")
        if subprotocol in [each.strip() for each in offered.split(",")]:
            headers = {"Sec-WebSocket-Protocol": subprotocol}
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(headers), listener)
        return listener


class WebSocketProtocol(WSProtocol):  # type: ignore[misc]  # its stub leaves the base class out
    """``picows``' connection, let in before its opening handshake and ended as soon as an error has been told."""

    def __init__(self, gate: Gate, paths: Paths, knock: Knock | None = None) -> None:
        self._gate = gate
        self._paths = paths
        self._knock = knock  # that of a TLS handshake goes on for this one
        self._ended = False
        limits = gate.limits
        # Octets that may come before the login, -1 once it is done; ``picows`` itself knows one size of frame only.
        self._before_login = UPGRADE + min(limits.message_size_before_auth, limits.message_size) + SPARE
        super().__init__(
            None,  # host and port: a client's
            None,  # path: a client's
            False,
            self._upgrade,
            quiet,
            True,
            gate.handshake_time,
            False,
            20,  # when these would be sent
            20,  # how long their answers may take
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,
            limits.message_size + SPARE,
            None,  # extra headers: a client's
            READ_BUFFER,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer that wants to talk WebSocket, perhaps."""
        self._knock = self._knock or self._gate.knock()
        if self._knock is not None:
            super().connection_made(transport)
        else:
            self._ended = True
            cast("asyncio.Transport", transport).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._handshake_done()
        if self.transport is not None:  # it was let in
            super().connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        """Octets have come."""
        if self._ended:
            return
        transport: WSTransport = self.transport
        try:
            super().buffer_updated(nbytes)
        except FrameTooBigError:
            listener: WebSocketListener = self.listener
            listener.refuse(transport, WSCloseCode.MESSAGE_TOO_BIG, b"the message is too big")
        if self._before_login >= 0:
            self._look_at_login(transport, nbytes)
        if transport.is_close_frame_sent:
            self._end(transport)

    def _look_at_login(self, transport: WSTransport, nbytes: int) -> None:
        """Before the login no more octets are taken than a login has."""
        listener: WebSocketListener | None = self.listener
        if listener is not None and listener.endpoint.is_established:
            self._before_login = -1
            return
        self._before_login -= nbytes
        if self._before_login < 0 and listener is not None and not transport.is_close_frame_sent:
            listener.refuse(transport, WSCloseCode.MESSAGE_TOO_BIG, b"too much before the login")

    def _end(self, transport: WSTransport) -> None:
        """A closing frame was sent: count why, and read nothing more."""
        self._ended = True
        closing = transport.close_handshake
        listener: WebSocketListener | None = self.listener
        if listener is None or closing.sent is None:
            return
        if closing.recv is None:
            listener.endpoint.broke(FAULTS.get(closing.sent.code, "websocket"))
        if closing.sent.code == WSCloseCode.MESSAGE_TOO_BIG:
            listener.endpoint.linger()
        else:
            listener.endpoint.close(b"")

    def _upgrade(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        self._handshake_done()
        return self._paths.upgrade(request)

    def _handshake_done(self) -> None:
        if self._knock is not None:
            self._knock.done()
