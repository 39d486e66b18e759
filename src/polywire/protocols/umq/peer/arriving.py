"""What comes from the other side, as a program gets it: a text at once, and attachments to be awaited apart from it.

``Peer`` makes these from frames and fills the attachments in as they arrive, so a slow one holds up neither its own
message nor those behind it (UMQ-139).
"""

import asyncio
from collections.abc import Generator

from polywire.client.errors import AttachmentFailed


class Arriving:
    """One attachment: awaiting it gives its octets, or raises ``AttachmentFailed``. It may be awaited repeatedly."""

    __slots__ = ("_octets", "_problem", "_waiting")

    def __init__(self) -> None:
        self._octets: bytes | None = None
        self._problem: str | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def __await__(self) -> Generator[object, None, bytes]:
        return self._wait().__await__()

    def done(self) -> bool:
        """Whether awaiting it returns, or raises, at once."""
        return self._octets is not None or self._problem is not None

    def arrived(self, octets: bytes) -> None:
        """It is there."""
        self._octets = octets
        self._wake()

    def failed(self, problem: str) -> None:
        """It will not come."""
        self._problem = problem
        self._wake()

    async def _wait(self) -> bytes:
        if not self.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                self._waiting.remove(waiter)
        if self._octets is None:
            raise AttachmentFailed(self._problem or "")
        return self._octets

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


class Received:
    """A text and its attachments: an answer, an update, or what came with the greeting."""

    __slots__ = ("attachments", "text")

    def __init__(self, text: str, attachments: int = 0) -> None:
        self.text = text
        self.attachments: tuple[Arriving, ...] = tuple([Arriving() for _ in range(attachments)]) if attachments else ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r}, {len(self.attachments)} attachments)"

    async def all(self) -> list[bytes]:
        """The octets of all attachments, once they are there. Raises for the first that failed."""
        return [await each for each in self.attachments]

    async def body(self) -> bytes:
        """The text's UTF-8 or, where it is empty and attachments come, the first of them: how the hub sends bodies."""
        if self.text or not self.attachments:
            return self.text.encode()
        return await self.attachments[0]
