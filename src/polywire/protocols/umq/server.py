"""UMQ's server without a hub: accepts connections, each with a ``Peer`` at its end.

async with umq.serve(handler, "127.0.0.1", 7101) as server:
await server.wait_closed()
"""

import ssl

from polywire.client.address import PORTS, Address
from polywire.client.listening import HANDSHAKE_TIME
from polywire.client.opening import Opening
from polywire.client.serving import CONNECTIONS, DRAIN_TIME, Bounds, Joined, Server, serving
from polywire.protocols.umq.client import SUBPROTOCOL
from polywire.protocols.umq.peer.handling import Handler
from polywire.protocols.umq.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.umq.peer.peer import Greet, Peer
from polywire.protocols.umq.state import Role

PATH = "/umq"


def serve(
    handler: Handler | None,
    host: str = "127.0.0.1",
    port: int = PORTS["umq"],
    *,
    path: str = PATH,
    greet: Greet | None = None,
    joined: Joined[Peer] | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
    handshake_time: float = HANDSHAKE_TIME,
    idle_time: float | None = None,
    drain_time: float = DRAIN_TIME,
    connections: int = CONNECTIONS,
) -> Opening[Server[Peer]]:
    """A server whose calls ``handler`` answers: ``async with`` it, or ``await`` it and close it yourself.

    ``greet`` sees what each client brings with its ``H``, and may raise ``Rejected``. ``joined`` is called with each
    peer once it is welcomed, and may be a coroutine that goes on with it. Port 0 picks one; ``url`` tells. When it is
    closed, requests under way are answered first, within ``drain_time`` seconds; then everybody gets ``F``, code 10.

    A client has ``handshake_time`` seconds until it is welcomed; one that is silent for ``idle_time`` seconds, and for
    which nothing is under way, gets ``F``, code 9. At most ``connections`` are open; more are hung up on.
    """
    address = Address("umq", "ws" if tls is None else "wss", host, port, path)
    return serving(
        lambda: Peer(Role.SERVER, handler, greet=greet, limits=limits),
        address,
        joined=joined,
        tls=tls,
        subprotocol=SUBPROTOCOL,
        bounds=Bounds(handshake_time, idle_time, drain_time, connections),
    )
