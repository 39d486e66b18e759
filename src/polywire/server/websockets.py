"""Connections that are WebSockets: one port, several paths.

``picows`` does the opening handshake, reads frames and answers pings. Messages are put together here, within the limit,
and what is written goes straight to the transport below: sessions frame their own messages, and for protocols that are
byte streams (MQTT) everything of one turn becomes one binary message.
"""

from collections.abc import Callable, Mapping
from typing import cast

from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

from polywire.protocols.websocket import BINARY, close, header
from polywire.server.endpoint import Endpoint

MakeEndpoint = Callable[[], Endpoint]

FAULTS = {
    WSCloseCode.PROTOCOL_ERROR: "websocket-frame",
    WSCloseCode.MESSAGE_TOO_BIG: "message-size",
    WSCloseCode.INVALID_TEXT: "not-utf-8",
    WSCloseCode.UNSUPPORTED_DATA: "text-message",
}
"""What is counted, by the code a WebSocket is closed with."""


def as_one_message(chunks: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Chunks of a byte stream as one binary message."""
    return [header(BINARY, sum(map(len, chunks))), *chunks]


class WebSocketListener(WSListener):
    """The event loop's side of an endpoint on a WebSocket."""

    def __init__(self, endpoint: Endpoint, limit: int) -> None:
        self._endpoint = endpoint
        self._limit = limit
        self._parts = bytearray()
        self._kind: WSMsgType | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The opening handshake is done."""
        self._endpoint.opened(transport.underlying_transport, close(WSCloseCode.OK.value))

    def on_ws_disconnected(self, transport: WSTransport) -> None:  # noqa: ARG002 - the endpoint knows its transport
        """The end."""
        self._endpoint.closed()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._endpoint.outbox.stall()

    def resume_writing(self) -> None:
        """It has room again."""
        self._endpoint.outbox.drain()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """One frame: a message, a part of one, or a control frame."""
        kind = frame.msg_type
        if kind == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code(), frame.get_close_message())
            transport.disconnect()
            return
        if kind not in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            return
        if frame.rsv1 or (kind == WSMsgType.CONTINUATION) != (self._kind is not None):
            self._refuse(WSCloseCode.PROTOCOL_ERROR, b"a frame out of place")
            return
        if len(self._parts) + frame.payload_size > self._limit:
            self._refuse(WSCloseCode.MESSAGE_TOO_BIG, b"the message is too big")
            return
        if self._kind is None and frame.fin:
            self._message(kind, frame.get_payload_as_bytes())
            return
        if self._kind is None:
            self._kind = kind
        self._parts += frame.get_payload_as_memoryview()
        if frame.fin:
            whole, self._parts = bytes(self._parts), bytearray()
            kind, self._kind = self._kind, None
            self._message(kind, whole)

    def _message(self, kind: WSMsgType, payload: bytes) -> None:
        if kind == WSMsgType.BINARY:
            self._endpoint.deliver(payload)
            return
        if self._endpoint.octets_only:
            self._refuse(WSCloseCode.UNSUPPORTED_DATA, b"only binary messages are understood here")
            return
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self._refuse(WSCloseCode.INVALID_TEXT, b"a text message that is not UTF-8")
            return
        self._endpoint.deliver(text)

    def _refuse(self, code: WSCloseCode, words: bytes) -> None:
        self._endpoint.refuse(FAULTS[code], close(code.value, words))


class Paths:
    """The WebSocket protocols on one port, by path."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._paths: dict[str, tuple[MakeEndpoint, str]] = {}

    def add(self, path: str, make_endpoint: MakeEndpoint, subprotocol: str) -> None:
        """Speak a protocol at a path."""
        self._paths[path] = (make_endpoint, subprotocol)

    def upgrade(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        """The listener for a request; a path nobody speaks at is 404."""
        path = request.path.decode(errors="replace").partition("?")[0]
        found = self._paths.get(path)
        if found is None:
            words = f"nothing is spoken at {path}; there is {', '.join(self._paths)}\n".encode()
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(404, words), None)
        make_endpoint, subprotocol = found
        listener = WebSocketListener(make_endpoint(), self._limit())
        offered = cast("Mapping[str, str]", request.headers).get("Sec-WebSocket-Protocol", "")
        if subprotocol in [each.strip() for each in offered.split(",")]:
            headers = {"Sec-WebSocket-Protocol": subprotocol}
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(headers), listener)
        return listener
