"""sABC's server without a hub: accepts sessions, each with a ``Peer`` at its end.

async with sabc.serve(handler, "127.0.0.1", 7105) as server:
await server.wait_closed()
"""

import ssl

from polywire.client.address import PORTS, Address
from polywire.client.listening import HANDSHAKE_TIME
from polywire.client.opening import Opening
from polywire.client.serving import CONNECTIONS, DRAIN_TIME, Bounds, Joined, Server, serving
from polywire.protocols.sabc.client import SUBPROTOCOL
from polywire.protocols.sabc.peer.handling import Handler
from polywire.protocols.sabc.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.sabc.peer.peer import Login, Peer
from polywire.protocols.sabc.state import Side


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

    With ``path`` it speaks on WebSockets at that path. ``login`` looks at each CONNECT: it raises ``Failure`` to refuse
    one, and returns when the session expires, in seconds since 1970, or None. ``joined`` is called with each peer whose
    session is open, and may be a coroutine that goes on with it. Port 0 picks one; ``url`` tells. When it is closed,
    messages under way are answered first, within ``drain_time`` seconds; then everybody gets DISCONNECTING.

    A client has ``handshake_time`` seconds for its CONNECT; one that is silent for ``idle_time`` seconds, and for which
    nothing is under way, gets ERROR 408. At most ``connections`` are open; more are hung up on. ``frame_size`` is short
    for the one of ``limits``.
    """
    allowed = limits.with_frames(frame_size)
    transport = ("tcp" if tls is None else "tls") if path is None else ("ws" if tls is None else "wss")
    return serving(
        lambda: Peer(Side.SERVER, handler, messages=path is not None, login=login, limits=allowed),
        Address("sabc", transport, host, port, path or ""),
        joined=joined,
        tls=tls,
        subprotocol=SUBPROTOCOL,
        bounds=Bounds(handshake_time, idle_time, drain_time, connections),
    )
