"""The sockets a server listens on: opened all or none, and the protocol of each connection.

An event loop that listens with TLS reports no connection before its handshake is done, and sets the time limit for it
when the listener is opened. So encrypted connections are accepted outside of it and handed over one by one: a refused
connection costs no handshake, and a reload affects the next one.
"""

import asyncio
import errno
import functools
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self, cast

from polywire.registry import HTTP, RegistryError, by_listener, names
from polywire.server.address import Address
from polywire.server.config import ConfigError, Problem
from polywire.server.endpoint import Endpoint
from polywire.server.gate import Gate, Knock
from polywire.server.logs import Seldom
from polywire.server.websockets import MakeEndpoint, Paths, WebSocketPath, WebSocketProtocol, as_one_message


class Stream:
    """The event loop's side of an endpoint on a byte stream. ``knock`` is that of a TLS handshake."""

    def __init__(self, endpoint: Endpoint, knock: Knock | None = None) -> None:
        self._endpoint = endpoint
        self._knock = knock

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is there."""
        if self._knock is not None:
            self._knock.done()
        self._endpoint.opened(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        """The end."""
        self._endpoint.closed()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._endpoint.outbox.stall()

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._endpoint.outbox.drain()


class WholeReads(Stream, asyncio.Protocol):
    """Reads all there is at once, at the least cost for each read."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        # The loop calls the compiled method itself.
        self.data_received = endpoint.deliver  # type: ignore[method-assign]


class LittleReads(Stream, asyncio.BufferedProtocol):
    """Reads into a buffer that is little while the host is crowded; so does every connection at first."""

    def __init__(self, endpoint: Endpoint, knock: Knock | None) -> None:
        super().__init__(endpoint, knock)
        endpoint.is_stream = True
        if knock is None:  # below TLS the loop reads by itself
            endpoint.protocols = (self, WholeReads(endpoint))
        self.get_buffer = endpoint.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = endpoint.buffer_updated  # type: ignore[method-assign]


AT_ONCE = 64
"""Connections accepted before others get their turn."""

PAUSE = 1.0
"""Seconds without accepting after the operating system had no room for a connection."""

NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a worker's listeners have in common with those of the other workers.

    ``reuse_port``: each of them listens on the same ports, and the operating system deals the connections out. A Unix
    socket can't be shared that way: ``sockets`` has those that the supervisor listens on, by their path.
    """

    reuse_port: bool = False
    sockets: Mapping[str, socket.socket] = field(default_factory=dict)


ALONE: Final = Sharing()

MakeProtocol = Callable[[Knock | None], asyncio.BaseProtocol]
"""Creates the protocol of a connection; the knock ends when it is admitted or refused."""

log = logging.getLogger("polywire.server")


class TlsListener:
    """One address, on as many sockets as its host has addresses."""

    def __init__(
        self,
        gate: Gate,
        context: ssl.SSLContext,
        make_protocol: MakeProtocol,
        sockets: list[socket.socket],
        knock: Callable[[], Knock | None],
    ) -> None:
        self._gate = gate
        self._knock = knock
        self._context = context
        self._make_protocol = make_protocol
        self._sockets = sockets
        self._handshakes: set[asyncio.Task[None]] = set()
        self._full = Seldom(log, gate.loop.time)
        for each in sockets:
            self._listen(each)

    @classmethod
    async def open(
        cls,
        gate: Gate,
        context: ssl.SSLContext,
        make_protocol: MakeProtocol,
        host: str,
        port: int,
        backlog: int,
        knock: Callable[[], Knock | None] | None = None,
        *,
        reuse_port: bool = False,
    ) -> Self:
        """Listen. Raises ``OSError`` if that fails. ``knock`` admits connections; by default the gate's."""
        sockets: list[socket.socket] = []
        found = await gate.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                # All have the port that the first got, where any will do.
                at = port or (sockets[0].getsockname()[1] if sockets else 0)
                where = (address[0], at, *address[2:])
                made = socket.create_server(where, family=family, backlog=backlog, reuse_port=reuse_port)
                sockets.append(made)
                sockets[-1].settimeout(0)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        return cls(gate, context, make_protocol, sockets, knock or gate.knock)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Accept no more connections; handshakes in progress are aborted."""
        for each in self._sockets:
            self._gate.loop.remove_reader(each)
            each.close()
        for task in self._handshakes:
            task.cancel()

    def _listen(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._gate.loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._full.warn("no connection can be accepted: %s", error.strerror)
                self._gate.loop.remove_reader(listening)
                self._gate.loop.call_later(PAUSE, self._listen, listening)
                return
            knock = self._knock()
            if knock is None:
                connection.close()
                continue
            task = self._gate.loop.create_task(self._shake_hands(connection, knock))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket, knock: Knock) -> None:
        """From the handshake on the connection is its protocol's, and the knock with it."""
        try:
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._gate.loop.connect_accepted_socket(
                lambda: self._make_protocol(knock),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._gate.handshake_time,
            )
        except OSError:  # including those of TLS: the peer has disconnected, is too slow, or speaks something else
            knock.done()
            connection.close()
        except BaseException:
            knock.done()
            connection.close()
            raise


