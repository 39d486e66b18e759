"""The HTTP listener: authentication, pages, and how much of the hub one request may use.

``aiohttp`` speaks HTTP; this module is imported only where the listener is on. Connections are accepted by
``listeners.py`` as those of every other protocol, so TLS, its reload and client certificates are the same here.

Three things keep a request from delaying the hub. Input is parsed for a moment at a time (``Intake``). Bodies are
accepted only where they are expected, bounded in size, number, chunks and time (``Bodies``). Work that takes longer
belongs in a thread, or is cut into slices by its page.
"""

import asyncio
import base64
import binascii
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from polywire.hub.access import ANONYMOUS, Identity
from polywire.hub.peer import Login, Refusal
from polywire.hub.work import DONE, TURN, Turns, Work
from polywire.registry import HTTP_CODE
from polywire.server.address import Address
from polywire.server.gate import Gate, Knock
from polywire.server.logs import Seldom
from polywire.server.metrics import CONTENT_TYPE

LISTENER: Final = "http"
TEXT: Final = "text/plain"
OPEN_PAGES: Final = ("/healthz", "/readyz")
"""Pages that only show whether the hub works: probes may read them without logging in, under any host name."""

DRAIN: Final = "/v1/nodes/{node}/drain"
STOP: Final = "$/signals/stop"
"""The signal whose sender may drain nodes as well."""

SLICE: Final = 4096
"""Bytes of a request that are parsed at once."""

JOINED: Final = 1 << 20
"""Bytes of a body that are put together at once."""

READS: Final = 256
"""Pieces of a body that are taken before others get their turn."""

LINGER_SECONDS: Final = 1.0
"""How long a client may keep sending a refused request; closing at once could keep the answer from reaching it."""

CLOSE_SECONDS: Final = 1.0
"""How long requests may take once the hub has closed everything else."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger("polywire.server")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What the HTTP listener may use. Times are in seconds."""

    connections: int = 256
    keep_alive: float = 30.0  # between two requests, and for the head of one
    line: int = 8190  # the request line, and each header
    headers: int = 64
    bodies: int = 8  # bodies being received or applied at once
    body_bytes: int = 64 << 20  # of all of them
    body_time: float = 60.0
    body_silence: float = 10.0
    chunks: int = 16_384  # of one body
    write_time: float = 30.0  # without the client taking anything


