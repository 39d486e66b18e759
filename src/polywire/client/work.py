"""What a peer does beside reading: handlers that take their time. It ends with the connection at the latest."""

import asyncio
from collections.abc import Coroutine


class Work:
    """The handlers of one peer; ``due`` messages wait for the end of theirs."""

    def __init__(self) -> None:
        self.due = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def done(self) -> None:
        """One message less is due."""
        self.due = max(0, self.due - 1)
        if not self.due:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until nothing is due."""
        while self.due:
            self._idle.clear()
            await self._idle.wait()

    def lost(self) -> None:
        """The connection has ended: nobody waits for any of it."""
        self.due = 0
        self._idle.set()
        for task in self._tasks:
            task.cancel()
