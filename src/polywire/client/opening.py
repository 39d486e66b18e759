"""A connection to be: ``async with`` it, or ``await`` it and close what it gives yourself."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """Whatever is open until it is closed."""

    async def close(self) -> None:
        """Leave nothing behind."""


Opened = TypeVar("Opened", bound=Closable)


class Opening(Generic[Opened]):
    """What ``connect`` returns. Nothing happens until it is entered or awaited."""

    def __init__(self, open_: Callable[[], Awaitable[Opened]]) -> None:
        self._open = open_
        self._opened: Opened | None = None

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._open().__await__()
