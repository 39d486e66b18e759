"""The destinations a peer has subscribed to, and which of them each message that comes is for.

A topic's message comes once, however many of a connection's subscriptions it matches (MICROMSG-76), so all of them get
it here. It is acknowledged at once: a reader that does not keep up makes the connection stop reading instead. A queue's
message goes to one, and is acknowledged when that one is done with it.
"""

from typing import Self

from polywire.client.errors import ConnectionLost
from polywire.client.inbox import Inbox, Intake
from polywire.protocols.micromsg.errors import LocalProtocolError
from polywire.protocols.micromsg.filters import TOPIC_PREFIX, Filter, covers, matches, subscribe, unsubscribe
from polywire.protocols.micromsg.peer.asking import Asking
from polywire.protocols.micromsg.peer.failures import Failure
from polywire.protocols.micromsg.peer.inflow import Received


class Subscription:
    """The messages of one destination, as an async iterator. Leave it with ``leave`` or ``async with``.

    A queue's message is acknowledged with ``Received.ack``, or when the next one is asked for. What was not when the
    queue is left stays with this connection, and goes back to the queue when that ends.
    """

    def __init__(self, subscribing: "Subscribing", destination: str, condition: Filter, limit: int) -> None:
        self.destination = destination
        self.condition = condition
        self.inbox: Inbox[Received] = Inbox(subscribing.intake, limit, on_close=lambda: subscribing.ended(self))
        self._subscribing = subscribing
        self._last: Received | None = None

    async def leave(self) -> None:
        """Want no more."""
        await self._subscribing.leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        last, self._last = self._last, None
        if last is not None:
            last.ack()
        self._last = await self.inbox.__anext__()
        return self._last

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class Subscribing:
    """All subscriptions of one connection, by destination."""

    def __init__(self, asking: Asking, intake: Intake) -> None:
        self.intake = intake
        self._asking = asking
        self._known: dict[str, list[Subscription]] = {}
        self._left: set[str] = set()  # queues: what still comes of them is not acknowledged, so that others get it

    async def subscribe(self, destination: str, condition: Filter, limit: int, seconds: float | None) -> Subscription:
        """Subscribe. Several to one destination share it, if their filters are equal: the other side keeps only one."""
        shared = self._known.get(destination, [])
        if any(each.condition != condition for each in shared):
            reason = f"{destination} is subscribed to with another filter, and there is one for each destination"
            raise LocalProtocolError(reason, rule="MICROMSG-76")
        subscription = Subscription(self, destination, condition, limit)
        self._known.setdefault(destination, []).append(subscription)
        self._left.discard(destination)
        try:
            await self._asking.ask(subscribe(destination, condition), seconds)
        except Failure:
            self._forget(subscription)
            raise
        except BaseException:
            if self._forget(subscription):
                self._asking.tell(unsubscribe(destination))  # it may have been accepted
            raise
        return subscription

    async def leave(self, subscription: Subscription) -> None:
        """Undo ``subscribe``; the other side is told when the last one of a destination leaves."""
        last = self._forget(subscription)
        subscription.inbox.close()
        if last:
            await self._asking.ask(unsubscribe(subscription.destination), None)

    def ended(self, subscription: Subscription) -> None:
        """Nobody reads it any more."""
        if self._forget(subscription):
            self._asking.tell(unsubscribe(subscription.destination))

    def take(self, message: Received) -> bool:
        """Give a message to those it is for. False where it is for none."""
        if not message.destination.startswith(TOPIC_PREFIX):
            shared = self._known.get(message.destination)
            if not shared:
                return message.destination in self._left
            shared.append(shared.pop(0))  # they take turns
            shared[-1].inbox.put(message, len(message.payload))
            return True
        found = [
            each
            for destination, shared in self._known.items()
            if covers(destination, message.destination)
            for each in shared
            if not each.condition.clauses or matches(each.condition, message.properties)
        ]
        for each in found:  # one that nobody reads may leave meanwhile
            each.inbox.put(message, len(message.payload))
        if found:
            message.ack()
        return bool(found)

    def lost(self, reason: str) -> None:
        """Nothing more will come."""
        for shared in self._known.values():
            for each in shared:
                each.inbox.fail(ConnectionLost(reason))
        self._known.clear()

    def _forget(self, subscription: Subscription) -> bool:
        """Take it out. True where it was the last one of its destination."""
        shared = self._known.get(subscription.destination, [])
        if subscription not in shared:
            return False
        shared.remove(subscription)
        if shared:
            return False
        del self._known[subscription.destination]
        if not subscription.destination.startswith(TOPIC_PREFIX):
            self._left.add(subscription.destination)
        return True
