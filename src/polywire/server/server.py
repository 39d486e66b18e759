"""The server: a hub, its listeners and its journal, started and stopped without losing what was accepted.

``start`` listens, ``reload`` applies a changed configuration, ``drain`` stops in the order that FMQP specifies for
``$/signals/stop``: no new clients, no new messages, accepted messages are delivered, then last wills, and connections
are closed with their protocol's closing message.

New connections are refused before file descriptors run out, so that existing connections, files and HTTP pages keep
working.

``serve`` is the process of ``polywire serve``: SIGTERM and Ctrl-C drain, a second one ends at once, and SIGHUP reloads
the configuration. Standard output gets the ``ready`` line and nothing else.
"""

import asyncio
import contextlib
import gc
import importlib.util
import json
import logging
import resource
import signal
import socket
import ssl
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from polywire.errors import PolywireError
from polywire.hub.hub import SERIES, SERIES_SHIFT, Hub
from polywire.journal.errors import JournalError
from polywire.memory import leave_out_pandas, tune_allocator
from polywire.protocols.fmqp.delivery import BrokerInfo
from polywire.protocols.mqtt.kept import sessions_of
from polywire.protocols.mqttrpc.session import RpcBridge
from polywire.registry import by_name, names, unusable
from polywire.server import logs, runtime
from polywire.server.address import Address
from polywire.server.config import Config, ConfigError, Loaded, Problem
from polywire.server.config.admission import Admission, load_certificates, make_admission, make_context
from polywire.server.gate import Gate
from polywire.server.listeners import Listeners
from polywire.server.logs import Seldom
from polywire.server.metrics import Metrics

if TYPE_CHECKING:
    from polywire.server.fabric import NatsNode
    from polywire.server.http import HttpServer
    from polywire.server.restoration import JournalKeeper

COLLECT = (10_000, 20, 20)
"""After how many new objects, and rounds, the garbage collector runs: rarely, because few of the hub's objects
have cycles, and looking at everything takes tens of milliseconds when there are many clients."""

OTHERS = 16
"""Descriptors for files that are read again, and the like."""


