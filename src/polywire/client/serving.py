"""A server without a hub, whatever it speaks: it accepts connections, and looks after the peer at the end of each."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from polywire.client.address import Address
from polywire.client.idling import Idling
from polywire.client.link import Link, Receiver
from polywire.client.listening import HANDSHAKE_TIME, Listener, listen
from polywire.client.opening import Opening

DRAIN_TIME: Final = 10.0
"""Seconds that what is under way has when the server is closed."""

CONNECTIONS: Final = 1000
"""Connections a server has at once, unless told otherwise."""

log = logging.getLogger("polywire.client")


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
        """Take nothing new, and wait until what is under way is done."""

    def goodbye(self) -> None:
        """Last words, then close: the server goes away, or can't go on with it."""

    def timed_out(self) -> None:
        """The words for a handshake or a silence that took too long, then close."""


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
        """Let nobody in, let what is under way be done, say goodbye to all, and close."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._draining = True
        try:
            async with asyncio.timeout(self._bounds.drain_time):
                await asyncio.gather(*[peer.drain() for peer in self.peers])
        except TimeoutError:
            log.warning("%s: something was still under way when it was closed", listener.address)
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
