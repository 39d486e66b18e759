"""UMQ's client: opens a connection and gives the ``Peer`` at its end.

    async with umq.connect("umq://127.0.0.1:7101") as peer:
        answer = await peer.call('["whoami"]')

It works against any peer; what the hub's payloads look like is in ``remote_hub``.
"""

import asyncio
import json
import ssl
from collections.abc import Sequence

from polywire.client.address import Address, parse
from polywire.client.dialing import DIAL_TIME, dial
from polywire.client.errors import ConnectFailed
from polywire.client.opening import Opening
from polywire.client.reconnect import OnDisconnect
from polywire.protocols.umq.peer.handling import Handler
from polywire.protocols.umq.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.umq.peer.peer import Peer
from polywire.protocols.umq.peer.sending import Attachable
from polywire.protocols.umq.state import Role

SUBPROTOCOL = "umq"  # UMQ-74


def connect(
    url: str | None = None,
    *,
    handler: Handler | None = None,
    hello: str | None = None,
    attachments: Sequence[Attachable] = (),
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    limits: Limits = DEFAULT_LIMITS,
    on_disconnect: OnDisconnect | None = None,
) -> Opening[Peer]:
    """A connection to ``url``: ``async with`` it, or ``await`` it and close the peer yourself.

    ``hello`` and ``attachments`` go with the first message. Without ``hello`` that is the user and password, or the
    token, of the URL, the arguments or the environment, as the hub reads them. Raises ``ConnectFailed``, ``Refused``.
    ``on_disconnect``, perhaps a coroutine function, is called with a ``ConnectionLost`` when the connection ends,
    unless this side closed it; a peer does not come back.
    """
    address = parse(url, protocol="umq", user=user, password=password, token=token)

    async def opened() -> Peer:
        peer = Peer(Role.CLIENT, handler, limits=limits)
        words = credentials(address) if hello is None else hello
        await open_peer(peer, address, words, attachments, tls=tls, connect_time=connect_time)
        peer.on_disconnect = on_disconnect
        return peer

    return Opening(opened)


async def open_peer(
    peer: Peer,
    address: Address,
    hello: str,
    attachments: Sequence[Attachable] = (),
    *,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
) -> None:
    """Connect a new peer, handshake included."""
    try:
        async with asyncio.timeout(connect_time):
            link = await dial(address, peer, tls=tls, timeout=connect_time, subprotocol=SUBPROTOCOL)
            peer.attach(link)
            try:
                await peer.say_hello(hello, attachments)
            except BaseException:
                link.abort()
                raise
    except TimeoutError as error:
        raise ConnectFailed(str(address), f"no welcome came within {connect_time:g} s") from error


def credentials(address: Address) -> str:
    """Who an address says to be, as the payload of ``H`` that the hub reads."""
    if address.token is not None:
        return json.dumps({"token": address.token})
    if address.user is not None:
        return json.dumps({"user": address.user, "password": address.password or ""})
    return ""
