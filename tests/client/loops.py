"""Running a coroutine as a test: with a limit, and with nothing left behind."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

SECONDS = 20.0

Result = TypeVar("Result")


def run(main: Callable[[], Coroutine[Any, Any, Result]], seconds: float = SECONDS) -> Result:
    """What ``main`` returns. It fails where it takes too long or leaves a task behind."""

    async def limited() -> Result:
        async with asyncio.timeout(seconds):
            result = await main()
        # A server's accepted transports end one turn after their sockets do.
        for _ in range(3):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks were left behind: {left}"
        return result

    with asyncio.Runner() as runner:
        problems: list[dict[str, Any]] = []
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        result = runner.run(limited())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gc.collect()
        # A server may be hung up on in the middle of TLS, and says so.
        assert not [each for each in problems if each["message"] != "SSL handshake failed"], problems
        return result


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that has no event of its own."""
    while not condition():  # noqa: ASYNC110 - there is none
        await asyncio.sleep(0.005)
