"""The sockets a server listens on: opened all or none, and what speaks on each connection that comes to one."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from polywire.protocols import PROTOCOLS
from polywire.server.address import Address
from polywire.server.config import ConfigError, Problem
from polywire.server.endpoint import Endpoint
from polywire.server.gate import Gate
from polywire.server.speaking import Spoken
from polywire.server.streams import StreamProtocol
from polywire.server.tls_listener import MakeProtocol, TlsListener
from polywire.server.websockets import MakeEndpoint, Paths, WebSocketProtocol

BACKLOG = 4096
HTTP = "http"
"""The key of ``[listen]`` that speaks none of the hub's protocols."""


class Listeners:
    """All listeners of one hub. ``http`` makes what answers on the HTTP one, told its address."""

    def __init__(self, gate: Gate, spoken: dict[str, Spoken], http: Callable[[Address], MakeProtocol]) -> None:
        self._gate = gate
        self._spoken = spoken
        self._http = http
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.AbstractServer | TlsListener] = []
        self._sockets: list[Path] = []
        self.addresses: dict[str, Address] = {}

    async def open(self, wanted: dict[str, Address], tls: ssl.SSLContext | None) -> None:
        """Listen on all of them, by their keys of ``[listen]``. A ``ConfigError`` names the one that can't be."""
        self._tls = tls
        try:
            await self._open_websockets({key: each for key, each in wanted.items() if each.websocket})
            for key, address in wanted.items():
                if not address.websocket:
                    await self._open(key, address, self._maker(key, address))
        except BaseException:
            self.close()
            raise
        self.addresses = {key: self.addresses[key] for key in wanted}

    def close(self) -> None:
        """Take no more connections; those that are there live on."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for path in self._sockets:
            path.unlink(missing_ok=True)
        self._sockets.clear()

    def _maker(self, key: str, address: Address) -> MakeProtocol:
        """What makes the protocol of each connection to a listener that is no WebSocket's."""
        if key == HTTP:
            return self._http(address)
        make_endpoint = self._endpoint_maker(key)
        return lambda knock: StreamProtocol(make_endpoint(), knock)

    def _endpoint_maker(self, key: str) -> MakeEndpoint:
        spoken = self._spoken[key]
        protocol = PROTOCOLS.index(spoken.protocol)
        return lambda: Endpoint(self._gate, key, protocol, spoken.make_session, spoken.wrap)

    async def _open(self, key: str, address: Address, make_protocol: MakeProtocol) -> None:
        try:
            if address.scheme == "unix":
                path = Path(address.path)
                protocol = _without_knock(make_protocol)
                self._servers.append(await self._gate.loop.create_unix_server(protocol, path, backlog=BACKLOG))
                self._sockets.append(path)
                self.addresses[key] = address
            else:
                self.addresses[key] = address.bound(await self._open_port(address, make_protocol))
        except OSError as error:
            raise _not_listening(key, address, error) from error

    async def _open_port(self, address: Address, make_protocol: MakeProtocol) -> int:
        """Listen on a host and port. Returns the port."""
        if address.encrypted and self._tls is not None:
            listener = await TlsListener.open(self._gate, self._tls, make_protocol, address.host, address.port, BACKLOG)
            self._servers.append(listener)
            return listener.port
        protocol = _without_knock(make_protocol)
        server = await self._gate.loop.create_server(protocol, address.host, address.port, backlog=BACKLOG)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _open_websockets(self, wanted: dict[str, Address]) -> None:
        """Addresses on the same host and port share a socket, port 0 included."""
        ports: dict[tuple[str, str, int], list[str]] = {}
        for key, address in wanted.items():
            ports.setdefault((address.scheme, address.host, address.port), []).append(key)
        for keys in ports.values():
            paths = Paths(self._gate)
            for key in keys:
                spoken = self._spoken[key]
                stream = spoken.wrap is not None
                paths.add(wanted[key].path, self._endpoint_maker(key), spoken.subprotocol, stream=stream)
            try:
                bound = await self._open_port(wanted[keys[0]], self._websocket_maker(paths))
            except OSError as error:
                raise _not_listening(keys[0], wanted[keys[0]], error) from error
            for key in keys:
                self.addresses[key] = wanted[key].bound(bound)

    def _websocket_maker(self, paths: Paths) -> MakeProtocol:
        return lambda knock: WebSocketProtocol(self._gate, paths, knock)


def _not_listening(key: str, address: Address, error: OSError) -> ConfigError:
    words = f"can't listen on {address}: {error.strerror or error}; free it, or choose another with port 0"
    return ConfigError([Problem(words, f"listen.{key}")])


def _without_knock(make_protocol: MakeProtocol) -> Callable[[], asyncio.BaseProtocol]:
    """What makes the protocols of connections that begin without TLS."""
    return lambda: make_protocol(None)
