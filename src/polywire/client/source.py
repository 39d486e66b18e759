"""An inbox of a protocol's own messages as a source of the bus's."""

from collections.abc import Callable
from typing import Generic, TypeVar

from polywire.client.inbox import Inbox

Own = TypeVar("Own")
Item = TypeVar("Item")


class Reading(Generic[Own, Item]):
    """Takes from an inbox, and gives what ``translate`` makes of it."""

    def __init__(self, inbox: Inbox[Own], translate: Callable[[Own], Item]) -> None:
        self._inbox = inbox
        self._translate = translate

    async def __anext__(self) -> Item:
        return self._translate(await self._inbox.__anext__())

    async def close(self) -> None:
        """Want no more."""
        self._inbox.close()