FIRST_UNPRIVILEGED = 1024
"""Ports below this one need a privilege."""

BACKLOG = 4096


class MakesHttp(Protocol):
    """What answers on the HTTP listener."""

    def __call__(self, knock: Knock | None, /) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""

    def knock(self) -> Knock | None:
        """Let a connection begin its TLS handshake, or None."""


class Listeners:
    """All listeners of one hub. ``open_http`` makes what answers on the HTTP one from its address."""

    def __init__(self, gate: Gate, open_http: Callable[[Address], Awaitable[MakesHttp]], sharing: Sharing) -> None:
        self._gate = gate
        self._sharing = sharing
        self._open_http = open_http
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.AbstractServer | TlsListener] = []
        self._http: list[asyncio.AbstractServer | TlsListener] = []
        self._sockets: list[Path] = []
        self.addresses: dict[str, Address] = {}

    async def open(self, wanted: dict[str, Address], tls: ssl.SSLContext | None) -> None:
        """Listen on all of them, by their keys of ``[listen]``. A ``ConfigError`` names the one that can't be."""
        self._tls = tls
        try:
            await self._open_websockets({key: each for key, each in wanted.items() if each.websocket})
            for key, address in wanted.items():
                if key == HTTP:
                    await self._open_operators(address)
                elif not address.websocket:
                    await self._open(key, address, self._maker(key))
        except BaseException:
            self.close()
            raise
        self.addresses = {key: self.addresses[key] for key in wanted}

    def close(self, *, http: bool = True) -> None:
        """Take no more connections; those that are there live on. ``http``: whether the HTTP listener closes too."""
        for servers in (self._servers, self._http) if http else (self._servers,):
            for server in servers:
                server.close()
            servers.clear()
        for path in self._sockets:
            path.unlink(missing_ok=True)
        self._sockets.clear()

    def _maker(self, key: str) -> MakeProtocol:
        """What makes the protocol of each connection to a listener that is no WebSocket's."""
        make_endpoint = self._endpoint_maker(key)
        return lambda knock: LittleReads(make_endpoint(), knock)

    def _endpoint_maker(self, key: str) -> MakeEndpoint:
        protocol, listener = by_listener(key)
        try:
            session = protocol.load(protocol.session)
        except RegistryError as error:
            raise ConfigError([Problem(str(error), f"listen.{key}")]) from error
        make_session = functools.partial(session, self._gate.hub, **listener.options)
        number = names().index(protocol.name)
        wrap = as_one_message if listener.stream else None
        return lambda: Endpoint(self._gate, key, number, make_session, wrap)

    async def _open(self, key: str, address: Address, make_protocol: MakeProtocol) -> None:
        try:
            if address.scheme == "unix":
                self._servers.append(await self._open_socket(address.path, _without_knock(make_protocol)))
                self.addresses[key] = address
            else:
                self.addresses[key] = address.bound(await self._open_port(address, make_protocol))
        except OSError as error:
            raise not_listening(key, address, error) from error

    async def _open_socket(self, path: str, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.AbstractServer:
        """Listen on a Unix socket."""
        shared = self._sharing.sockets.get(path)
        if shared is not None:
            return await self._gate.loop.create_unix_server(make, sock=shared, backlog=BACKLOG)
        server = await self._gate.loop.create_unix_server(make, path, backlog=BACKLOG)
        self._sockets.append(Path(path))
        return server

    async def _open_operators(self, address: Address) -> None:
        """The HTTP listener: it has its own bounds, and stays open longest."""
        http = await self._open_http(address)
        try:
            self.addresses[HTTP] = address.bound(await self._open_port(address, http, self._http, http.knock))
        except OSError as error:
            raise not_listening(HTTP, address, error) from error

    async def _open_port(
        self,
        address: Address,
        make_protocol: MakeProtocol,
        servers: list[asyncio.AbstractServer | TlsListener] | None = None,
        knock: Callable[[], Knock | None] | None = None,
    ) -> int:
        """Listen on a host and port. Returns the port."""
        servers = self._servers if servers is None else servers
        host, port = address.host, address.port
        if address.encrypted and self._tls is not None:
            listener = await TlsListener.open(
                self._gate, self._tls, make_protocol, host, port, BACKLOG, knock, reuse_port=self._sharing.reuse_port
            )
            servers.append(listener)
            return listener.port
        server = await self._gate.loop.create_server(
            _without_knock(make_protocol), host, port, backlog=BACKLOG, reuse_port=self._sharing.reuse_port or None
        )
        servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def _open_websockets(self, wanted: dict[str, Address]) -> None:
        """Addresses on the same host and port share a socket, port 0 included."""
        ports: dict[tuple[str, str, int], list[str]] = {}
        for key, address in wanted.items():
            ports.setdefault((address.scheme, address.host, address.port), []).append(key)
        for keys in ports.values():
            paths = Paths(self._gate, wanted[keys[0]])
            for key in keys:
                protocol, listener = by_listener(key)
                counters = self._gate.hub.counters[names().index(protocol.name)]
                found = WebSocketPath(self._endpoint_maker(key), counters, listener.subprotocol, listener.stream)
                paths.add(wanted[key].path, found)
            try:
                bound = await self._open_port(wanted[keys[0]], self._websocket_maker(paths))
            except OSError as error:
                raise not_listening(keys[0], wanted[keys[0]], error) from error
            for key in keys:
                self.addresses[key] = wanted[key].bound(bound)

    def _websocket_maker(self, paths: Paths) -> MakeProtocol:
        return lambda knock: WebSocketProtocol(self._gate, paths, knock)


def not_listening(key: str, address: Address, error: OSError) -> ConfigError:
    """The error of a listener that can't be opened."""
    reason, hint = _reason_and_hint(address, error)
    return ConfigError([Problem(f"can't listen on {address}: {reason}{hint and '; '}{hint}", f"listen.{key}")])


def _reason_and_hint(address: Address, error: OSError) -> tuple[str, str]:
    """What is wrong with an address that can't be bound, and what to do about it."""
    if isinstance(error, socket.gaierror):
        return f"the host name {address.host} can't be resolved", "check its spelling, or use an IP address"
    number = error.errno
    if number is None and "could not bind" in str(error):  # how asyncio reports that every address failed
        number = errno.EADDRNOTAVAIL
    reason = str(error) if number is None else os.strerror(number)
    if address.scheme == "unix":
        folder = Path(address.path).parent
        hints = {
            errno.EADDRINUSE: "another program listens there, or a file is in the way",
            errno.EACCES: f"the hub may not create files in {folder}; choose another directory or change its owner",
            errno.ENOENT: f"create the directory {folder} first",
            errno.ENOTDIR: f"{folder} is not a directory; choose another path",
        }
    else:
        privileged = address.port and address.port < FIRST_UNPRIVILEGED
        hints = {
            errno.EADDRINUSE: "another program listens there; stop it, or choose another port (0 picks a free one)",
            errno.EADDRNOTAVAIL: f"{address.host} is not an address of this machine; use one that is, or 0.0.0.0",
            errno.EAFNOSUPPORT: "this machine has no IPv6; use an IPv4 address",
            errno.EACCES: "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher one"
            if privileged
            else "",
        }
    hints[errno.EPERM] = hints[errno.EACCES]
    hints[errno.EMFILE] = "raise the limit on open files (ulimit -n)"
    return reason, hints.get(number, "") if number is not None else ""


def _without_knock(make_protocol: MakeProtocol) -> Callable[[], asyncio.BaseProtocol]:
    """What makes the protocols of connections that begin without TLS."""
    return lambda: make_protocol(None)
