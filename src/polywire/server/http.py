"""HTTP for operators: one connection, and how much of the hub's time it may take."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import cast

import h11

from polywire.hub.access import Identity
from polywire.server.http_resources import Answer, Handler, Post, Reply, Request, Tree

PATIENCE = 10.0
"""Seconds a client may take for its request, and between two of them."""

PACE = 0.1
"""Seconds between two answers on one connection: pages take time to make, and the hub has other work."""

MAX_BODY = 64 * 1024

MAX_CONNECTIONS = 32
"""Connections at once; one more takes the place of the oldest, so that a flood does not keep an operator out."""

log = logging.getLogger("polywire.server")


HttpConnections = dict["HttpProtocol", None]
"""The connections there are, the oldest first."""


class HttpProtocol(asyncio.Protocol):
    """One HTTP connection; ``h11`` does the protocol.

    ``handlers`` are pages by their paths, ``trees`` what is below paths that end with a slash, ``posts`` where
    something can be sent.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        connections: HttpConnections,
        trees: Mapping[str, Tree] | None = None,
        posts: Mapping[str, Post] | None = None,
    ) -> None:
        self._handlers = handlers
        self._trees = trees or {}
        self._posts = posts or {}
        self._taker: Post | None = None
        self._who: Identity | None = None
        self._sent: list[bytes] = []
        self._connections = connections
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=16 * 1024)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._body = 0
        self._full = False
        self._answered = float("-inf")
        self._pacing: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._work: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        if len(self._connections) >= MAX_CONNECTIONS:
            next(iter(self._connections)).abort()
        self._connections[self] = None
        self._rearm()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        """The end."""
        for timer in (self._timer, self._pacing):
            if timer is not None:
                timer.cancel()
        if self._work is not None:
            self._work.cancel()
        self._connections.pop(self, None)
        self._transport = None

    def pause_writing(self) -> None:
        """The client does not read its answers: give it no more of them."""
        self._full = True
        self._room.clear()
        self._hold()

    def resume_writing(self) -> None:
        """It reads on."""
        self._full = False
        self._room.set()
        self._go_on()

    def abort(self) -> None:
        """Hang up at once."""
        self._connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Octets of a request."""
        self._http.receive_data(data)
        self._go_on()

    def eof_received(self) -> bool:
        """The client sends nothing more."""
        return False

    def _advance(self) -> None:
        while self._transport is not None and self._is_free():
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._request, self._body = event, 0
                self._taker, self._who, self._sent = self._posts.get(_path(event)), None, []
                if self._taker is not None and event.method == b"POST":
                    self._hold()
                    self._work = asyncio.get_running_loop().create_task(self._admit(self._taker, event))
                    return
            elif isinstance(event, h11.Data):
                self._body += len(event.data)
                if self._taker is not None and self._who is not None:
                    self._sent.append(bytes(event.data))
                    self._rearm()
                if self._body > (MAX_BODY if self._taker is None or self._who is None else self._taker.limit):
                    self._answer((413, "text/plain", b"the request is too large\n"), close=True)
                    return
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                loop = asyncio.get_running_loop()
                path = _path(self._request)
                if self._taker is not None and self._who is not None:
                    self._hold()
                    self._work = loop.create_task(self._take(self._taker, self._request, self._who))
                    return
                root = next((root for root in self._trees if path.startswith(root)), None)
                if root is not None:
                    self._hold()
                    self._work = loop.create_task(self._reply_from(self._trees[root], path[len(root) :], self._request))
                    return
                if loop.time() < self._answered + PACE:
                    self._hold()
                    self._pacing = loop.call_at(self._answered + PACE, self._paced)
                    return
                self._answered = loop.time()
                self._reply(self._request)
            elif isinstance(event, h11.ConnectionClosed):
                self._close()
                return

    def _reply(self, request: h11.Request) -> None:
        self._answer(self._handle(request))
        self._answered_whole()

    async def _admit(self, taker: Post, request: h11.Request) -> None:
        """Find out who sends, before more is read of it."""
        try:
            who = await taker.admit(self._asked(request, ""))
        except Exception:
            log.exception("who sends to %r could not be found out", _path(request)[:100])
            self.abort()
            return
        finally:
            self._work = None
        if isinstance(who, Reply):
            self._answer((who.status, who.content_type, who.body), close=True)
            return
        self._who = who
        self._go_on()

    async def _take(self, taker: Post, request: h11.Request, who: Identity) -> None:
        """Let a taker answer what was sent."""
        body, self._sent = b"".join(self._sent), []
        try:
            self._rearm(None)
            await self._send(await taker.take(self._asked(request, ""), who, body), head=False)
        except Exception:
            log.exception("what was sent to %r could not be taken", _path(request)[:100])
            self.abort()
            return
        finally:
            self._work = None
        self._answered_whole()
        self._go_on()

    def _asked(self, request: h11.Request, path: str) -> Request:
        transport = self._transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        return Request(path, headers, f"{peer[0]}:{peer[1]}" if peer else "")

    async def _reply_from(self, tree: Tree, path: str, request: h11.Request) -> None:
        """Let a tree answer, at the pace of the client."""
        self._rearm()
        try:
            if request.method in {b"GET", b"HEAD"}:
                reply = await tree(self._asked(request, path))
            else:
                reply = Reply(405, "text/plain", b"only GET and HEAD are answered here\n")
            await self._send(reply, head=request.method == b"HEAD")
        except Exception:
            # Whatever it is, the hub goes on without this answer.
            log.exception("an HTTP request for %r failed", path[:100])
            self.abort()
            return
        finally:
            self._work = None
        self._answered_whole()
        self._go_on()

    async def _send(self, reply: Reply, *, head: bool) -> None:
        length = reply.length if reply.parts is not None else len(reply.body)
        headers = [("content-type", reply.content_type), ("content-length", str(length)), *reply.headers]
        self._write(h11.Response(status_code=reply.status, headers=headers))
        if reply.parts is not None:
            async with contextlib.aclosing(reply.parts) as parts:
                if not head:
                    async for part in parts:
                        self._write(h11.Data(data=part))
                        self._rearm()
                        await self._room.wait()
        elif not head:
            self._write(h11.Data(data=reply.body))
        self._write(h11.EndOfMessage())

    def _answered_whole(self) -> None:
        if self._http.our_state is not h11.DONE:
            self._close()
            return
        self._http.start_next_cycle()
        self._rearm()

    def _paced(self) -> None:
        """The time for the next answer has come."""
        self._pacing = None
        if self._request is not None:
            self._answered = asyncio.get_running_loop().time()
            self._reply(self._request)
        self._go_on()

    def _hold(self) -> None:
        """Leave further requests where they are."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Look at what has come, and read on if nothing is in the way."""
        try:
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(error)
        if self._is_free() and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _is_free(self) -> bool:
        """Whether the next request may be looked at."""
        return not self._full and self._pacing is None and self._work is None

    def _handle(self, request: h11.Request) -> Answer:
        handler = self._handlers.get(_path(request))
        if handler is None:
            words = f"no such page; there is {', '.join((*self._handlers, *self._trees, *self._posts))}\n"
            return 404, "text/plain", words.encode()
        if request.method not in {b"GET", b"HEAD"}:
            return 405, "text/plain", b"only GET and HEAD are answered here\n"
        return handler()

    def _answer(self, answer: Answer, *, close: bool = False) -> None:
        status, content_type, body = answer
        headers = [("content-type", content_type), ("content-length", str(len(body)))]
        if close:
            headers.append(("connection", "close"))
        head = self._request is not None and self._request.method == b"HEAD"
        self._write(h11.Response(status_code=status, headers=headers))
        if not head:
            self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())
        if close:
            self._close()

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._request = None
            self._answer((error.error_status_hint, "text/plain", f"{error}\n".encode()), close=True)
        else:
            self._close()

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _rearm(self, seconds: float | None = PATIENCE) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.abort)


def _path(request: h11.Request) -> str:
    return request.target.decode(errors="replace").partition("?")[0]
