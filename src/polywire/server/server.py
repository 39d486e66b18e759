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
import os
import resource
import signal
import socket
import ssl
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from polywire.errors import PolywireError
from polywire.hub.hub import SERIES, SERIES_SHIFT, Hub
from polywire.journal.errors import JournalError
from polywire.process import leave_out_pandas, tune_allocator
from polywire.protocols.fmqp.delivery import BrokerInfo
from polywire.protocols.mqtt.kept import sessions_of
from polywire.protocols.mqttrpc.session import RpcBridge
from polywire.registry import by_name, names, unusable
from polywire.server import logs, runtime
from polywire.server.address import Address
from polywire.server.config import Config, ConfigError, Loaded, Problem
from polywire.server.config.admission import Admission, load_certificates, make_admission, make_context
from polywire.server.gate import Gate
from polywire.server.listeners import ALONE, Listeners, Sharing
from polywire.server.logs import Seldom
from polywire.server.metrics import Metrics

if TYPE_CHECKING:
    from polywire.fabric import Membership
    from polywire.server.fabric import Node
    from polywire.server.http import HttpServer
    from polywire.server.ingest import Ingest
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


class Pages(Protocol):
    """The pages of a supervisor, in the place of a hub's. It knows the nodes, too (``http.Cluster``)."""

    def add(self, http: "HttpServer") -> None:
        """Add them."""

    async def page(self) -> bytes:
        """The metrics."""

    async def cluster(self) -> dict[str, object]:
        """All nodes."""

    async def drain_node(self, node: str) -> None:
        """Make one of them end."""


