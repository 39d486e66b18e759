"""Messages that go on coming when a connection is lost and another one takes its place."""

import asyncio
import collections
import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from polywire.client.errors import Closed, ConnectionLost, Overrun

Item_co = TypeVar("Item_co", covariant=True)
Item = TypeVar("Item")


class Stream(Protocol[Item_co]):
    """What one connection gives."""

    async def __anext__(self) -> Item_co:
        """The next one. ``ConnectionLost`` at the end of the connection, behind all that has come."""

    async def leave(self) -> None:
        """Want no more."""


class Renewed(Generic[Item]):
    """A source for the bus, fed by one stream after another. ``closed`` is called when it is closed."""

    def __init__(self, closed: "Callable[[Renewed[Item]], None]") -> None:
        self._closed = closed
        self._streams: collections.deque[Stream[Item]] = collections.deque()
        self._over = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def renew(self, stream: Stream[Item]) -> None:
        """There is a new connection; what has come on the last one is read first."""
        self._streams.append(stream)
        self._wake()

    def fail(self, error: Exception) -> None:
        """There will be no further connection."""
        self._error = error
        self._wake()

    async def __anext__(self) -> Item:
        while True:
            if self._over:
                raise StopAsyncIteration
            if not self._streams:
                if self._error is not None:
                    if type(self._error) is Closed and self._error.__cause__ is None:
                        raise StopAsyncIteration  # its own program closed the client
                    raise self._error
                await self._changed()
                continue
            stream = self._streams[0]
            try:
                return await stream.__anext__()
            except Overrun:
                self._closed(self)  # it has ended, and is not to be renewed
                raise
            except ConnectionLost:
                if self._streams and self._streams[0] is stream:
                    self._streams.popleft()

    async def close(self) -> None:
        """Want no more."""
        if self._over:
            return
        self._over = True
        self._closed(self)
        self._wake()
        streams, self._streams = self._streams, collections.deque()
        await asyncio.gather(*[_left(stream.leave()) for stream in streams])

    async def _changed(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("two tasks wait for the next message of one subscription; give each its own")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _left(leaving: Awaitable[None]) -> None:
    with contextlib.suppress(ConnectionLost, Closed):  # which is one way to leave
        await leaving
