"""Opening a connection to an address, whatever carries it."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from typing import Final, cast

from polywire.client.address import Address
from polywire.client.errors import ConnectFailed, ConnectionLost
from polywire.client.link import Link, Receiver, StreamLink
from polywire.client.tls import client_context

DIAL_TIME: Final = 10.0
"""Seconds a connection may take to open, all handshakes below the protocol's own included."""

# A peer that vanished without a word is noticed after about a minute, whatever the protocol.
KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


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
                link = await _stream(address, receiver, context)
        link.adopt()
    except ConnectionLost as error:
        raise ConnectFailed(str(address), error.reason) from error
    except TimeoutError as error:
        raise ConnectFailed(str(address), f"it took longer than {timeout:g} s") from error
    except (OSError, ssl.SSLError, ssl.CertificateError) as error:
        raise ConnectFailed(str(address), _words(error)) from error
    return link


async def _stream(address: Address, receiver: Receiver, context: ssl.SSLContext | None) -> Link:
    loop = asyncio.get_running_loop()
    if address.transport == "unix":
        _, link = await loop.create_unix_connection(lambda: StreamLink(receiver), address.path)
        return link
    transport, link = await loop.create_connection(
        lambda: StreamLink(receiver),
        address.host,
        address.port,
        ssl=context,
        server_hostname=address.host if context is not None else None,
    )
    keep_alive(transport.get_extra_info("socket"))
    return link


async def _web(
    address: Address, receiver: Receiver, context: ssl.SSLContext | None, subprotocol: str | None, *, stream: bool
) -> Link:
    # Only programs that use WebSockets pay for loading them.
    from polywire.client.websocket import ClientOpening, HandshakeError, WebSocketLink  # noqa: PLC0415

    host = f"[{address.host}]" if ":" in address.host else address.host
    opening = ClientOpening(f"{address.transport}://{host}:{address.port}{address.path}", subprotocol)
    transport, link = await asyncio.get_running_loop().create_connection(
        lambda: WebSocketLink(opening, receiver, stream=stream),
        address.host,
        address.port,
        ssl=context,
        server_hostname=address.host if context is not None else None,
    )
    keep_alive(transport.get_extra_info("socket"))
    try:
        await link.shaken
    except HandshakeError as error:
        raise ConnectFailed(str(address), f"no WebSocket there: {error}") from error
    except asyncio.CancelledError:
        transport.abort()
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
