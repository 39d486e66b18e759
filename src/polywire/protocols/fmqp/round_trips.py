"""Waiting until an FMQP broker has dealt with what it was told, though it answers nothing.

A topic nobody else knows is watched and then subscribed to; when the client hears of that demand, the broker has come
so far.
"""

import asyncio
import secrets
from collections.abc import Callable

from polywire.client.errors import ConnectionLost
from polywire.protocols.fmqp.frames import FEEDBACK, Subscription, Unsubscription, encode


class RoundTrips:
    """Those of one client that are under way. ``say`` writes to the broker, ``begun`` is called when one has begun."""

    def __init__(self, say: Callable[[bytes], None], begun: Callable[[], None]) -> None:
        self._say = say
        self._begun = begun
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def make(self) -> None:
        """There and back. Raises ``ConnectionLost`` where the connection ends before."""
        topic = f"$/settled/{secrets.token_hex(8)}"
        heard = asyncio.get_running_loop().create_future()
        self._waiting[topic] = heard
        self._say(encode(Subscription(topic, FEEDBACK)) + encode(Subscription(topic)))
        self._begun()
        try:
            await heard
        finally:
            del self._waiting[topic]
            self._say(encode(Unsubscription(topic, FEEDBACK)) + encode(Unsubscription(topic)))

    def heard(self, topic: str) -> bool:
        """There is demand for this topic. Whether it is one of ours."""
        waiter = self._waiting.get(topic)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return waiter is not None

    def lost(self) -> None:
        """The connection has ended."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionLost("the connection ended"))
