"""When a command that goes on and on has enough: a number of messages, a time, or an error."""

import asyncio
from collections.abc import Sequence


class Ending:
    """When it is enough. ``failed`` ends it with an error."""

    def __init__(self, count: int | None = None, seconds: float | None = None, patience: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._patience = patience
        self._end = None if seconds is None else self._loop.time() + seconds
        self._last = self._loop.time()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.came = 0

    def message(self) -> bool:
        """One more has come; whether it is still wanted."""
        if self._done.done():
            return False
        self.came += 1
        self._last = self._loop.time()
        if self.came == self._count:
            self._done.set_result(None)
        return True

    def enough(self) -> None:
        """It has ended as it should."""
        if not self._done.done():
            self._done.set_result(None)

    def check(self) -> None:
        """Raise the error with which it ended."""
        if self._done.done():
            self._done.result()

    def failed(self, error: Exception) -> None:
        """It can't go on."""
        if not self._done.done():
            self._done.set_exception(error)

    @property
    def broken(self) -> bool:
        """Whether it ended with an error."""
        return self._done.done() and self._done.exception() is not None

    async def wait(self, tasks: "Sequence[asyncio.Task[None]]") -> None:
        """Wait until it is enough, or one of the tasks has ended."""
        from polywire.client.errors import Timeout  # noqa: PLC0415 - not for help and completion

        self._last = self._loop.time()
        while True:
            now = self._loop.time()
            ends = [] if self._end is None else [self._end]
            if self._patience is not None:
                ends.append(self._last + self._patience)
            left = min(ends) - now if ends else None
            if left is not None and left <= 0:
                if self._end is not None and now >= self._end:
                    return
                raise Timeout("waiting for a message", self._patience or 0.0)
            done, _ = await asyncio.wait([*tasks, self._done], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            if done:
                return