def add_journal_pages(http: "HttpServer", folder: Path, gate: Gate, ingest: "Ingest") -> None:
    """Add what there is only with a journal: its files, and publishing in parts that are applied once."""
    # Only a journal needs Arrow.
    from polywire.server.ingest import PublishPage  # noqa: PLC0415
    from polywire.server.journal_pages import JournalPages  # noqa: PLC0415

    http.add_page("/journal/", JournalPages(folder, gate, http).answer, below=True)
    http.add_publisher("/publish", PublishPage(http, ingest))


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
    """One hub and its listeners.

    A worker has a ``membership`` and its own ``name`` in the log, and its ``sharing`` says what it has in common with
    the other workers. The supervisor has a hub too, for its ``pages`` on the HTTP listener and nothing else.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        insecure: bool = False,
        name: str = "",
        membership: "Membership | None" = None,
        sharing: Sharing = ALONE,
        pages: Pages | None = None,
    ) -> None:
        self._loaded = self._running = loaded
        self._membership = membership
        self._label = name
        self._pages = pages
        self._ingest: Ingest | None = None
        self._insecure = insecure
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._node_name = node_name(loaded.config)
        self.hub = Hub(
            self._loop.call_soon,
            self._loop.call_later,
            time.time_ns,
            list(names()),
            first_number=first_number(self._node_name if self._is_node() else ""),
        )
        self._warnings: dict[str, Seldom] = {}
        self.hub.on_warning = self._warn
        self.gate = Gate(self.hub, self._loop)
        self._admission = self._admit(loaded)
        sessions_of(self.hub, by_name("mqtt").code).limits = self.gate.limits
        self._tls: ssl.SSLContext | None = None
        self.metrics = Metrics(self.hub, self.gate, self._loop)
        self._http: HttpServer | None = None
        self._listeners = Listeners(self.gate, self._open_http, sharing)
        self._rpc = RpcBridge(self.hub, self.gate.limits)
        self._journal: JournalKeeper | None = None
        self._node: Node | None = None
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
            if self._is_node():
                await self._join()
            await self._listeners.open(config.listen.addresses(), self._tls)
            self._about.update(self.ready())
        except BaseException:
            await self._close_last()
            raise
        self._heed_descriptors()
        BrokerInfo(self.hub).start()
        self.metrics.start()
        self._watch_idle()

    def heed(self, on_signal: Callable[[str], None]) -> None:
        """Call this when a client wants the hub to ``stop`` or to ``terminate``."""
        self.hub.on_signal = on_signal

    async def reload(self) -> list[str]:
        """Apply the current configuration, its rights to every client. A bad file changes nothing.

        Returns the sections that differ from those the hub was started with, and need a restart.
        """
        left = self._apply()
        logs.set_up(self._loaded.config.log, self._label)
        renewed = asyncio.Event()
        self.gate.when_renewed(renewed.set)
        await renewed.wait()
        return left

    def _apply(self) -> list[str]:
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

    async def terminate(self) -> None:
        """End now, whatever is left to write."""
        for endpoint in list(self.gate.connections):
            endpoint.abort()
        await self.close()

    async def close(self) -> None:
        """End now: close every connection and let go of everything, the HTTP listener last."""
        self.gate.open = False
        self._listeners.close(http=False)
        self.metrics.stop()
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

    def _is_node(self) -> bool:
        """Whether there are others."""
        return self._membership is not None or self._running.config.fabric.kind == "nats"

    async def _join(self) -> None:
        """Become a node of the cluster."""
        from polywire.server.fabric import nats_node, worker_node  # noqa: PLC0415 - a single hub has none of it

        config, hub = self._loaded.config, self.hub
        journal = config.journal.path if config.journal.enabled else None
        if config.fabric.kind == "nats":
            try:
                node = nats_node(config.fabric, hub, self._node_name, self._about, journal)
            except ModuleNotFoundError as error:
                words = f"a cluster on NATS needs {error.name}: pip install 'polywire[cluster]'"
                raise ConfigError([Problem(words, "fabric.kind")]) from error
        else:
            assert self._membership is not None  # noqa: S101 - see where this is called
            node = worker_node(config.fabric, hub, self._membership, journal)
        await node.start()
        self._node = node

    async def _close_last(self) -> None:
        if self._node is not None:
            await self._node.stop()
        if self._http is not None:
            await self._http.stop_work()
        if self._ingest is not None:
            await self._ingest.close()
        if self._journal is not None:
            await self._journal.close()
        self._listeners.close()
        if self._http is not None:
            await self._http.close()
        self.gate.close()

    def status(self) -> dict[str, object]:
        """What ``/v1/cluster`` shows of this hub by itself."""
        found: dict[str, object] = {
            "clients": len(self.hub.clients),
            "subscriptions": len(self.hub.table),
            "queues": len(self.hub.queues),
        }
        if self._node is not None:
            found |= self._node.status()
        return found

    async def cluster(self) -> dict[str, object]:
        """This hub, and what its membership knows of the others."""
        state = "running" if self.gate.open else "draining"
        uptime = round(self._loop.time() - self._started, 1)
        own = {"node": self._node_name, "state": state, "pid": os.getpid(), "uptime": uptime, **self.status()}
        return {"kind": self._loaded.config.fabric.kind, "nodes": [own]}

    async def drain_node(self, node: str) -> None:
        """Drain this hub. Other nodes are to be asked themselves."""
        from polywire.server.http import Refused  # noqa: PLC0415 - only a hub with that listener needs aiohttp

        if node != self._node_name:
            raise Refused(404, f"this node is {self._node_name}; ask {node} itself")
        if self.hub.on_signal is not None:
            self.hub.on_signal("stop")

    async def _open_http(self, address: Address) -> "HttpServer":
        # Only a hub with this listener needs aiohttp.
        from polywire.server.http import HttpLimits, HttpServer  # noqa: PLC0415

        limits = HttpLimits(connections=http_connections())
        self._http = HttpServer(self.gate, self._pages or self.metrics, address, limits)
        self._http.add_cluster(self._pages or self)
        if self._pages is not None:
            self._pages.add(self._http)
        elif self._loaded.config.journal.enabled:
            add_journal_pages(self._http, self._loaded.config.journal.path, self.gate, self.ingest)
        await self._http.start()
        return self._http

    @property
    def ingest(self) -> "Ingest":
        """Publishes parts of the pipeline's queries; made when it is first needed."""
        if self._ingest is None:
            from polywire.server.ingest import Ingest  # noqa: PLC0415 - only a journal needs Arrow

            self._ingest = Ingest(self.gate)
        return self._ingest

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
            busy = busy or (self._ingest is not None and self._ingest.busy())
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


class Service(Protocol):
    """What is run: a hub, or the supervisor of several workers."""

    def heed(self, on_signal: Callable[[str], None]) -> None:
        """Call this when a client wants the hub to ``stop`` or to ``terminate``."""

    @property
    def loaded(self) -> Loaded:
        """The configuration that is in effect."""

    async def start(self) -> None:
        """Listen. A ``ConfigError`` says why that is not possible."""

    def ready(self) -> dict[str, str]:
        """The listeners and their addresses."""

    async def reload(self) -> list[str]:
        """Apply the current configuration everywhere. Returns the sections that need a restart.

        Where it can't be used nothing changes, and a ``PolywireError`` says why.
        """

    def refuse_new_work(self) -> None:
        """Take no more clients and no more messages, from this moment on."""

    async def drain(self) -> None:
        """End without losing what was accepted."""

    async def terminate(self) -> None:
        """End now."""


class Report(Protocol):
    """Who wants to know how a service does."""

    def started(self, service: Service) -> None:
        """It listens."""

    def draining(self) -> None:
        """It is about to end."""

    def ended(self) -> None:
        """It has ended, even if that was by an error."""


