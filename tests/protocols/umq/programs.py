"""A client and a server of UMQ in one process, for tests of what programs use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from polywire.client.peer import Server
from polywire.protocols.umq import Limits, Peer, connect, serve
from polywire.protocols.umq.peer import DEFAULT_LIMITS, Handler


@dataclass(frozen=True)
class Both:
    """The two ends of one connection."""

    server: Server[Peer]
    near: Peer
    far: Peer


@contextlib.asynccontextmanager
async def connected(
    handler: Handler | None = None, *, near: Handler | None = None, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[Both]:
    """A client (``near``) and the server's end of its connection, whose calls ``handler`` answers."""
    joined: asyncio.Queue[Peer] = asyncio.Queue()
    async with (
        serve(handler, port=0, limits=limits, joined=joined.put_nowait) as server,
        connect(server.url, handler=near, limits=limits) as peer,
    ):
        yield Both(server, peer, await joined.get())