def raise_limit() -> None:
    """Raise the soft limit of this process to its hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than the hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def http_connections() -> int:
    """How many connections the HTTP listener may have: few, and always available."""
    return min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16, 32), 256)


def connections_left() -> int:
    """How many connections there can be besides what is open now; at least one."""
    kept = http_connections() + OTHERS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    descriptors = Path("/dev/fd")
    used = sum(1 for _ in descriptors.iterdir()) if descriptors.is_dir() else kept
    return max(1, limit - used - kept)


NEED_RESTART = ("journal", "fabric")
"""Sections that a reload does not apply; of ``[listen]`` that is true of the addresses."""

SETTLE_STEP = 0.02
CLOSE_TIME = 1.0
"""Seconds a peer has to take its last bytes once its connection is being closed."""

LEAVE_TIME = 10.0
"""Seconds for ending what the clients had: their subscriptions, say, and storing those of kept sessions."""

log = logging.getLogger("polywire.server")


def add_journal_pages(http: "HttpServer", folder: Path, gate: Gate) -> None:
    """Add what there is only with a journal: its files, and publishing in parts that are applied once."""
    # Only a journal needs Arrow.
    from polywire.server.ingest import Ingest  # noqa: PLC0415
    from polywire.server.journal_pages import JournalPages  # noqa: PLC0415

    http.add_page("/journal/", JournalPages(folder, gate, http).answer, below=True)
    http.add_publisher("/publish", Ingest(gate, http))


def first_number(node: str) -> int:
    """Where a hub begins to count connections and calls, so that no two starts, on any node, give the same number.

    Nodes whose names lead to the same series by chance notice that when they link, and one of them takes another. A hub
    that is no node, without a name here, uses the first series.
    """
    series = zlib.crc32(node.encode()) % SERIES if node else 0
    return (series << SERIES_SHIFT) + (int(time.time()) << 20)


def node_name(config: Config) -> str:
    """What the hub is called among others, and in its journal."""
    return config.fabric.node or config.journal.node or socket.gethostname()


class Server:
    """One hub and its listeners."""

    def __init__(self, loaded: Loaded, *, insecure: bool = False) -> None:
        self._loaded = self._running = loaded
        self._insecure = insecure
        self._loop = asyncio.get_running_loop()
        self._node_name = node_name(loaded.config)
        self.hub = Hub(
            self._loop.call_soon,
            self._loop.call_later,
            time.time_ns,
            list(names()),
            first_number=first_number("" if loaded.config.fabric.kind == "none" else self._node_name),
        )
        self._warnings: dict[str, Seldom] = {}
        self.hub.on_warning = self._warn
        self.gate = Gate(self.hub, self._loop)
        self._admission = self._admit(loaded)
        self._tls: ssl.SSLContext | None = None
        self._metrics = Metrics(self.hub, self.gate, self._loop)
        self._http: HttpServer | None = None
        self._listeners = Listeners(self.gate, self._open_http)
        self._rpc = RpcBridge(self.hub, self.gate.limits)
        self._journal: JournalKeeper | None = None
        self._node: NatsNode | None = None
        self._about: dict[str, str] = {}  # what other nodes can read of this one
        self._idle: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open all listeners. A ``ConfigError`` names the one that can't be."""
        config = self._loaded.config
        for problem in unusable():
            log.error("%s", problem)
        if config.tls is not None:
            self._tls = make_context(config.tls)
        if config.journal.enabled:
            from polywire.server.restoration import JournalKeeper  # noqa: PLC0415 - only a journal needs Arrow

            try:
                self._journal = JournalKeeper(config.journal, self._node_name, self.hub, self.gate, self._loop)
            except JournalError as error:
                raise ConfigError([Problem(f"can't open the journal: {error}", "journal.path")]) from error
            except OSError as error:
                where = error.filename or config.journal.path
                reason = error.strerror or error
                words = f"can't open the journal: {where}: {reason}; use a directory that the hub can write to"
                raise ConfigError([Problem(words, "journal.path")]) from error
        try:
            if config.fabric.kind == "nats":
                await self._join()
            await self._listeners.open(config.listen.addresses(), self._tls)
            self._about.update(self.ready())
        except BaseException:
            await self._close_last()
            raise
        self._heed_descriptors()
        BrokerInfo(self.hub).start()
        self._metrics.start()
        self._watch_idle()

    def reload(self) -> list[str]:
        """Apply the current configuration. A bad file changes nothing.

        Returns the sections that differ from those the hub was started with, and need a restart.
        """
        loaded = self._loaded.again()
        loaded.check(insecure=self._insecure)
        config = loaded.config
        if config.tls is not None:
            make_context(config.tls)  # tried apart first, so that a bad file changes nothing
        admission = self._admit(loaded)
        if config.tls is not None and self._tls is not None:
            load_certificates(self._tls, config.tls)
        self._admission = admission
        self._loaded = loaded
        self._rpc.reload(self.gate.limits)
        sessions_of(self.hub, by_name("mqtt").code).limits = self.gate.limits
        self._warn_about_descriptors()
        running = self._running.config
        left = [name for name in NEED_RESTART if getattr(config, name) != getattr(running, name)]
        return ["listen", *left] if config.listen.addresses() != running.listen.addresses() else left

    @property
    def loaded(self) -> Loaded:
        """The configuration that is in effect."""
        return self._loaded

    def refuse_new_work(self) -> None:
        """Take no more clients and no more messages, from this moment on."""
        if not self.gate.open:
            return
        self.gate.open = False
        self._listeners.close(http=False)  # which keeps reporting that the hub is draining
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
        """End now: close every connection and let go of everything, the HTTP listener last."""
        self.gate.open = False
        self._listeners.close(http=False)
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
        end = self._loop.time() + LEAVE_TIME
        while not self.hub.work.idle() and self._loop.time() < end:  # noqa: ASYNC110 - it ends by working
            await asyncio.sleep(0)  # what ends with the connections is journaled too
        await self._close_last()

    async def _join(self) -> None:
        """Become a node of the cluster."""
        try:
            from polywire.server.fabric import NatsNode  # noqa: PLC0415 - only a cluster needs nats-py
        except ModuleNotFoundError as error:
            words = f"a cluster on NATS needs {error.name}: pip install 'polywire[cluster]'"
            raise ConfigError([Problem(words, "fabric.kind")]) from error
        config = self._loaded.config
        folder = config.journal.path if config.journal.enabled else None
        node = NatsNode(config.fabric, self.hub, self._node_name, self._about, folder)
        await node.start()
        self._node = node

    async def _close_last(self) -> None:
        if self._node is not None:
            await self._node.stop()
        if self._http is not None:
            await self._http.stop_work()
        if self._journal is not None:
            await self._journal.close()
        self._listeners.close()
        if self._http is not None:
            await self._http.close()
        self.gate.close()

    async def _open_http(self, address: Address) -> "HttpServer":
        # Only a hub with this listener needs aiohttp.
        from polywire.server.http import HttpLimits, HttpServer  # noqa: PLC0415

        limits = HttpLimits(connections=http_connections())
        self._http = HttpServer(self.gate, self._metrics, address, limits)
        if self._loaded.config.journal.enabled:
            add_journal_pages(self._http, self._loaded.config.journal.path, self.gate)
        await self._http.start()
        return self._http

    def ready(self) -> dict[str, str]:
        """The listeners and their addresses, as the ``ready`` line shows them."""
        return {key: str(address) for key, address in self._listeners.addresses.items()}

    def _admit(self, loaded: Loaded) -> Admission:
        old: Admission | None = getattr(self, "_admission", None)
        throttle = old.authenticator.throttle if old is not None and old.authenticator is not None else None
        admission = make_admission(loaded.config, throttle)
        self.gate.apply(loaded.config, admission)
        return admission

    def _warn(self, kind: str, text: str) -> None:
        """Write a line that clients can cause, at most one of each kind in a few seconds."""
        if kind not in self._warnings:
            self._warnings[kind] = Seldom(log, self._loop.time)
        self._warnings[kind].warn("%s", text)

    def _heed_descriptors(self) -> None:
        """Have no more connections than there are file descriptors for."""
        self.gate.most_connections = connections_left()
        self._warn_about_descriptors()

    def _warn_about_descriptors(self) -> None:
        """Warn where ``limits.connections`` was set, not left at its default, to more than the system allows."""
        most, wanted = self.gate.most_connections, self.gate.max_connections
        if most < wanted and self._loaded.origin("limits", "connections").kind != "default":
            words = "limits.connections is %d, but the limit on open files allows only %d; raise it (ulimit -Hn)"
            log.warning(words, wanted, most)

    async def _settle(self, end: float) -> None:
        """Wait until what was accepted is written and answered, and every call has ended, or the time is over."""
        while self._loop.time() < end:
            busy = self.hub.services.under_way() or any(each.busy() for each in self.gate.connections)
            busy = busy or len(self.hub.work) > 0 or (self._http is not None and self._http.busy())
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


