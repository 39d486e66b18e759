"""UMQ's server without a hub: accepts connections, each with a ``Peer`` at its end.

async with umq.serve(handler, "127.0.0.1", 7101) as server:
    await server.wait_closed()
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from polywire.client.address import Address
from polywire.client.link import Link, Receiver
from polywire.client.listening import Listener, listen
from polywire.client.opening import Opening
from polywire.protocols.umq.client import SUBPROTOCOL
from polywire.protocols.umq.codes import FatalCode
from polywire.protocols.umq.peer.handling import Handler, log
from polywire.protocols.umq.peer.peer import DEFAULT_LIMITS, Greet, Limits, Peer
from polywire.protocols.umq.state import Role

PORT = 7101
PATH = "/umq"
HANDSHAKE_TIME = 10.0
"""Seconds a client has to be welcomed."""
DRAIN_TIME = 10.0
"""Seconds that requests under way have when the server is closed."""

Joined = Callable[[Peer], Awaitable[None] | None]


class Server:
    """A listening server. ``peers`` are those that were welcomed; ``url`` is where to connect to."""

    def __init__(self, handler: Handler | None, greet: Greet | None, joined: Joined | None, limits: Limits) -> None:
        self.peers: set[Peer] = set()
        self._handler = handler
        self._greet = greet
        self._joined = joined
        self._limits = limits
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._closed = asyncio.Event()

    @property
    def url(self) -> str:
        """Where it listens, with the port that was found."""
        return "" if self._listener is None else str(self._listener.address)

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> None:
        """Listen."""
        self._listener = await listen(address, self._accept, tls=tls, subprotocol=SUBPROTOCOL)

    async def close(self) -> None:
        """Accept nobody more, let requests under way be answered, say ``F`` with code 10 to all, and close."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._closing = True
        try:
            async with asyncio.timeout(DRAIN_TIME):
                await asyncio.gather(*[peer.drain() for peer in self.peers])
        except TimeoutError:
            log.warning("requests were still under way when the server was closed")
        for peer in list(self.peers):
            peer.fail(FatalCode.SHUTTING_DOWN)
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
        peer = Peer(Role.SERVER, self._handler, greet=self._greet, limits=self._limits)
        peer.attach(link)
        if self._closing:
            link.abort()
            return peer
        task = asyncio.get_running_loop().create_task(self._attend(peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return peer

    async def _attend(self, peer: Peer) -> None:
        """From its handshake to its end."""
        try:
            async with asyncio.timeout(HANDSHAKE_TIME):
                await peer.opened()
        except TimeoutError:
            peer.fail(FatalCode.LIMIT_EXCEEDED, "the handshake took too long")
            return
        except Exception:  # noqa: BLE001 - it was told why, or is gone
            return
        self.peers.add(peer)
        try:
            if self._joined is not None:
                outcome = self._joined(peer)
                if outcome is not None:
                    await outcome
            await peer.wait_ended()
        except Exception:  # noqa: BLE001 - it is logged
            log.exception("attending to a peer failed")
            peer.fail(FatalCode.UNAVAILABLE)
        finally:
            self.peers.discard(peer)


def serve(
    handler: Handler | None,
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    path: str = PATH,
    greet: Greet | None = None,
    joined: Joined | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Opening[Server]:
    """A server whose calls ``handler`` answers: ``async with`` it, or ``await`` it and close it yourself.

    ``greet`` sees what each client brings with its ``H``, and may raise ``Rejected``. ``joined`` is called with each
    peer once it is welcomed, and may be a coroutine that goes on with it. Port 0 picks one; ``Server.url`` tells.
    """
    address = Address("umq", "wss" if tls is not None else "ws", host, port, path)

    async def opened() -> Server:
        server = Server(handler, greet, joined, limits)
        await server.start(address, tls)
        return server

    return Opening(opened)