class Refused(Exception):  # noqa: N818 - what happened to the request
    """A request that is refused: its status and the reason for the client, ``fault`` for the metrics and the log."""

    def __init__(self, status: int, reason: str, *, fault: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.fault = fault
        self.headers = headers or {}


class Publisher(Protocol):
    """A page whose requests go on after they have been received."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""

    def busy(self) -> bool:
        """Whether something that was accepted is still being published."""

    async def close(self) -> None:
        """Publish nothing more."""


class MetricsPage(Protocol):
    """Where the metrics come from."""

    async def page(self) -> bytes:
        """All of them, in the text format."""


class Cluster(Protocol):
    """What knows the nodes: a hub, or the supervisor of workers."""

    async def cluster(self) -> dict[str, object]:
        """All nodes that are known, and what this one knows of them."""

    async def drain_node(self, node: str) -> None:
        """Make a node hand over what it has, and end. ``Refused`` where that can't be done from here."""


class HttpServer:
    """The HTTP listener of one hub: pages are added, then it is started. Calling it makes a connection's protocol.

    ``problem`` says why the hub is not ready; it is empty while it is.
    """

    def __init__(self, gate: Gate, metrics: MetricsPage, address: Address, limits: HttpLimits | None = None) -> None:
        self._gate = gate
        self._metrics = metrics
        self._address = address
        self.limits = limits or HttpLimits()
        self.handshaking = 0  # connections of which TLS is not done
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._active: set[Connection] = set()  # those with a request
        self._faults = gate.hub.counters[HTTP_CODE]
        self._complaint = Seldom(log, time.monotonic)
        self.door = Door(gate)
        self.problem: Callable[[], str] = self._problem
        self.bodies = Bodies(self.limits)
        self._app = web.Application(middlewares=[self._guard])
        self._app.on_response_prepare.append(_no_server_version)
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        self._pages: list[str] = []
        self._publisher: Publisher | None = None
        self.add_page("/healthz", self._healthz)
        self.add_page("/readyz", self._readyz)
        self.add_page("/metrics", self._metrics_page)

    def add_page(self, path: str, handler: Handler, *, below: bool = False) -> None:
        """Answer GET for a path, or for everything below it."""
        self._pages.append(path)
        self._app.router.add_get(path + "{name:.*}" if below else path, handler)

    def add_cluster(self, cluster: Cluster) -> None:
        """Show the nodes, and let them be drained."""
        pages = ClusterPages(self, self._gate, cluster)
        self.add_page("/v1/cluster", pages.show)
        self._pages.append(DRAIN)
        self._app.router.add_post(DRAIN, pages.drain)

    def add_publisher(self, path: str, publisher: Publisher) -> None:
        """Answer POST for a path. There is one publisher."""
        self._pages.append(path)
        self._app.router.add_post(path, publisher.answer)
        self._publisher = publisher

    async def start(self) -> None:
        """Get ready for connections; no pages can be added after that."""
        await self._runner.setup()

    def __call__(self, knock: Knock | None) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        return Intake(Connection(self, cast("web.Server", self._runner.server), knock), self._gate.turns)

    def knock(self) -> Knock | None:
        """Let a connection begin its TLS handshake. Other protocols' connections don't count here, nor does a drain."""
        return Knock(self) if self.handshaking < self.limits.connections else None

    def busy(self) -> bool:
        """Whether a part that was accepted is still being published."""
        return self._publisher is not None and self._publisher.busy()

    async def stop_work(self) -> None:
        """Publish nothing more: the journal is about to be closed."""
        if self._publisher is not None:
            await self._publisher.close()

    async def close(self) -> None:
        """Finish what is being answered, within a moment, and close all connections."""
        await self._runner.cleanup()

    def entered(self, connection: "Connection") -> bool:
        """Count a new connection. If there are too many, close the one that was idle longest; False if none is idle."""
        if len(self._connections) >= self.limits.connections:
            idle = next((each for each in self._connections if each not in self._active), None)
            if idle is None:
                self.count(
                    "connections", "an HTTP connection was refused: the limit of %d is reached", len(self._connections)
                )
                return False
            del self._connections[idle]
            idle.abort()
        self._connections[connection] = None
        return True

    def left(self, connection: "Connection") -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)

    def count(self, fault: str, words: str, *arguments: object) -> None:
        """Count a request that went wrong, and log it, though not every time."""
        self._faults.fault(fault)
        self._complaint.warn(words, *arguments)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request or refuse it. An error never affects the rest of the hub."""
        connection = cast("Connection", request.protocol)
        self._active.add(connection)
        try:
            await asyncio.sleep(0)  # several requests in one read don't delay others
            self._check(request)
            return await handler(request)
        except Refused as refused:
            if refused.fault:
                self.count(refused.fault, "an HTTP request from %s was refused: %s", request.remote, refused.reason)
            return _refusal(request, refused)
        except web.HTTPNotFound:
            return _refusal(request, Refused(404, f"no such page; available: {', '.join(self._pages)}"))
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return _refusal(request, Refused(405, f"only {allowed} is allowed here", headers={"Allow": allowed}))
        finally:
            self._active.discard(connection)

    def _check(self, request: web.Request) -> None:
        """Refuse what no page wants: names and origins that are not ours, and bodies where none is expected."""
        if request.body_exists and request.method != "POST":
            raise Refused(413, "this request must not have a body", fault="unexpected-body")
        if request.path in OPEN_PAGES:
            return
        headers = request.headers
        why = self._gate.origin_problem(headers.get("host", ""), headers.get("origin"), self._address)
        if why is not None:
            raise Refused(403, why, fault="origin")

    async def _healthz(self, _: web.Request) -> web.Response:
        return answer(200, "ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        problem = "draining" if not self._gate.open else self.problem()
        return answer(503, problem) if problem else answer(200, "ready")

    def _problem(self) -> str:
        journaling = self._gate.journaling
        return "the journal can't be written" if journaling is not None and journaling.failed else ""

    async def _metrics_page(self, request: web.Request) -> web.Response:
        if self._gate.has_logins:
            await self.door.who(request)
        return web.Response(body=await self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})


def answer(status: int, text: str, **headers: str) -> web.Response:
    """An answer for people. An underscore in a header's name becomes a hyphen."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(status=status, text=text + "\n", content_type=TEXT, headers=named)


def _refusal(request: web.Request, refused: Refused) -> web.Response:
    response = answer(refused.status, refused.reason)
    response.headers.update(refused.headers)
    if request.body_exists and not request.content.is_eof():
        response.force_close()
        if isinstance(request.transport, Intake):
            request.transport.discard()
    return response


