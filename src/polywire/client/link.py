"""One live connection, as a client or a server without a hub sees it: bytes or messages, both ways.

A ``Link`` collects what is written and passes it on once per turn of the event loop, so that a thousand small messages
cost one call of the system. What it could not pass on when the connection ended is in ``leftover``: whole pieces, as
they were written. ``client/transport.py`` makes and accepts links.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol, cast, runtime_checkable

from polywire.client.errors import ConnectionLost
from polywire.errors import PolywireError

BATCH: Final = 64 * 1024
"""Bytes of one turn after which a task that waits for room lets the event loop run."""

HIGH_WATER: Final = 256 * 1024
"""Bytes the transport may hold before the link is full."""

CLOSE_TIME: Final = 2.0
"""Seconds the peer has to take the last bytes and close, too."""


class Receiver(Protocol):
    """The owner of a link, as the link sees it."""

    def received(self, data: bytes, text: bool, /) -> None:
        """Bytes of a stream, cut anywhere; on a WebSocket one whole message, ``text`` if it is one (UTF-8).

        A ``PolywireError`` raised here ends the connection, once what has been written is sent, and goes to ``lost``.
        """

    def lost(self, error: Exception | None, /) -> None:
        """The connection has ended: by ``Link.close`` or by the peer in good order (None), or by an error. Once."""


@runtime_checkable
class SaysTooBig(Protocol):
    """A receiver that has words for a message that was too big to be received."""

    def too_big(self) -> None:
        """Send them; the link closes afterwards."""


class Link:
    """One connection, whatever carries it. ``on_room`` is called whenever it has just passed everything on."""

    def __init__(self, receiver: Receiver | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._pending: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self._stalled = False
        self._waiting: list[asyncio.Future[None]] = []
        self._closing = False
        self._error: Exception | None = None
        self._adopted = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.full = False
        """Whether the writer should wait, with ``room`` or for ``on_room``. Nothing is refused meanwhile."""
        self.on_room: Callable[[], None] | None = None
        self.on_end: Callable[[Link], None] | None = None
        self.leftover: list[bytes] = []
        self.too_big = False
        """Whether it is closed because of a message that was too big; a WebSocket has a closing code for that."""
        self.peer_says_too_large = False
        """Whether the peer closed it for that reason."""
        self.passed = 0
        """How many bytes were passed on so far."""
        self.heard = 0
        """How often something came so far."""

    @property
    def is_open(self) -> bool:
        """Whether something written now has a chance to be sent."""
        return self._transport is not None and not self._closing

    @property
    def held(self) -> int:
        """How many bytes were written and not yet passed on."""
        return self._size

    @property
    def moved(self) -> int:
        """A number that changes whenever something goes either way."""
        return self.heard + self.passed

    def adopt(self) -> None:
        """The receiver has the link now, and is notified of its end. Raises ``ConnectionLost`` where that has been."""
        self._adopted = True
        if not self.is_open:
            raise ConnectionLost("the peer closed the connection at once") from self._error

    def peer(self, name: str) -> object:
        """What the transport knows of the other side: ``peername``, ``ssl_object``, …."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def write(self, data: bytes) -> None:
        """Send bytes with this turn's others. On an ended connection they are ``leftover``."""
        if self._transport is None:
            self.leftover.append(data)
            return
        self._pending.append(data)
        self._size = size = self._size + len(data)
        if size >= BATCH:
            self.full = True
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def send(self, payload: bytes, *, text: bool) -> None:
        """Send one message of a WebSocket. A stream has no messages."""
        raise NotImplementedError

    def flush(self) -> None:
        """Pass on what was written, without waiting for the end of the turn."""
        if self._transport is None or not self._pending or self._stalled:
            return
        pending, self._pending = self._pending, []
        self.passed += self._size
        self._size = 0
        self.full = False
        self._transport.write(self._joined(pending))

    async def room(self) -> None:
        """Wait until the link is not full. Raises ``ConnectionLost`` where it ends before."""
        while self.full:
            if self._transport is None:
                raise ConnectionLost("the connection ended") from self._error
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)

    def pause_reading(self) -> None:
        """Take nothing more from the peer for now."""
        if self._transport is not None and not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The way back."""
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()

    async def close(self) -> None:
        """Send what was written, say goodbye, and wait for the end, ``CLOSE_TIME`` at most."""
        self._hang_up()
        try:
            async with asyncio.timeout(CLOSE_TIME):
                await asyncio.shield(self._ended)
        except TimeoutError:
            pass
        finally:
            self.abort()

    def abort(self, error: Exception | None = None) -> None:
        """End at once; ``lost`` is called with ``error`` in the next turn."""
        self._closing = True
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def _hang_up(self) -> None:
        """Begin to close: what was written goes out first."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        stalled, self._stalled = self._stalled, False
        self.flush()
        self._stalled = stalled
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """End in good order. A stream just ends."""
        if self._transport is not None:
            # Nobody reads what still comes, and a paused transport does not see the peer close.
            self._transport.resume_reading()
            self._transport.close()

    def _joined(self, pending: list[bytes]) -> bytes:
        """What was written, as it goes to the transport."""
        return pending[0] if len(pending) == 1 else b"".join(pending)

    def _turn(self) -> None:
        self._scheduled = False
        self.flush()
        if not self._stalled:
            self._tell_room()

    def _tell_room(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if self.on_room is not None and self._transport is not None:
            self.on_room()

    def _opened(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)

    def _deliver(self, data: bytes, *, text: bool) -> None:
        if self._closing or self._receiver is None:
            return
        try:
            self._receiver.received(data, text)
        except PolywireError as error:
            self._error = error
            self._hang_up()

    def _lost(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        self._transport = None
        self._closing = True
        self.leftover = self._pending + self.leftover
        self._pending = []
        self._size = 0
        self._stalled = self.full = False
        self._error = self._error or error
        self._ended.set_result(None)
        self._tell_room()
        self.on_room = None
        if self.on_end is not None:
            self.on_end(self)
        receiver, self._receiver = self._receiver, None
        # One that ends before its dialer has it is a failure to connect, and not reported a second time.
        if receiver is not None and self._adopted:
            receiver.lost(self._error)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._stalled = self.full = True

    def resume_writing(self) -> None:
        """It has room again."""
        self._stalled = False
        self.full = self._size >= BATCH
        self.flush()
        if not self._stalled:
            self._tell_room()


class StreamLink(Link, asyncio.Protocol):
    """A link on TCP, TLS or a Unix socket. ``accept`` gives the receiver of one that was accepted."""

    def __init__(self, receiver: Receiver | None = None, accept: "Callable[[Link], Receiver] | None" = None) -> None:
        super().__init__(receiver)
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is there."""
        self._opened(transport)
        if self._accept is not None:
            self._adopted = True
            self._receiver = self._accept(self)

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer."""
        self.heard += 1
        self._deliver(data, text=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._lost(exc)
