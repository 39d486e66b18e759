"""Accepting connections, for the servers that need no hub."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from polywire.client.address import Address
from polywire.client.dialing import keep_alive
from polywire.client.errors import AddressError
from polywire.client.link import Link, Receiver, StreamLink

HANDSHAKE_TIME: Final = 10.0
"""Seconds a client has until it is let in."""

Accept = Callable[[Link], Receiver]
"""Given a new link, who receives what comes on it."""


class Listener:
    """A socket that accepts. ``address`` has the port that was found; ``links`` are the live connections."""

    def __init__(self, address: Address, accept: Accept) -> None:
        self.address = address
        self.links: set[Link] = set()
        self._accept = accept
        self._server: asyncio.AbstractServer | None = None
        self._closed = False

    async def close(self) -> None:
        """Accept nobody any more, and close what is open."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*[link.close() for link in self.links])
        self.links.clear()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
            if self.address.transport == "unix":
                with contextlib.suppress(OSError):
                    Path(self.address.path).unlink()  # noqa: ASYNC240 - one call, once

    def opened(self, server: asyncio.AbstractServer) -> None:
        """The socket is bound."""
        self._server = server
        if self.address.transport != "unix":
            port = cast("asyncio.Server", server).sockets[0].getsockname()[1]
            self.address = self.address.bound(port)

    def accepted(self, link: Link) -> Receiver:
        """A peer has come."""
        if self._closed:  # it had knocked before the door was shut
            link.abort()
        keep_alive(link.peer("socket"))
        self.links.add(link)
        link.on_end = self.links.discard
        return self._accept(link)


async def listen(
    address: Address,
    accept: Accept,
    *,
    tls: ssl.SSLContext | None = None,
    subprotocol: str | None = None,
    stream: bool = False,
    handshake_time: float = HANDSHAKE_TIME,
) -> Listener:
    """A listener at ``address``, which may have port 0. ``tls`` is a server's context, needed where it is encrypted.

    ``handshake_time`` is for the handshakes of TLS and WebSocket, each.
    """
    if address.encrypted and tls is None:
        raise AddressError(f"{address.protocol} over TLS needs a server's certificate: give tls=", part="tls")
    listener = Listener(address, accept)
    loop = asyncio.get_running_loop()
    context = tls if address.encrypted else None
    patience = None if context is None else handshake_time

    def stream_link() -> StreamLink:
        return StreamLink(accept=listener.accepted)

    if address.websocket:
        listener.opened(await _web_server(listener, context, subprotocol, handshake_time, stream=stream))
    elif address.transport == "unix":
        listener.opened(await loop.create_unix_server(stream_link, address.path))
    else:
        listener.opened(
            await loop.create_server(
                stream_link, address.host, address.port, ssl=context, ssl_handshake_timeout=patience
            )
        )
    return listener


async def _web_server(
    listener: Listener, context: ssl.SSLContext | None, subprotocol: str | None, handshake_time: float, *, stream: bool
) -> asyncio.AbstractServer:
    from polywire.client.websocket import ServerOpening, WebSocketLink  # noqa: PLC0415

    address = listener.address

    def link() -> WebSocketLink:
        opening = ServerOpening(address.path, subprotocol)
        return WebSocketLink(opening, accept=listener.accepted, stream=stream, handshake_time=handshake_time)

    return await asyncio.get_running_loop().create_server(
        link,
        address.host,
        address.port,
        ssl=context,
        ssl_handshake_timeout=None if context is None else handshake_time,
    )
