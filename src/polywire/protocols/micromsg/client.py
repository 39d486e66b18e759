"""MicroMsg2's client, and its server without a hub: they open and accept connections, each with a ``Peer`` at its end.

    async with micromsg.connect("micromsg://127.0.0.1:7102") as peer:
        await peer.send("topic/rooms/kitchen", "21", {"room": 1})

    async with micromsg.serve(handler, "127.0.0.1", 7102) as server:
        await micromsg.publish(server.peers, "topic/rooms/kitchen", "21")

A client works against any server that agrees on the extensions asked for.
"""

import asyncio
import ssl
from collections.abc import Iterable, Mapping, Sequence

from polywire.client.address import PORTS, Address, parse
from polywire.client.peer import CONNECTIONS, DRAIN_TIME, Bounds, Joined, Server, linked, serving
from polywire.client.reconnect import OnDisconnect
from polywire.client.transport import DIAL_TIME, HANDSHAKE_TIME, Opening
from polywire.protocols.micromsg.connection import DEFAULT_LIMITS, Limits, Terms
from polywire.protocols.micromsg.peer import NO_PROPERTIES, Handler, Login, Peer, Subscribed
from polywire.protocols.micromsg.text import BATCH_ACK, KNOWN, PUB_SUB, X_AUTH, NamedExtension, Value, batch_ack
from polywire.wire.frame import Role

IDENTITY = "polywire"
WINDOW = 256
"""Messages that may be unacknowledged each way by default; a server may allow less."""


def connect(
    url: str | None = None,
    *,
    identity: str = IDENTITY,
    required: Sequence[str] = (),
    optional: Sequence[str] = (PUB_SUB, BATCH_ACK),
    window: int = WINDOW,
    handler: Handler | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    limits: Limits = DEFAULT_LIMITS,
    on_disconnect: OnDisconnect | None = None,
) -> Opening[Peer]:
    """A connection to ``url``: ``async with`` it, or ``await`` it and close the peer yourself.

    ``required`` and ``optional`` name the extensions to ask for: ``ack``, ``batch-ack``, ``json``, ``dotnet``,
    ``pub-sub``, or a vendor's. ``Peer.agreement`` says what was agreed on. The user and password, or the token, of URL,
    arguments or environment go as ``x-auth``. Raises ``ConnectFailed`` and ``Refused``. ``on_disconnect``, perhaps a
    coroutine function, is called with a ``ConnectionLost`` when the connection ends, unless this side closed it; a peer
    does not reconnect.
    """
    address = parse(url, protocol="micromsg", user=user, password=password, token=token)
    terms = terms_of(address, identity, required, optional, window)

    async def opened() -> Peer:
        peer = Peer(Role.CLIENT, terms, handler, limits=limits)
        await open_peer(peer, address, tls=tls, connect_time=connect_time)
        peer.on_disconnect = on_disconnect
        return peer

    return Opening(opened)


async def open_peer(
    peer: Peer, address: Address, *, tls: ssl.SSLContext | None = None, connect_time: float = DIAL_TIME
) -> None:
    """Connect a new peer, handshake and login included."""
    async with linked(peer, address, "the handshake did not end", tls=tls, connect_time=connect_time):
        await peer.say_hello()


def terms_of(
    address: Address | None, identity: str, required: Sequence[str], optional: Sequence[str], window: int
) -> Terms:
    """What this side brings into the handshake; with an address that has credentials, ``x-auth``."""
    wanted = [_named(name, window) for name in required]
    if address is not None and address.token is not None:
        wanted.append(NamedExtension(X_AUTH, (("token", address.token),)))
    elif address is not None and address.user is not None:
        wanted.append(NamedExtension(X_AUTH, (("user", address.user), ("password", address.password or ""))))
    liked = [_named(name, window) for name in optional if name not in required]
    vendors = [each.name for each in (*wanted, *liked) if each.name not in KNOWN]
    return Terms(identity, (*KNOWN, *vendors), tuple(wanted), tuple(liked), window)


def _named(name: str, window: int) -> NamedExtension:
    return batch_ack(window) if name == BATCH_ACK else NamedExtension(name)


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
    ``login`` looks at what ``x-auth`` says, and raises ``Failure`` to refuse a client. ``subscribed`` is called for
    each subscription, and may raise ``Failure`` too. ``joined`` is called with each accepted peer, and may be a
    coroutine that keeps using it. ``unix`` is the path of a socket to listen on instead of host and port. Port 0 picks
    one; ``url`` has it. When the server is closed, handlers have ``drain_time`` seconds to finish.

    A client has ``handshake_time`` seconds for its handshake; one that is silent for ``idle_time`` seconds, and for
    which nothing is in flight, gets ERROR ``shutting-down``. At most ``connections`` are open; more are closed at once.
    """
    address = Address("micromsg", "tcp" if tls is None else "tls", host, port)
    if unix is not None:
        address = Address("micromsg", "unix", path=unix)
    terms = terms_of(None, identity, required, optional, window)
    return serving(
        lambda: Peer(Role.SERVER, terms, handler, login=login, subscribed=subscribed, limits=limits),
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
