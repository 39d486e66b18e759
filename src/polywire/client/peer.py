"""Peers of UMQ, sABC and MicroMsg2, whichever side opened the connection, and the server that accepts them.

A peer is given the link that carries it, and lives as long as that. ``protocols/<p>/peer.py`` has one each. A server
without a hub accepts connections, and has a peer for each.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from polywire.client.address import Address
from polywire.client.errors import ConnectFailed, ConnectionLost, Timeout
from polywire.client.inbox import Intake
from polywire.client.link import Link, Receiver
from polywire.client.reconnect import Callbacks, OnDisconnect
from polywire.client.transport import HANDSHAKE_TIME, Listener, Opening, dial, listen
from polywire.errors import PolywireError

LOOKS: Final = 4
"""How often it looks in the time it is given: a silence is noticed that much late at the most."""

DRAIN_TIME: Final = 10.0
"""Seconds that requests in flight have when the server is closed."""

CONNECTIONS: Final = 1000
"""Connections a server has at once by default."""

log = logging.getLogger("polywire.client")


class Work:
    """The handlers of one peer; ``due`` messages wait for the end of theirs."""

    def __init__(self) -> None:
        self.due = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def done(self) -> None:
        """One message less is due."""
        self.due = max(0, self.due - 1)
        if not self.due:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until nothing is due."""
        while self.due:
            self._idle.clear()
            await self._idle.wait()

    def lost(self) -> None:
        """The connection has ended: nobody waits for any of it."""
        self.due = 0
        self._idle.set()
        for task in self._tasks:
            task.cancel()


class WayOut(Protocol):
    """Where a peer writes. ``reason`` says why it is closed."""

    link: Link | None
    reason: str


