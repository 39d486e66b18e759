"""The promise that comes with every publish: what is known of the message, as soon as it is known.

``publish`` is a plain call that returns a ``Receipt``. Awaiting it gives a ``Promise``, or raises what became of the
message instead; who does not await it may go on at once. Nothing is logged about one that nobody asks.
"""

import asyncio
from collections.abc import Callable, Generator
from enum import Enum
from typing import Any


class Promise(Enum):
    """How much is known of a message that was published."""

    SENT = "sent"
    """It was given to the connection. The protocol, or the QoS, has no acknowledgement."""

    ACKNOWLEDGED = "acknowledged"
    """The peer has taken it over; a hub with a journal has it on disk."""


class Receipt:
    """What becomes of one message. ``withdraw`` is called where the only one who awaits it is cancelled."""

    __slots__ = ("_error", "_promise", "_waiting", "withdraw")

    def __init__(self, promise: Promise | None = None, withdraw: Callable[[], None] | None = None) -> None:
        self._promise = promise
        self._error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] | None = None
        self.withdraw = withdraw

    @property
    def done(self) -> bool:
        """Whether it is known what became of the message."""
        return self._promise is not None or self._error is not None

    def __await__(self) -> Generator[Any, None, Promise]:
        if self._promise is not None:
            return self._promise
        while not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(waiter)
            try:
                yield from waiter
            except asyncio.CancelledError:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                if not self._waiting and self.withdraw is not None:
                    self.withdraw()
                raise
        return self._outcome()

    def keep(self, promise: Promise) -> None:
        """The promise is kept."""
        if not self.done:
            self._promise = promise
            self._wake()

    def fail(self, error: Exception) -> None:
        """It can't be."""
        if not self.done:
            self._error = error
            self._wake()

    def _outcome(self) -> Promise:
        if self._error is not None:
            raise self._error
        return self._promise or Promise.SENT

    def _wake(self) -> None:
        self.withdraw = None
        waiting, self._waiting = self._waiting or [], []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


SENT = Receipt(Promise.SENT)
"""The receipt of everything that went straight to a live connection."""
