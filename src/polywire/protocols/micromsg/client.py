"""MicroMsg2's client: opens a connection and gives the ``Peer`` at its end.

    async with micromsg.connect("micromsg://127.0.0.1:7102") as peer:
        await peer.send("topic/rooms/kitchen", "21", {"room": 1})

It works against any server that agrees on the extensions asked for.
"""

import asyncio
import ssl
from collections.abc import Sequence

from polywire.client.address import Address, parse
from polywire.client.dialing import DIAL_TIME, dial
from polywire.client.errors import ConnectFailed
from polywire.client.opening import Opening
from polywire.client.reconnect import OnDisconnect
from polywire.protocols.micromsg.frames import CLIENT
from polywire.protocols.micromsg.negotiation import Terms
from polywire.protocols.micromsg.peer.handling import Handler
from polywire.protocols.micromsg.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.micromsg.peer.peer import Peer
from polywire.protocols.micromsg.text import BATCH_ACK, KNOWN, PUB_SUB, X_AUTH, NamedExtension, batch_ack

IDENTITY = "polywire"
WINDOW = 256
"""Messages that may be unacknowledged each way, unless told otherwise; a server may allow less."""


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
    does not come back.
    """
    address = parse(url, protocol="micromsg", user=user, password=password, token=token)
    terms = terms_of(address, identity, required, optional, window)

    async def opened() -> Peer:
        peer = Peer(CLIENT, terms, handler, limits=limits)
        await open_peer(peer, address, tls=tls, connect_time=connect_time)
        peer.on_disconnect = on_disconnect
        return peer

    return Opening(opened)


async def open_peer(
    peer: Peer, address: Address, *, tls: ssl.SSLContext | None = None, connect_time: float = DIAL_TIME
) -> None:
    """Connect a new peer, handshake and login included."""
    try:
        async with asyncio.timeout(connect_time):
            link = await dial(address, peer, tls=tls, timeout=connect_time)
            peer.attach(link)
            try:
                await peer.say_hello()
            except BaseException:
                link.abort()
                raise
    except TimeoutError as error:
        raise ConnectFailed(str(address), f"the handshake did not end within {connect_time:g} s") from error


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
