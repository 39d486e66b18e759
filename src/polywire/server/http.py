"""HTTP for operators: ``/healthz``, ``/readyz`` and ``/metrics``."""

import asyncio
from collections.abc import Callable
from typing import cast

import h11

PATIENCE = 10.0
"""Seconds a client may take for its request, and between two of them."""

PACE = 0.1
"""Seconds between two answers on one connection: pages take time to make, and the hub has other work."""

MAX_BODY = 64 * 1024

MAX_CONNECTIONS = 32
"""Connections at once; one more takes the place of the oldest, so that a flood does not keep an operator out."""

Answer = tuple[int, str, bytes]
Handler = Callable[[], Answer]
HttpConnections = dict["HttpProtocol", None]
"""The connections there are, the oldest first."""


class HttpProtocol(asyncio.Protocol):
    """One HTTP connection; ``h11`` does the protocol."""

    def __init__(self, handlers: dict[str, Handler], connections: HttpConnections) -> None:
        self._handlers = handlers
        self._connections = connections
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=16 * 1024)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._body = 0
        self._full = False
        self._answered = float("-inf")
        self._pacing: asyncio.TimerHandle | None = None

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
        self._connections.pop(self, None)
        self._transport = None

    def pause_writing(self) -> None:
        """The client does not read its answers: give it no more of them."""
        self._full = True
        self._hold()

    def resume_writing(self) -> None:
        """It reads on."""
        self._full = False
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
        while self._transport is not None and not self._full and self._pacing is None:
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._request, self._body = event, 0
            elif isinstance(event, h11.Data):
                self._body += len(event.data)
                if self._body > MAX_BODY:
                    self._answer((413, "text/plain", b"the request is too large\n"), close=True)
                    return
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                loop = asyncio.get_running_loop()
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
        free = not self._full and self._pacing is None
        if free and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _handle(self, request: h11.Request) -> Answer:
        path = request.target.decode(errors="replace").partition("?")[0]
        handler = self._handlers.get(path)
        if handler is None:
            words = f"no such page; there is {', '.join(self._handlers)}\n"
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

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self.abort)