class LivePeer:
    """One side of a connection. ``on_lost`` is called at its end, ``on_room`` when what was written was passed on.

    ``on_disconnect`` is the program's: called with the reason, unless it was this side that closed the connection.
    """

    def __init__(self, way_out: WayOut, intake: Intake) -> None:
        self.on_lost: Callable[[ConnectionLost], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.on_disconnect: OnDisconnect | None = None
        self.closed_here = False
        self._callbacks = Callbacks()
        self._too_large = False  # what the other side says of a message of ours
        self._limit: int | None = None
        self._way_out = way_out
        self._way_in = intake
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        raise NotImplementedError

    @property
    def has_room(self) -> bool:
        """Whether the connection takes more without delay."""
        return self.is_open and self._way_out.link is not None and not self._way_out.link.full

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""
        raise NotImplementedError

    async def opened(self) -> None:
        """Wait for the end of the handshake. Raises ``Refused`` where it failed."""
        await asyncio.shield(self._opened)

    async def wait_ended(self) -> None:
        """Wait for the end of the connection."""
        await asyncio.shield(self._ended)

    async def close(self) -> None:
        """End the connection, and wait until it has ended."""
        raise NotImplementedError

    # For those who carry the connection.

    def attach(self, link: Link) -> None:
        """It is carried by this link."""
        self._way_out.link = link
        self._way_in.attach(link)
        link.on_room = self._room

    def lost(self, error: Exception | None, /) -> None:
        """The connection has ended."""
        ending = "the connection ended" if error is None else f"the connection broke: {error}"
        reason = self._way_out.reason or ending
        link = self._way_out.link
        too_large = self._too_large or (link is not None and link.peer_says_too_large)
        self._end_all(reason)
        self._not_opened(ConnectionLost(reason))
        lost = ConnectionLost(reason, too_large=too_large, limit=self._limit)
        if self.on_lost is not None:
            self.on_lost(lost)
        if not self.closed_here:
            self._callbacks.call(self.on_disconnect, lost)
        if not self._ended.done():
            self._ended.set_result(None)

    def _end_all(self, reason: str) -> None:
        """Nothing is sent any more, and nothing will come: tell all who wait."""
        raise NotImplementedError

    def _not_opened(self, error: PolywireError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # nobody may have waited for it

    def _hang_up(self) -> None:
        """Close, once what was written is sent."""
        if self._way_out.link is not None and self._closing is None:
            self._closing = self._loop.create_task(self._way_out.link.close())

    def _room(self) -> None:
        if self.on_room is not None:
            self.on_room()


def expire(waiter: "asyncio.Future[Any]", what: str, seconds: float) -> None:
    """Nothing has come in time for those who wait for it."""
    if not waiter.done():
        waiter.set_exception(Timeout(what, seconds, sent=True))


class Idling:
    """Calls ``silent`` once, when ``link`` has been silent for ``seconds`` and nobody was ``busy`` meanwhile."""

    def __init__(self, link: Link, seconds: float, busy: Callable[[], bool], silent: Callable[[], None]) -> None:
        self._link = link
        self._pause = seconds / LOOKS
        self._busy = busy
        self._silent = silent
        self._seen = link.moved
        self._quiet = 0
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        moved = self._link.moved
        self._quiet = 0 if moved != self._seen or self._busy() else self._quiet + 1
        self._seen = moved
        if self._quiet == LOOKS:
            self._silent()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)


class Served(Receiver, Protocol):
    """A protocol's peer, as its server sees it."""

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""

    def attach(self, link: Link) -> None:
        """It is carried by this link."""

    async def opened(self) -> None:
        """Wait until it is let in. Raises where it is not."""

    async def wait_ended(self) -> None:
        """Wait for the end of the connection."""

    async def drain(self) -> None:
        """Take nothing new, and wait until what is in flight is done."""

    def goodbye(self) -> None:
        """Last words, then close: the server goes away, or can't go on with it."""

    def timed_out(self) -> None:
        """The words for a handshake or a silence that took too long, then close."""


@contextlib.asynccontextmanager
async def linked(
    peer: Served,
    address: Address,
    failure: str,
    *,
    tls: ssl.SSLContext | None,
    connect_time: float,
    subprotocol: str | None = None,
) -> AsyncIterator[None]:
    """Connect a new peer, whose handshake follows. ``failure`` says what did not happen within ``connect_time``."""
    try:
        async with asyncio.timeout(connect_time):
            link = await dial(address, peer, tls=tls, timeout=connect_time, subprotocol=subprotocol)
            peer.attach(link)
            try:
                yield
            except BaseException:
                link.abort()
                raise
    except TimeoutError as error:
        raise ConnectFailed(str(address), f"{failure} within {connect_time:g} s") from error


P = TypeVar("P", bound=Served)
Joined = Callable[[P], Awaitable[Any] | None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a server puts up with. Times are in seconds; without ``idle_time`` a client may be silent for ever."""

    handshake_time: float = HANDSHAKE_TIME
    idle_time: float | None = None
    drain_time: float = DRAIN_TIME
    connections: int = CONNECTIONS


class Server(Generic[P]):
    """A listening server. ``peers`` are those that were let in, ``refused`` counts those who found it full."""

    def __init__(self, make: Callable[[], P], joined: Joined[P] | None, bounds: Bounds) -> None:
        self.peers: set[P] = set()
        self.refused = 0
        self._make = make
        self._joined = joined
        self._bounds = bounds
        self._full = False
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._closed = asyncio.Event()

    @property
    def url(self) -> str:
        """Where it listens, with the port that was found; empty once it is closed."""
        return "" if self._listener is None else str(self._listener.address)

    async def start(self, address: Address, tls: ssl.SSLContext | None, subprotocol: str | None) -> None:
        """Listen."""
        self._listener = await listen(
            address, self._accept, tls=tls, subprotocol=subprotocol, handshake_time=self._bounds.handshake_time
        )

    async def close(self) -> None:
        """Let nobody in, let what is in flight be done, say goodbye to all, and close."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._draining = True
        try:
            async with asyncio.timeout(self._bounds.drain_time):
                await asyncio.gather(*[peer.drain() for peer in self.peers])
        except TimeoutError:
            log.warning("%s: something was still in flight when it was closed", listener.address)
        finally:
            for peer in self.peers:
                peer.goodbye()
            await listener.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until it was closed."""
        await self._closed.wait()

    def _accept(self, link: Link) -> Receiver:
        peer = self._make()
        peer.attach(link)
        if self._draining or self._too_many():
            link.abort()
            return peer
        task = asyncio.get_running_loop().create_task(self._attend(peer, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return peer

    def _too_many(self) -> bool:
        full = len(self._tasks) >= self._bounds.connections
        if full:
            self.refused += 1
            if not self._full:  # once, however many come
                log.warning("%s: %d connections are open, and no more are let in", self.url, len(self._tasks))
        self._full = full
        return full

    async def _attend(self, peer: P, link: Link) -> None:
        """From its handshake to its end."""
        try:
            async with asyncio.timeout(self._bounds.handshake_time):
                await peer.opened()
        except TimeoutError:
            peer.timed_out()
            return
        except Exception:  # noqa: BLE001 - it was told why, or is gone
            return
        self.peers.add(peer)
        idle_time = self._bounds.idle_time
        idling = None if idle_time is None else Idling(link, idle_time, lambda: peer.busy, peer.timed_out)
        try:
            outcome = None if self._joined is None else self._joined(peer)
            if outcome is not None:
                await outcome
            await peer.wait_ended()
        except Exception:
            log.exception("attending to a peer failed")
            peer.goodbye()
        finally:
            if idling is not None:
                idling.stop()
            self.peers.discard(peer)


def serving(
    make: Callable[[], P],
    address: Address,
    *,
    joined: Joined[P] | None = None,
    tls: ssl.SSLContext | None = None,
    subprotocol: str | None = None,
    bounds: Bounds,
) -> Opening[Server[P]]:
    """A server at ``address`` with a new peer by ``make`` for each connection."""

    async def opened() -> Server[P]:
        server = Server(make, joined, bounds)
        await server.start(address, tls, subprotocol)
        return server

    return Opening(opened)