def serve(loaded: Loaded, *, insecure: bool = False, pid_file: Path | None = None) -> int:
    """Run the hub until SIGTERM, SIGINT or a client's signal. Returns the exit code.

    ``pid_file`` is where its runtime file goes instead of the usual place.
    """
    logs.set_up(loaded.config.log)
    tune_allocator()
    leave_out_pandas()
    raise_limit()
    if pid_file is not None:
        runtime.check_free(pid_file)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(loaded, insecure=insecure, pid_file=pid_file))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's loop where there is uvloop, else the standard one."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


async def _serve(loaded: Loaded, *, insecure: bool, pid_file: Path | None) -> int:
    loop = asyncio.get_running_loop()
    server = Server(loaded, insecure=insecure)
    stopping = asyncio.Event()
    at_once = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            at_once.set()
        stopping.set()

    def signalled(what: str) -> None:
        """A client's signal: ``stop`` drains, ``terminate`` does not."""
        log.warning("a client asked the hub to %s", what)
        server.refuse_new_work()
        if what == "terminate":
            at_once.set()
        stopping.set()

    await server.start()
    server.hub.on_signal = signalled
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop)
    about = _About(server)
    loop.add_signal_handler(signal.SIGHUP, about.reload)
    about.create(pid_file)
    gc.collect()
    gc.freeze()  # what is here now stays; the collector need not look at it again
    gc.set_threshold(*COLLECT)
    print("ready " + json.dumps(server.ready()), flush=True)  # noqa: T201 - the contract with the process that started us
    try:
        await stopping.wait()
        if not at_once.is_set():
            server.refuse_new_work()  # at once: the log reports what has happened, not what will
            about.tell(draining=True)
            log.info("draining")
            draining = asyncio.create_task(server.drain())
            ended = asyncio.create_task(at_once.wait())
            await asyncio.wait({draining, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if draining.done():
                draining.result()
                log.info("stopped")
                return 0
            draining.cancel()
        for endpoint in list(server.gate.connections):
            endpoint.abort()
        await server.close()
        log.info("stopped at once")
        return 0
    finally:
        about.remove()


class _About:
    """What other programs can see of this hub: its runtime file, and how its last reload ended."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._file: runtime.RuntimeFile | None = None
        self._reloads = 0

    def create(self, path: Path | None) -> None:
        """Write the runtime file."""
        try:
            self._file = runtime.create(path, self._server.loaded, self._server.ready())
        except OSError as error:
            words = "no runtime file (%s): polywire status, reload and stop will not find this hub"
            log.warning(words, error)

    def reload(self) -> None:
        """SIGHUP: apply the current configuration."""
        try:
            left = self._server.reload()
        except PolywireError as error:
            log.error("reload failed, nothing has changed: %s", error)  # noqa: TRY400 - the message says it all
            self._report(str(error))
        else:
            logs.set_up(self._server.loaded.config.log)
            self._server.gate.when_renewed(lambda: self._reloaded(left))

    def _reloaded(self, left: list[str]) -> None:
        """The new configuration is in effect, its rules for every client."""
        log.info("configuration reloaded")
        for section in left:
            log.warning("[%s] has changed, which takes effect at the next start", section)
        self._report(left=tuple(left))

    def _report(self, problem: str = "", left: tuple[str, ...] = ()) -> None:
        self._reloads += 1
        done = runtime.Reload(self._reloads, time.time(), problem, left)
        self.tell(reload=done, drain_time=self._server.loaded.config.limits.drain_time)

    def tell(self, **changes: object) -> None:
        """Change what the runtime file says."""
        if self._file is not None:
            try:
                self._file.update(**changes)
            except OSError as error:
                log.warning("the runtime file can't be written: %s", error)

    def remove(self) -> None:
        """The hub has ended."""
        if self._file is not None:
            self._file.remove()
