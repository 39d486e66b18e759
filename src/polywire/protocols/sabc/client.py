"""sABC's client: opens a session and gives the ``Peer`` at its end.

    async with sabc.connect("sabc://127.0.0.1:7105", client_id="thermometer-7") as peer:
        answer = await peer.ask("Hola")

It works against any server; what the hub's headers mean is in ``remote_hub``.
"""

import asyncio
import ssl

from polywire.client.address import Address, parse
from polywire.client.dialing import DIAL_TIME, dial
from polywire.client.errors import ConnectFailed
from polywire.client.opening import Opening
from polywire.client.reconnect import OnDisconnect
from polywire.protocols.sabc.headers import Header
from polywire.protocols.sabc.peer.handling import Handler
from polywire.protocols.sabc.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.sabc.peer.peer import Peer
from polywire.protocols.sabc.state import Side

SUBPROTOCOL = "sabc"
CLIENT_ID = "polywire"
TOKEN = "token"  # noqa: S105 - the client-id under which the hub takes a passcode for a token


def connect(
    url: str | None = None,
    *,
    client_id: str | None = None,
    handler: Handler | None = None,
    headers: tuple[Header, ...] = (),
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    limits: Limits = DEFAULT_LIMITS,
    frame_size: int | None = None,
    on_disconnect: OnDisconnect | None = None,
) -> Opening[Peer]:
    """A session with ``url``: ``async with`` it, or ``await`` it and close the peer yourself.

    The user and password of URL, arguments or environment are the client-id and the passcode; a token is the passcode
    of the client-id ``token``. ``client_id`` is for those who have neither. ``frame_size`` is short for the one of
    ``limits``: longer messages go in several frames. ``on_disconnect``, perhaps a coroutine function, is called with a
    ``ConnectionLost`` when the connection ends, unless this side closed it; a peer does not come back. Raises
    ``ConnectFailed`` and ``Refused``.
    """
    allowed = limits.with_frames(frame_size)
    address = parse(url, protocol="sabc", user=user, password=password, token=token)

    async def opened() -> Peer:
        peer = Peer(Side.CLIENT, handler, messages=address.websocket, limits=allowed)
        await open_peer(peer, address, client_id, headers, tls=tls, connect_time=connect_time)
        peer.on_disconnect = on_disconnect
        return peer

    return Opening(opened)


async def open_peer(
    peer: Peer,
    address: Address,
    client_id: str | None = None,
    headers: tuple[Header, ...] = (),
    *,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
) -> None:
    """Connect a new peer, CONNECT included."""
    try:
        async with asyncio.timeout(connect_time):
            link = await dial(address, peer, tls=tls, timeout=connect_time, subprotocol=SUBPROTOCOL)
            peer.attach(link)
            try:
                await peer.say_hello(*credentials(address, client_id), headers)
            except BaseException:
                link.abort()
                raise
    except TimeoutError as error:
        raise ConnectFailed(str(address), f"no session came within {connect_time:g} s") from error


def credentials(address: Address, client_id: str | None = None) -> tuple[str, str | None]:
    """The client-id and the passcode to connect with."""
    if address.token is not None:
        return TOKEN, address.token
    if address.user is not None:
        return address.user, address.password
    return client_id or CLIENT_ID, None