async def _no_server_version(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "polywire"


class ClusterPages:
    """``/v1/cluster``, and what drains a node."""

    def __init__(self, http: HttpServer, gate: Gate, cluster: Cluster) -> None:
        self._http = http
        self._gate = gate
        self._cluster = cluster

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The nodes, for everyone who can log in."""
        await self._http.door.who(request)
        return web.json_response(await self._cluster.cluster())

    async def drain(self, request: web.Request) -> web.StreamResponse:
        """Drain a node, for those who may send the signal ``stop``."""
        who = await self._http.door.who(request)
        grants = self._gate.rules.grants(who, LISTENER)
        is_local = self._gate.is_loopback(request.remote)
        if not (is_local if grants.everything else grants.may_signal(STOP)):
            raise Refused(403, f"draining a node requires the right to signal {STOP}")
        if request.body_exists:
            raise Refused(413, "this request must not have a body", fault="unexpected-body")
        node = request.match_info["node"]
        log.warning("%s wants %s to be drained", who.name or request.remote, node)
        await self._cluster.drain_node(node)
        return web.json_response({"draining": node}, status=202)


class Door:
    """Authenticates a request by token, password or certificate; anonymous if there is no ``[auth]``."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def who(self, request: web.Request) -> Identity:
        """Who is asking. ``Refused`` where that can't be said."""
        if not self._gate.has_logins:
            return ANONYMOUS
        authorization = request.headers.get("authorization")
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        login = Login() if authorization is None and certificate else _login(authorization or "")
        if login is None:
            raise _login_first("log in with a token: 'Authorization: Bearer …'")
        peer = transport.get_extra_info("peername") if transport is not None else None
        address = f"{peer[0]}:{peer[1]}" if peer else ""
        outcome: asyncio.Future[Identity | Refusal] = self._gate.loop.create_future()

        def done(who: Identity | Refusal) -> None:
            if not outcome.done():
                outcome.set_result(who)

        self._gate.authenticate(login, certificate or None, LISTENER, address, done)
        who = await outcome
        if isinstance(who, Refusal):
            if who.retry_after > 0:
                raise Refused(429, who.reason, headers={"Retry-After": str(int(who.retry_after) + 1)})
            raise _login_first(who.reason)
        if who.how == "anonymous" or (who.expires is not None and who.expires < self._gate.hub.clock() / 1e9):
            raise _login_first("login failed")
        return who


def _login(authorization: str) -> Login | None:
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer" and value:
        return Login(token=value.strip())
    if scheme.lower() == "basic":
        try:
            user, mark, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return Login(user, password) if mark and user else None
    return None


def _login_first(text: str) -> Refused:
    return Refused(401, text, headers={"WWW-Authenticate": 'Bearer realm="polywire"'})


class Bodies:
    """The bodies being received or processed, and their total size."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._count = 0
        self._bytes = 0

    @contextmanager
    def place(self) -> Iterator["Body"]:
        """Room for one body, until it is no longer needed. ``Refused`` where there are too many already."""
        if self._count >= self._limits.bodies:
            raise Refused(503, "too many bodies at once", fault="bodies", headers={"Retry-After": "1"})
        self._count += 1
        body = Body(self, self._limits)
        try:
            yield body
        finally:
            self._count -= 1
            self._bytes -= body.size

    def grow(self, size: int) -> None:
        """So many bytes more are held."""
        if self._bytes + size > self._limits.body_bytes:
            raise Refused(503, "too many bytes in bodies at once", fault="body-bytes", headers={"Retry-After": "1"})
        self._bytes += size


class Body:
    """One body in the making."""

    def __init__(self, bodies: Bodies, limits: HttpLimits) -> None:
        self._bodies = bodies
        self._limits = limits
        self.size = 0

    async def read(self, request: web.Request, limit: int) -> bytes:
        """The body of a request, of ``limit`` bytes at most. ``Refused`` where it is too large, slow or cut up."""
        too_large = Refused(413, f"the body is too large: at most {limit} bytes", fault="body-size")
        if request.content_length is not None and request.content_length > limit:
            raise too_large
        parts: list[bytes] = []
        chunks = reads = 0
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limits.body_time
        silence = self._limits.body_silence
        try:
            async with asyncio.timeout(None) as patience:
                while True:
                    # Setting a timer takes longer than reading a small chunk, so it is done now and then.
                    when = min(end, loop.time() + silence)
                    if (patience.when() or 0.0) < when - silence / 8:
                        patience.reschedule(when)
                    reads += 1
                    if reads % READS == 0:
                        await asyncio.sleep(0)
                    data, ended = await request.content.readchunk()
                    if not data and not ended:
                        break
                    chunks += ended
                    if chunks > self._limits.chunks:
                        words = f"the body has too many chunks: at most {self._limits.chunks}"
                        raise Refused(413, words, fault="body-chunks")
                    if self.size + len(data) > limit:
                        raise too_large
                    self._bodies.grow(len(data))
                    self.size += len(data)
                    parts.append(data)
        except TimeoutError:
            raise Refused(408, "the body took too long to arrive", fault="body-time") from None
        except (HttpProcessingError, web.RequestPayloadError, ClientError, ConnectionError) as error:
            raise Refused(400, f"the body can't be read: {error}", fault="bad-request") from error
        return b"".join(parts) if self.size <= JOINED else await asyncio.to_thread(b"".join, parts)


class Connection(web.RequestHandler):
    """One connection, as ``aiohttp`` handles it, with the hub's limits and error messages."""

    __slots__ = ("_http", "_knock")

    def __init__(self, http: HttpServer, server: web.Server, knock: Knock | None) -> None:
        limits = http.limits
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.keep_alive,
            access_log=None,  # type: ignore[arg-type]  # what turns it off, though its type does not say so
            max_line_size=limits.line,
            max_field_size=limits.line,
            max_headers=limits.headers,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
            logger=log,
        )
        self._http = http
        self._knock = knock

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        if self._knock is not None:
            self._knock.done()
        super().connection_made(transport)
        if not self._http.entered(self):
            self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        self._http.left(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Hang up at once."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What can't be parsed is the client's mistake and one line; everything else is ours, and logged whole."""
        if request.writer.output_size > 0:
            # An answer that has begun can't become another one.
            raise ConnectionError("the response failed midway") from exc
        if isinstance(exc, HttpProcessingError):
            headers = isinstance(exc, LineTooLong) or "Too many headers" in exc.message
            status = 431 if headers else 400
            first = (message or "").strip().partition("\n")[0].rstrip(": ")[:200] or "not HTTP"
            words = "the head of the request is too large" if headers else f"bad request: {first}"
            self._http.count("bad-request", "an HTTP request from %s was refused: %s", request.remote, words)
        elif isinstance(exc, UnicodeEncodeError):
            # aiohttp quotes a header in its own answer (Expect, to name one), and it is not UTF-8.
            status, words = 400, "bad request: a header is not UTF-8"
            self._http.count("bad-request", "an HTTP request from %s was refused: %s", request.remote, words)
        else:
            log.error("an HTTP request for %r failed", request.path[:100], exc_info=exc)
            status, words = 500, "internal error"
        response = answer(status, words, server="polywire")
        response.force_close()
        return response


class Intake(asyncio.Protocol, asyncio.Transport):
    """Stands between a connection's transport and its protocol, and hands input on a little at a time.

    One read can bring tens of thousands of tiny chunks, and parsing them takes time that others need.
    """

    def __init__(self, protocol: Connection, turns: Work) -> None:
        super().__init__()
        self._protocol = protocol
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)  # until there is one
        self._backlog: deque[memoryview] = deque()
        self._paused = False
        self._discarding = False
        self._turns = turns
        self._in_turn = False

    def discard(self) -> None:
        """Ignore what the client sends from now on: it has its answer."""
        self._discarding = True
        self._backlog.clear()
        self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._protocol.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._backlog.clear()
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Input: handed on at once where it is little."""
        if self._discarding:
            return
        if not self._backlog and not self._paused and len(data) <= SLICE:
            self._protocol.data_received(data)
            return
        self._backlog.append(memoryview(data))
        self._transport.pause_reading()
        self._go_on()

    def eof_received(self) -> bool:
        """The client sends nothing more."""
        return False

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._protocol.resume_writing()

    def pause_reading(self) -> None:
        """The protocol wants nothing for now."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The protocol wants more."""
        self._paused = False
        if self._backlog:
            self._go_on()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _go_on(self) -> None:
        if not self._in_turn:
            self._in_turn = True
            peer = self._transport.get_extra_info("peername")
            self._turns.start(str(peer[0]) if peer else "", Turns(self._hand_on))

    def _hand_on(self) -> int:
        """Parse a slice; the rest waits until others had their turn."""
        if self._backlog and not self._paused and not self._transport.is_closing():
            data = self._backlog[0]
            if len(data) > SLICE:
                self._backlog[0] = data[SLICE:]
            else:
                self._backlog.popleft()
            self._protocol.data_received(bytes(data[:SLICE]))
            return TURN
        self._in_turn = False
        if not self._backlog and not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()
        return DONE

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport has it."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """As the transport says."""
        return self._transport.is_closing()

    def is_reading(self) -> bool:
        """Whether the protocol wants input."""
        return not self._paused

    def close(self) -> None:
        """Write what is left, and hang up."""
        self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol have the connection."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol behind this."""
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When writing is paused."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """How much waits to be written."""
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """When writing is resumed and paused."""
        return self._transport.get_write_buffer_limits()

    def write(self, data: Any) -> None:
        """Write."""
        self._transport.write(data)

    def writelines(self, list_of_data: Any) -> None:
        """Write several."""
        self._transport.writelines(list_of_data)

    def write_eof(self) -> None:
        """Write nothing more."""
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        """As the transport says."""
        return self._transport.can_write_eof()
