"""Opening links: ``dial`` to an address, ``listen`` at one; and ``Opening``, which every ``connect`` returns."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from polywire.client.address import Address
from polywire.client.errors import AddressError, ConnectFailed, ConnectionLost
from polywire.client.link import Link, Receiver, StreamLink
from polywire.client.tls import client_context

DIAL_TIME: Final = 10.0
"""Seconds a connection may take to open, all handshakes below the protocol's own included."""

# A peer that vanished without a word is noticed after about a minute, whatever the protocol.
KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}

HANDSHAKE_TIME: Final = 10.0
"""Seconds a client has until it is let in."""


class Closable(Protocol):
    """Whatever is open until it is closed."""

    async def close(self) -> None:
        """Leave nothing behind."""


Opened = TypeVar("Opened", bound=Closable)
Made = TypeVar("Made", bound=asyncio.Protocol)


class Opening(Generic[Opened]):
    """What ``connect`` returns. Nothing happens until it is entered or awaited."""

    def __init__(self, open_: Callable[[], Awaitable[Opened]]) -> None:
        self._open = open_
        self._opened: Opened | None = None

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._open().__await__()


async def dial(
    address: Address,
    receiver: Receiver,
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float = DIAL_TIME,  # noqa: ASYNC109 - it is part of what is said where it fails
    subprotocol: str | None = None,
    stream: bool = False,
) -> Link:
    """A link to ``address`` that gives what comes to ``receiver``. Raises ``ConnectFailed``.

    ``subprotocol`` is offered on a WebSocket; ``stream`` as in ``WebSocketLink``. Without ``tls`` the system's
    authorities are trusted.
    """
    context = (tls or client_context()) if address.encrypted else None
    try:
        async with asyncio.timeout(timeout):
            if address.websocket:
                link = await _web(address, receiver, context, subprotocol, stream=stream)
            else:
                link = await _connected(lambda: StreamLink(receiver), address, context)
        link.adopt()
    except ConnectionLost as error:
        raise ConnectFailed(str(address), error.reason) from error
    except TimeoutError as error:
        raise ConnectFailed(str(address), f"it took longer than {timeout:g} s") from error
    except (OSError, ssl.SSLError, ssl.CertificateError) as error:
        raise ConnectFailed(str(address), _words(error)) from error
    return link


async def _connected(make: Callable[[], Made], address: Address, context: ssl.SSLContext | None) -> Made:
    """The link that ``make`` returns, connected."""
    loop = asyncio.get_running_loop()
    if address.transport == "unix":
        _, link = await loop.create_unix_connection(make, address.path)
        return link
    name = None if context is None else address.host
    transport, link = await loop.create_connection(make, address.host, address.port, ssl=context, server_hostname=name)
    keep_alive(transport.get_extra_info("socket"))
    return link


async def _web(
    address: Address, receiver: Receiver, context: ssl.SSLContext | None, subprotocol: str | None, *, stream: bool
) -> Link:
    # Only programs that use WebSockets pay for loading them.
    from polywire.client.websocket import ClientOpening, HandshakeError, WebSocketLink  # noqa: PLC0415

    host = f"[{address.host}]" if ":" in address.host else address.host
    opening = ClientOpening(f"{address.transport}://{host}:{address.port}{address.path}", subprotocol)
    link = await _connected(lambda: WebSocketLink(opening, receiver, stream=stream), address, context)
    try:
        await link.shaken
    except HandshakeError as error:
        raise ConnectFailed(str(address), f"no WebSocket there: {error}") from error
    except asyncio.CancelledError:
        link.abort()
        raise
    return link


def keep_alive(found: object) -> None:
    """Have the system look after a silent connection, given its socket, and send small packets at once."""
    sock = cast("socket.socket | None", found)
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    if number is not None and number in errno.errorcode:
        return os.strerror(number)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


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
    links = _links(listener, subprotocol, handshake_time, stream=stream)
    loop = asyncio.get_running_loop()
    server: asyncio.AbstractServer
    if address.transport == "unix":
        server = await loop.create_unix_server(links, address.path)
    else:
        context, patience = (tls, handshake_time) if address.encrypted else (None, None)
        server = await loop.create_server(
            links, address.host, address.port, ssl=context, ssl_handshake_timeout=patience
        )
    listener.opened(server)
    return listener


def _links(
    listener: Listener, subprotocol: str | None, handshake_time: float, *, stream: bool
) -> Callable[[], asyncio.Protocol]:
    """What makes the link of each connection."""
    if not listener.address.websocket:
        return lambda: StreamLink(accept=listener.accepted)
    from polywire.client.websocket import ServerOpening, WebSocketLink  # noqa: PLC0415 - as for clients

    return lambda: WebSocketLink(
        ServerOpening(listener.address.path, subprotocol),
        accept=listener.accepted,
        stream=stream,
        handshake_time=handshake_time,
    )
