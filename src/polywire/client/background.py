"""An event loop in a thread of its own, for programs that have none: ``polywire.sync`` runs its clients there."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from polywire.client.errors import Closed, Timeout

Result = TypeVar("Result")


class Thread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="polywire", daemon=True)
        self._thread.start()

    def wait(self, what: str, coroutine: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
        """What the coroutine returns, once it does. It is cancelled after so many seconds, or with Ctrl-C."""
        with self._lock:
            if self._stopping or threading.current_thread() is self._thread:
                coroutine.close()
                raise Closed("the bus was closed")
            # The clock runs over there, so that what is done just in time is not lost on its way here.
            future = asyncio.run_coroutine_threadsafe(_limited(what, coroutine, seconds), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            coroutine.close()  # it may not have begun
            raise Closed("the bus was closed") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and the thread."""
        with self._lock:
            # What was given to the loop before is begun before it stops, and cancelled then.
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


async def _limited(what: str, coroutine: Coroutine[Any, Any, Result], seconds: float | None) -> Result:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await coroutine
    except TimeoutError as error:
        if seconds is None or not limit.expired():
            raise
        raise Timeout(what, seconds) from error