def serve(loaded: Loaded, *, insecure: bool = False, pid_file: Path | None = None) -> int:
    """Run the hub until SIGTERM, SIGINT or a client's signal. Returns the exit code.

    ``pid_file`` is where its runtime file goes instead of the usual place.
    """
    return launch(lambda: Server(loaded, insecure=insecure), loaded, pid_file)


def launch(make: Callable[[], Service], loaded: Loaded, pid_file: Path | None) -> int:
    """Run a service as the process of a command, which prints its ``ready`` line and has a runtime file."""
    prepare(loaded)
    if pid_file is not None:
        runtime.check_free(pid_file)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_launched(make, pid_file))


async def _launched(make: Callable[[], Service], pid_file: Path | None) -> int:
    return await run(make(), _About(pid_file), Stopping())


def prepare(loaded: Loaded, node: str = "") -> None:
    """Make the process ready for a hub. ``node`` is its name in the log, where there are several."""
    logs.set_up(loaded.config.log, node)
    tune_allocator()
    leave_out_pandas()
    raise_limit()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's loop where there is uvloop, else the standard one."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


class Stopping:
    """Whether a service is to end, and how soon."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.at_once = asyncio.Event()

    def stop(self) -> None:
        """Drain; the second time, end at once."""
        if self.wanted.is_set():
            self.at_once.set()
        self.wanted.set()

    def terminate(self) -> None:
        """End at once."""
        self.at_once.set()
        self.wanted.set()


async def run(service: Service, report: Report, stopping: Stopping) -> int:
    """Run a service from its start to its end. Returns the exit code."""
    loop = asyncio.get_running_loop()

    def signalled(what: str) -> None:
        """A client's signal: ``stop`` drains, ``terminate`` does not."""
        log.warning("a client asked the hub to %s", what)
        service.refuse_new_work()
        if what == "terminate":
            stopping.terminate()
        else:
            stopping.wanted.set()

    service.heed(signalled)
    await service.start()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopping.stop)
    gc.collect()
    gc.freeze()  # what is here now stays; the collector need not look at it again
    gc.set_threshold(*COLLECT)
    report.started(service)
    try:
        await stopping.wanted.wait()
        if not stopping.at_once.is_set():
            service.refuse_new_work()  # at once: the log reports what has happened, not what will
            report.draining()
            log.info("draining")
            draining = asyncio.create_task(service.drain())
            ended = asyncio.create_task(stopping.at_once.wait())
            await asyncio.wait({draining, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if draining.done():
                draining.result()
                log.info("stopped")
                return 0
            draining.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await draining
        await service.terminate()
        log.info("stopped at once")
        return 0
    finally:
        report.ended()


class _About:
    """What other programs can see of this hub: its ready line, its runtime file, and how its last reload ended."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: runtime.RuntimeFile | None = None
        self._reloads = 0
        self._reloading: asyncio.Task[None] | None = None

    def started(self, service: Service) -> None:
        """Write the runtime file and the ready line."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload, service)
        try:
            self._file = runtime.create(self._path, service.loaded, service.ready())
        except OSError as error:
            words = "no runtime file (%s): polywire status, reload and stop will not find this hub"
            log.warning(words, error)
        line = "ready " + json.dumps(service.ready())
        print(line, flush=True)  # noqa: T201 - the contract with the process that started us

    def _reload(self, service: Service) -> None:
        """SIGHUP: apply the current configuration, once the reload before this one has ended."""
        self._reloading = asyncio.get_running_loop().create_task(self._reload_after(self._reloading, service))

    async def _reload_after(self, before: "asyncio.Task[None] | None", service: Service) -> None:
        if before is not None:
            await before
        try:
            left = await service.reload()
        except PolywireError as error:
            log.error("reload failed, nothing has changed: %s", error)  # noqa: TRY400 - the message says it all
            self._report(service, str(error))
            return
        log.info("configuration reloaded")
        for section in left:
            log.warning("[%s] has changed, which takes effect at the next start", section)
        self._report(service, left=tuple(left))

    def _report(self, service: Service, problem: str = "", left: tuple[str, ...] = ()) -> None:
        self._reloads += 1
        done = runtime.Reload(self._reloads, time.time(), problem, left)
        self._tell(reload=done, drain_time=service.loaded.config.limits.drain_time)

    def draining(self) -> None:
        """The hub is about to end."""
        self._tell(draining=True)

    def _tell(self, **changes: object) -> None:
        """Change what the runtime file says."""
        if self._file is not None:
            try:
                self._file.update(**changes)
            except OSError as error:
                log.warning("the runtime file can't be written: %s", error)

    def ended(self) -> None:
        """The hub has ended."""
        if self._reloading is not None:
            self._reloading.cancel()
        if self._file is not None:
            self._file.remove()
