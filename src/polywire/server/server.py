"""The server: opens the listeners, and ends them again without losing what was accepted.

``start`` listens, ``reload`` takes over a changed configuration, ``drain`` ends in the order FMQP's ``$/signals/stop``
asks for: no new clients, no new messages, what was accepted is delivered, last wills, they are delivered, connections
are closed with their protocol's last words.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from polywire.hub.hub import Hub
from polywire.journal.errors import JournalError
from polywire.journal.kinds import PROTOCOLS as JOURNALED
from polywire.protocols import PROTOCOLS
from polywire.protocols.fmqp.info import BrokerInfo
from polywire.protocols.mqttrpc.session import RpcBridge
from polywire.server.address import Address
from polywire.server.admission import Admission, make_admission
from polywire.server.config import ConfigError, Loaded, Problem
from polywire.server.descriptors import connections_left
from polywire.server.endpoint import Endpoint
from polywire.server.gate import Gate
from polywire.server.http import Answer, HttpConnections, HttpProtocol, Post, Tree
from polywire.server.metrics import CONTENT_TYPE, Metrics
from polywire.server.speaking import Spoken, spoken_by
from polywire.server.streams import StreamProtocol
from polywire.server.tls import load_certificates, make_context
from polywire.server.tls_listener import MakeProtocol, TlsListener
from polywire.server.websockets import MakeEndpoint, Paths, WebSocketProtocol

if TYPE_CHECKING:
    from polywire.server.journal_keeper import JournalKeeper

BACKLOG = 4096
SETTLE_STEP = 0.02
CLOSE_TIME = 1.0
"""Seconds a peer has to take its last octets once its connection is being closed."""

log = logging.getLogger("polywire.server")


def first_number() -> int:
    """Where a hub begins to count connections and calls, so that no two starts give the same number."""
    return int(time.time()) << 20


class Server:
    """One hub and its listeners."""

    def __init__(self, loaded: Loaded, *, insecure: bool = False) -> None:
        self._loaded = loaded
        self._insecure = insecure
        self._loop = asyncio.get_running_loop()
        self.hub = Hub(
            self._loop.call_soon, self._loop.call_later, time.time_ns, list(JOURNALED), first_number=first_number()
        )
        self.gate = Gate(self.hub, self._loop)
        self._admission = self._admit(loaded)
        self._tls: ssl.SSLContext | None = None
        self._metrics = Metrics(self.hub, self.gate, self._loop)
        self._spoken = spoken_by(self.hub)
        self._rpc = RpcBridge(self.hub, self.gate.limits)
        self._journal: JournalKeeper | None = None
        self._servers: list[asyncio.AbstractServer | TlsListener] = []
        self._sockets: list[Path] = []
        self._idle: asyncio.TimerHandle | None = None
        self.addresses: dict[str, Address] = {}

    async def start(self) -> None:
        """Open all listeners. A ``ConfigError`` names the one that can't be."""
        config = self._loaded.config
        if config.tls is not None:
            self._tls = make_context(config.tls)
        wanted = config.listen.addresses()
        if config.journal.enabled:
            from polywire.server.journal_keeper import JournalKeeper  # noqa: PLC0415 - only a journal needs Arrow

            try:
                self._journal = JournalKeeper(config.journal, self.hub, self.gate, self._loop)
            except JournalError as error:
                raise ConfigError([Problem(f"can't open the journal: {error}", "journal.path")]) from error
            except OSError as error:
                where = error.filename or config.journal.path
                words = (
                    f"can't open the journal: {where}: {error.strerror or error}; name a folder the hub may write to"
                )
                raise ConfigError([Problem(words, "journal.path")]) from error
        try:
            await self._listen_websockets({key: each for key, each in wanted.items() if each.websocket})
            for key, address in wanted.items():
                if not address.websocket:
                    await self._listen(key, address)
        except BaseException:
            self._close_listeners()
            if self._journal is not None:
                await self._journal.close()
            raise
        self.addresses = {key: self.addresses[key] for key in wanted}
        self._heed_descriptors()
        BrokerInfo(self.hub).start()
        self._metrics.start()
        self._watch_idle()

    def reload(self) -> list[str]:
        """Take over the configuration as it is now. Returns what needs a restart; a bad file changes nothing."""
        loaded = self._loaded.again()
        loaded.check(insecure=self._insecure)
        config, old = loaded.config, self._loaded.config
        if config.tls is not None:
            make_context(config.tls)  # tried apart first, so that a bad file changes nothing
        admission = self._admit(loaded)
        if config.tls is not None and self._tls is not None:
            load_certificates(self._tls, config.tls)
        self._admission = admission
        self._loaded = loaded
        self._rpc.reload(self.gate.limits)
        return [name for name in ("listen", "journal", "fabric") if getattr(config, name) != getattr(old, name)]

    def refuse_new_work(self) -> None:
        """Take no more clients and no more messages, from this moment on."""
        if not self.gate.open:
            return
        self.gate.open = False
        self._close_listeners()
        self.hub.stop_work()
        self._rpc.drain()
        for endpoint in list(self.gate.connections):
            endpoint.drain()

    async def drain(self) -> None:
        """End without losing what was accepted, within the time the limits give."""
        end = self._loop.time() + self._loaded.config.limits.drain_time
        self.refuse_new_work()
        await self._settle(end)
        for client in list(self.hub.clients.values()):
            self.hub.send_wills(client)
        await self._settle(end)
        for endpoint in list(self.gate.connections):
            endpoint.goodbye()
        await self.close()

    async def close(self) -> None:
        """End now: close every connection and let go of everything."""
        self._close_listeners()
        self._metrics.stop()
        if self._idle is not None:
            self._idle.cancel()
        for endpoint in list(self.gate.connections):
            endpoint.close()
        if self.gate.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gate.emptied.wait(), CLOSE_TIME)
        for endpoint in list(self.gate.connections):
            endpoint.abort()
        await asyncio.sleep(0)
        self.gate.close()
        if self._journal is not None:
            await self._journal.close()

    def ready(self) -> dict[str, str]:
        """The listeners and their addresses, as the ``ready`` line shows them."""
        return {key: str(address) for key, address in self.addresses.items()}

    def _admit(self, loaded: Loaded) -> Admission:
        old: Admission | None = getattr(self, "_admission", None)
        throttle = old.authenticator.throttle if old is not None and old.authenticator is not None else None
        admission = make_admission(loaded.config, throttle)
        self.gate.apply(loaded.config, admission)
        return admission

    async def _listen(self, key: str, address: Address) -> None:
        if key == "http":
            handlers = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics_page}
            connections: HttpConnections = {}
            trees = self._trees(address)
            posts = self._posts(address)
            await self._open(key, address, lambda _: HttpProtocol(handlers, connections, trees, posts))
            return
        spoken = self._spoken.get(key)
        if spoken is None:
            raise ConfigError([Problem(f'nothing speaks {key} yet; set it to "off"', f"listen.{key}")])
        await self._open(key, address, lambda knock: StreamProtocol(self._endpoint(key, spoken), knock))

    def _trees(self, address: Address) -> dict[str, Tree]:
        wanted = self._loaded.config.journal
        if not wanted.enabled:
            return {}
        from polywire.server.journal_pages import JournalPages  # noqa: PLC0415 - Arrow, only where there is a journal

        return {"/journal/": JournalPages(wanted.path, self.gate, local=address.local)}

    def _posts(self, address: Address) -> dict[str, Post]:
        if not self._loaded.config.journal.enabled:
            return {}
        from polywire.server.ingest import Ingest  # noqa: PLC0415 - as above

        return {"/publish": Ingest(self.gate, local=address.local)}

    async def _open(self, key: str, address: Address, make_protocol: MakeProtocol) -> None:
        try:
            if address.scheme == "unix":
                path = Path(address.path)
                server = await self._loop.create_unix_server(_without_knock(make_protocol), path, backlog=BACKLOG)
                self._servers.append(server)
                self._sockets.append(path)
                self.addresses[key] = address
            else:
                self.addresses[key] = address.bound(await self._open_port(address, make_protocol))
        except OSError as error:
            raise self._not_listening(key, address, error) from error

    async def _open_port(self, address: Address, make_protocol: MakeProtocol) -> int:
        """Listen on a host and port. Returns the port."""
        if address.encrypted and self._tls is not None:
            listener = await TlsListener.open(self.gate, self._tls, make_protocol, address.host, address.port, BACKLOG)
            self._servers.append(listener)
            return listener.port
        protocol = _without_knock(make_protocol)
        server = await self._loop.create_server(protocol, address.host, address.port, backlog=BACKLOG)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _listen_websockets(self, wanted: dict[str, Address]) -> None:
        """Addresses on the same host and port share a socket, port 0 included."""
        ports: dict[tuple[str, str, int], list[str]] = {}
        for key, address in wanted.items():
            ports.setdefault((address.scheme, address.host, address.port), []).append(key)
        for keys in ports.values():
            paths = Paths(self.gate)
            for key in keys:
                spoken = self._spoken.get(key)
                if spoken is None:
                    raise ConfigError([Problem(f'nothing speaks {key} yet; set it to "off"', f"listen.{key}")])
                paths.add(
                    wanted[key].path,
                    self._endpoint_maker(key, spoken),
                    spoken.subprotocol,
                    stream=spoken.wrap is not None,
                )
            try:
                bound = await self._open_port(wanted[keys[0]], self._websocket_maker(paths))
            except OSError as error:
                raise self._not_listening(keys[0], wanted[keys[0]], error) from error
            for key in keys:
                self.addresses[key] = wanted[key].bound(bound)

    def _heed_descriptors(self) -> None:
        """Have no more connections than there are file descriptors for."""
        self.gate.most_connections = connections_left()
        if self.gate.most_connections < self.gate.max_connections:
            words = "there are file descriptors for %d connections only, not for the %d of limits.connections"
            log.info(words, self.gate.most_connections, self.gate.max_connections)

    def _websocket_maker(self, paths: Paths) -> MakeProtocol:
        return lambda knock: WebSocketProtocol(self.gate, paths, knock)

    def _endpoint_maker(self, key: str, spoken: Spoken) -> MakeEndpoint:
        return lambda: self._endpoint(key, spoken)

    def _endpoint(self, key: str, spoken: Spoken) -> Endpoint:
        protocol = PROTOCOLS.index(spoken.protocol)
        return Endpoint(self.gate, key, protocol, spoken.make_session, spoken.wrap)

    async def _settle(self, end: float) -> None:
        """Wait until what was accepted is written and answered, and every call has ended, or the time is over."""
        while self._loop.time() < end:
            busy = self.hub.services.under_way() or any(each.busy() for each in self.gate.connections)
            if not busy:
                return
            await asyncio.sleep(SETTLE_STEP)

    def _watch_idle(self) -> None:
        """Close connections that have been silent for too long."""
        limit = self.gate.idle_time
        if limit > 0:
            oldest = self._loop.time() - limit
            for endpoint in [each for each in self.gate.connections if each.is_silent_since(oldest)]:
                endpoint.idle()
        self._idle = self._loop.call_later(1.0, self._watch_idle)

    def _close_listeners(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        for path in self._sockets:
            path.unlink(missing_ok=True)
        self._sockets.clear()

    def _healthz(self) -> Answer:
        return 200, "text/plain", b"ok\n"

    def _readyz(self) -> Answer:
        if not self.gate.open:
            return 503, "text/plain", b"draining\n"
        if self.gate.journaling is not None and self.gate.journaling.failed:
            return 503, "text/plain", b"the journal can't be written\n"
        return 200, "text/plain", b"ready\n"

    def _metrics_page(self) -> Answer:
        return 200, CONTENT_TYPE, self._metrics.text()

    @staticmethod
    def _not_listening(key: str, address: Address, error: OSError) -> ConfigError:
        words = f"can't listen on {address}: {error.strerror or error}; free it, or choose another with port 0"
        return ConfigError([Problem(words, f"listen.{key}")])


def _without_knock(make_protocol: MakeProtocol) -> Callable[[], asyncio.BaseProtocol]:
    """What makes the protocols of connections that begin without TLS."""
    return lambda: make_protocol(None)
