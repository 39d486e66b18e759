"""Connections that are streams of octets: TCP, TLS and Unix sockets."""

import asyncio
from typing import cast

from polywire.server.endpoint import Endpoint
from polywire.server.gate import Knock


class StreamProtocol(asyncio.Protocol):
    """The event loop's side of an endpoint on a byte stream. ``knock`` is that of a TLS handshake."""

    def __init__(self, endpoint: Endpoint, knock: Knock | None = None) -> None:
        self._endpoint = endpoint
        endpoint.is_stream = True
        self._knock = knock

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is there."""
        if self._knock is not None:
            self._knock.done()
        self._endpoint.opened(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        """Octets from the peer."""
        self._endpoint.deliver(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        """The end."""
        self._endpoint.closed()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._endpoint.outbox.stall()

    def resume_writing(self) -> None:
        """It has room again."""
        self._endpoint.outbox.drain()
