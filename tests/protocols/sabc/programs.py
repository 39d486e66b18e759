"""A client and a server of sABC in one process, for tests of what programs use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from polywire.client.peer import Server
from polywire.protocols.sabc import Limits, Peer, connect, serve
from polywire.protocols.sabc.peer import DEFAULT_LIMITS, Handler, Login


@dataclass(frozen=True)
class Both:
    """The two ends of one session."""

    server: Server[Peer]
    near: Peer
    far: Peer


@contextlib.asynccontextmanager
async def connected(
    handler: Handler | None = None,
    *,
    near: Handler | None = None,
    path: str | None = None,
    login: Login | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncIterator[Both]:
    """A client (``near``) and the server's end of its session, whose messages ``handler`` takes."""
    joined: asyncio.Queue[Peer] = asyncio.Queue()
    async with (
        serve(handler, port=0, path=path, login=login, limits=limits, joined=joined.put_nowait) as server,
        connect(server.url, client_id="test", handler=near, limits=limits) as peer,
    ):
        yield Both(server, peer, await joined.get())
