"""MicroMsg2's server without a hub: accepts connections, each with a ``Peer`` at its end.

async with micromsg.serve(handler, "127.0.0.1", 7102) as server:
await micromsg.publish(server.peers, "topic/rooms/kitchen", "21")
"""

import asyncio
import ssl
from collections.abc import Iterable, Mapping, Sequence

from polywire.client.address import PORTS, Address
from polywire.client.listening import HANDSHAKE_TIME
from polywire.client.opening import Opening
from polywire.client.serving import CONNECTIONS, DRAIN_TIME, Bounds, Joined, Server, serving
from polywire.protocols.micromsg.client import IDENTITY, WINDOW, terms_of
from polywire.protocols.micromsg.frames import SERVER
from polywire.protocols.micromsg.peer.audience import Subscribed
from polywire.protocols.micromsg.peer.handling import Handler
from polywire.protocols.micromsg.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.micromsg.peer.peer import NO_PROPERTIES, Login, Peer
from polywire.protocols.micromsg.text import Value


def serve(
    handler: Handler | None,
    host: str = "127.0.0.1",
    port: int = PORTS["micromsg"],
    *,
    identity: str = IDENTITY,
    required: Sequence[str] = (),
    optional: Sequence[str] = (),
    window: int = WINDOW,
    login: Login | None = None,
    subscribed: Subscribed | None = None,
    joined: Joined[Peer] | None = None,
    unix: str | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
    handshake_time: float = HANDSHAKE_TIME,
    idle_time: float | None = None,
    drain_time: float = DRAIN_TIME,
    connections: int = CONNECTIONS,
) -> Opening[Server[Peer]]:
    """A server whose messages ``handler`` takes: ``async with`` it, or ``await`` it and close it yourself.

    ``required`` are the extensions clients must use, ``optional`` those it suggests; all of MicroMsg2's may be used.
    ``login`` looks at what ``x-auth`` says, and raises ``Failure`` to refuse a client. ``subscribed`` is told of
    subscriptions, and may raise ``Failure`` too. ``joined`` is called with each peer that was let in, and may be a
    coroutine that goes on with it. ``unix`` is the path of a socket to listen on instead of host and port. Port 0 picks
    one; ``url`` tells. When it is closed, messages under way are worked off first, within ``drain_time`` seconds.

    A client has ``handshake_time`` seconds for its handshake; one that is silent for ``idle_time`` seconds, and for
    which nothing is under way, gets ERROR ``shutting-down``. At most ``connections`` are open; more are hung up on.
    """
    address = Address("micromsg", "tcp" if tls is None else "tls", host, port)
    if unix is not None:
        address = Address("micromsg", "unix", path=unix)
    terms = terms_of(None, identity, required, optional, window)
    return serving(
        lambda: Peer(SERVER, terms, handler, login=login, subscribed=subscribed, limits=limits),
        address,
        joined=joined,
        tls=tls,
        bounds=Bounds(handshake_time, idle_time, drain_time, connections),
    )


async def publish(
    peers: Iterable[Peer],
    destination: str,
    payload: bytes | str,
    properties: Mapping[str, Value] = NO_PROPERTIES,
    *,
    type_name: str = "",
) -> int:
    """Send a message to every peer that has subscribed to it; how many those are.

    It waits for the window of each, so a peer that does not acknowledge holds the publisher up.
    """
    wanting = [peer for peer in peers if peer.wants(destination, properties)]
    posts = [peer.post(destination, payload, properties, type_name=type_name) for peer in wanting]
    await asyncio.gather(*posts, return_exceptions=True)
    return len(wanting)
