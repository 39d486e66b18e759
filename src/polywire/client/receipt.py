"""The promise that comes with every publish: what is known of the message, as soon as it is known.

``publish`` is a plain call that returns a ``Receipt``. Awaiting it gives a ``Promise``, or raises what became of the
message instead. A failure that nobody awaits is logged as a warning when the receipt is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from enum import Enum
from typing import Any

from polywire.client.errors import Closed, Timeout

log = logging.getLogger("polywire.client")


class Promise(Enum):
    """How much is known of a message that was published."""

    SENT = "sent"
    """It was given to the connection. The protocol, or the QoS, has no acknowledgement."""

    ACKNOWLEDGED = "acknowledged"
    """The peer has taken it over; a hub with a journal has it on disk."""


class _Unread:
    """A failure that nobody has asked for yet: logged when its receipt is dropped. Only failures pay for it."""

    __slots__ = ("channel", "error", "read")

    def __init__(self, channel: str, error: Exception) -> None:
        self.channel = channel
        self.error = error
        self.read = False

    def __del__(self) -> None:
        if not self.read:
            log.warning("a message to %s was not delivered, and nobody awaited it: %s", self.channel, self.error)


class Receipt:
    """What becomes of one message, published to ``channel``.

    ``withdraw`` is called where the only one who awaits it is cancelled; it returns whether the message was sent.
    """

    __slots__ = ("_error", "_promise", "_timer", "_unread", "_waiting", "channel", "withdraw")

    def __init__(
        self, promise: Promise | None = None, withdraw: Callable[[], object] | None = None, channel: str = ""
    ) -> None:
        self._promise = promise
        self._error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread: _Unread | None = None
        self.channel = channel
        self.withdraw = withdraw

    @property
    def done(self) -> bool:
        """Whether it is known what became of the message."""
        return self._promise is not None or self._error is not None

    def __await__(self) -> Generator[Any, None, Promise]:
        promise = self._promise
        if promise is not None:
            return promise
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

    def expire(self, seconds: float) -> None:
        """Give up after so many seconds: what was not sent by then is not sent, and awaiting raises ``Timeout``."""
        if not self.done:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expired, seconds)

    def keep(self, promise: Promise) -> None:
        """The promise is kept."""
        if not self.done:
            self._promise = promise
            self._wake()

    def fail(self, error: Exception) -> None:
        """It can't be."""
        if not self.done:
            self._error = error
            # At the end of the client there may be thousands of them, and one line says it all.
            if self._waiting is None and self.channel and not isinstance(error, Closed):
                self._unread = _Unread(self.channel, error)
            self._wake()

    def _outcome(self) -> Promise:
        if self._unread is not None:
            self._unread.read = True
        if self._error is not None:
            raise self._error
        return self._promise or Promise.SENT

    def _expired(self, seconds: float) -> None:
        withdraw, self.withdraw = self.withdraw, None
        sent = withdraw is None or bool(withdraw())
        self.fail(Timeout("publishing", seconds, sent=sent))

    def _wake(self) -> None:
        self.withdraw = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting or [], []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


SENT = Receipt(Promise.SENT)
"""The receipt of everything that went straight to a live connection."""
