"""A client and a server of MicroMsg2 in one process, for tests of what programs use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from polywire.client.peer import Server
from polywire.protocols.micromsg import Limits, Peer, connect, serve
from polywire.protocols.micromsg.connection import DEFAULT_LIMITS
from polywire.protocols.micromsg.peer import Handler, Login, Subscribed


@dataclass(frozen=True)
class Both:
    """The two ends of one connection."""

    server: Server[Peer]
    near: Peer
    far: Peer


@contextlib.asynccontextmanager
async def connected(
    handler: Handler | None = None,
    *,
    near: Handler | None = None,
    extensions: Sequence[str] = ("pub-sub", "batch-ack"),
    window: int = 16,
    login: Login | None = None,
    subscribed: Subscribed | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncIterator[Both]:
    """A client (``near``) and the server's end of its connection, whose messages ``handler`` takes."""
    joined: asyncio.Queue[Peer] = asyncio.Queue()
    async with (
        serve(
            handler,
            port=0,
            window=window,
            login=login,
            subscribed=subscribed,
            limits=limits,
            joined=joined.put_nowait,
        ) as server,
        connect(server.url, required=extensions, optional=(), window=window, handler=near, limits=limits) as peer,
    ):
        yield Both(server, peer, await joined.get())
