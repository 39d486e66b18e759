"""sABC's clients and servers: ``connect`` opens a session, ``serve`` accepts them. No hub is needed.

    async with sabc.connect("sabc://127.0.0.1:7105", client_id="thermometer-7") as peer:
        answer = await peer.ask("Hola")

    async with sabc.serve(handler, "127.0.0.1", 7105) as server:
        await server.wait_closed()

What the hub's headers mean is in ``bus``.
"""

import ssl

from polywire.client.address import PORTS, Address, parse
from polywire.client.peer import CONNECTIONS, DRAIN_TIME, Bounds, Joined, Server, linked, serving
from polywire.client.reconnect import OnDisconnect
from polywire.client.transport import DIAL_TIME, HANDSHAKE_TIME, Opening
from polywire.protocols.sabc.headers import Header
from polywire.protocols.sabc.peer import DEFAULT_LIMITS, Handler, Limits, Login, Peer
from polywire.wire.frame import Role

SUBPROTOCOL = "sabc"
CLIENT_ID = "polywire"
TOKEN = "token"  # noqa: S105 - the client-id whose passcode the hub takes for a token


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

    The user and password of the URL, the arguments or the environment are the client-id and the passcode; a token is
    the passcode of the client-id ``token``. ``client_id`` is used if there is neither. ``frame_size`` replaces the one
    of ``limits``: longer messages are sent in several frames. ``on_disconnect``, a function or a coroutine function, is
    called with a ``ConnectionLost`` when the connection ends, unless this side closed it; a peer does not reconnect.
    Raises ``ConnectFailed`` and ``Refused``.
    """
    allowed = limits.with_frames(frame_size)
    address = parse(url, protocol="sabc", user=user, password=password, token=token)

    async def opened() -> Peer:
        peer = Peer(Role.CLIENT, handler, messages=address.websocket, limits=allowed)
        await open_peer(peer, address, client_id, headers, tls=tls, connect_time=connect_time)
        peer.on_disconnect = on_disconnect
        return peer

    return Opening(opened)


def serve(
    handler: Handler | None,
    host: str = "127.0.0.1",
    port: int = PORTS["sabc"],
    *,
    path: str | None = None,
    login: Login | None = None,
    joined: Joined[Peer] | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
    frame_size: int | None = None,
    handshake_time: float = HANDSHAKE_TIME,
    idle_time: float | None = None,
    drain_time: float = DRAIN_TIME,
    connections: int = CONNECTIONS,
) -> Opening[Server[Peer]]:
    """A server whose messages ``handler`` takes: ``async with`` it, or ``await`` it and close it yourself.

    With ``path`` it accepts WebSockets at that path. ``login`` looks at each CONNECT: it raises ``Failure`` to refuse
    one, and returns when the session expires, in seconds since 1970, or None. ``joined`` is called with each peer whose
    session is open, and may be a coroutine function. With port 0 the system picks one; ``url`` has it. When the server
    is closed, messages in flight are answered first, within ``drain_time`` seconds; then every client gets
    DISCONNECTING.

    A client has ``handshake_time`` seconds for its CONNECT; one that is silent for ``idle_time`` seconds, with nothing
    in flight, gets ERROR 408. At most ``connections`` are open; more are closed at once. ``frame_size`` replaces the
    one of ``limits``.
    """
    allowed = limits.with_frames(frame_size)
    transport = ("tcp" if tls is None else "tls") if path is None else ("ws" if tls is None else "wss")
    return serving(
        lambda: Peer(Role.SERVER, handler, messages=path is not None, login=login, limits=allowed),
        Address("sabc", transport, host, port, path or ""),
        joined=joined,
        tls=tls,
        subprotocol=SUBPROTOCOL,
        bounds=Bounds(handshake_time, idle_time, drain_time, connections),
    )


async def open_peer(
    peer: Peer,
    address: Address,
    client_id: str | None = None,
    headers: tuple[Header, ...] = (),
    *,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
) -> None:
    """Connect a new peer and open its session."""
    async with linked(
        peer, address, "no session was opened", tls=tls, connect_time=connect_time, subprotocol=SUBPROTOCOL
    ):
        await peer.say_hello(*credentials(address, client_id), headers)


def credentials(address: Address, client_id: str | None = None) -> tuple[str, str | None]:
    """The client-id and the passcode to connect with."""
    if address.token is not None:
        return TOKEN, address.token
    if address.user is not None:
        return address.user, address.password
    return client_id or CLIENT_ID, None
