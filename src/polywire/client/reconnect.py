"""Staying connected: how long to wait before trying again, and who does the trying.

A client gives a ``Keeper`` the coroutine that opens its connection and restores everything (login, subscriptions, what
is unacknowledged), and notifies it when the connection is lost. What is published meanwhile waits in ``outgoing``.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from polywire.backoff import Backoff
from polywire.client.errors import Closed, ConnectionLost, Refused
from polywire.errors import PolywireError

STABLE: Final = 10.0
"""Seconds a connection must have lasted for the next pause to be a short one again."""

log = logging.getLogger("polywire.client")

OnDisconnect = Callable[[ConnectionLost], object]
"""Called when a connection is lost, with the reason; a coroutine function is run as a task."""

OnReconnect = Callable[[], object]
"""Called when there is a connection again; as above."""


class Callbacks:
    """Calls a program's functions, coroutine functions as tasks. What they raise is logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[object]] = set()

    def call(self, callback: Callable[..., object] | None, *arguments: object) -> None:
        """Call one, if there is one."""
        if callback is None:
            return
        try:
            outcome = callback(*arguments)
        except Exception:
            log.exception("a callback failed")
            return
        if isinstance(outcome, Awaitable):
            task: asyncio.Future[object] = asyncio.ensure_future(outcome)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel what still runs, but for the caller's own task."""
        running = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _ended(self, task: "asyncio.Future[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a callback failed", exc_info=task.exception())


class Keeper:
    """Opens a connection, and opens it again whenever it is lost.

    ``open_`` makes one attempt. ``on_give_up`` is called when there will be no further one: the peer refused for good,
    the time is up, or ``backoff`` is None. ``on_disconnect`` and ``on_reconnect`` are the program's.
    """

    def __init__(
        self,
        name: str,
        open_: Callable[[], Awaitable[None]],
        backoff: Backoff | None,
        on_give_up: Callable[[Closed], None],
        *,
        on_disconnect: OnDisconnect | None = None,
        on_reconnect: OnReconnect | None = None,
    ) -> None:
        self._name = name
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._callbacks = Callbacks()
        self._open = open_
        self._backoff = backoff
        self._on_give_up = on_give_up
        self._task: asyncio.Task[None] | None = None
        self._attempt = 0
        self._since = 0.0
        self._waiting: set[asyncio.Future[None]] = set()
        self.connected = False
        self.closed: Closed | None = None

    async def start(self) -> None:
        """The first attempt; its error is the caller's."""
        await self._open()
        self._up()

    def lost(self, error: Exception | None) -> None:
        """The connection has ended and nobody wanted that."""
        if self.closed is not None or not self.connected:
            return
        self.connected = False
        loop = asyncio.get_running_loop()
        if loop.time() - self._since > STABLE:
            self._attempt = 0
        log.info("%s: the connection was lost: %s", self._name, error or "the peer closed it")
        if self._backoff is None:
            self._give_up(error or ConnectionLost("the peer closed the connection"))
        else:
            self._task = loop.create_task(self._again(self._backoff))
        self._callbacks.call(self._on_disconnect, _reason(error))

    async def up(self) -> None:
        """Wait until there is a connection. Raises ``Closed`` where there will be none."""
        while not self.connected:
            if self.closed is not None:
                raise self.closed
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)

    async def close(self) -> None:
        """Try no more."""
        if self.closed is None:
            self.closed = Closed("the client was closed")
        self.connected = False
        self._wake()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        await self._callbacks.close()

    async def _again(self, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            pause = backoff.pause(self._attempt)
            self._attempt += 1
            await asyncio.sleep(pause)
            try:
                await self._open()
            except (PolywireError, OSError) as error:
                if isinstance(error, Refused) and not error.temporary:
                    self._give_up(error)
                    return
                if backoff.give_up is not None and loop.time() - began > backoff.give_up:
                    self._give_up(error)
                    return
                log.info("%s: attempt %d failed: %s", self._name, self._attempt, error)
            except Exception as error:
                log.exception("%s: connecting again failed in a way nobody thought of", self._name)
                self._give_up(error)
                return
            else:
                self._up()
                log.info("%s: connected again", self._name)
                self._callbacks.call(self._on_reconnect)
                return

    def _up(self) -> None:
        self.connected = True
        self._since = asyncio.get_running_loop().time()
        self._wake()

    def _give_up(self, error: Exception) -> None:
        closed = Closed(f"{self._name}: the connection is gone for good: {error}")
        closed.__cause__ = error
        self.closed = closed
        log.warning("%s; what waited to be sent is dropped", closed.reason)
        self._wake()
        self._on_give_up(closed)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


def _reason(error: Exception | None) -> ConnectionLost:
    """Why a connection was lost, however the link puts it."""
    if isinstance(error, ConnectionLost):
        return error
    lost = ConnectionLost("the peer closed the connection" if error is None else f"the connection broke: {error}")
    lost.__cause__ = error
    return lost
