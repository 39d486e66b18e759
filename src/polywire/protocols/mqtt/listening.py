"""What a client of MQTT listens to: its subscriptions, who of them gets which message, and what is acknowledged when.

A server may send a message once for all of a client's subscriptions that match; here it goes to each of them.
"""

import asyncio
import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, cast

from polywire.client.errors import Refused
from polywire.client.inbox import Inbox, Intake
from polywire.client.receipt import Promise, Receipt
from polywire.protocols.mqtt.frames import FAILURE, Publish
from polywire.protocols.mqtt.topics import matches

ROUTES_KEPT: Final = 4096
CLAIM_TIME: Final = 10.0
"""Seconds in which a program subscribes again to what its remembered session has messages for."""


class Listening(Inbox[Publish]):
    """A subscription: what is published to topics that match ``topic_filter``. Closing it unsubscribes.

    Messages are acknowledged as they come in. ``granted`` is the QoS the server has given, ``receipt`` the server's
    answer.
    """

    def __init__(self, table: "Table", topic_filter: str, qos: int, limit: int) -> None:
        super().__init__(table.intake, limit, on_close=lambda: table.remove(self))
        self.topic_filter: Final = topic_filter
        self.qos: Final = qos
        self.granted: int | None = None
        self.receipt = Receipt(withdraw=self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def deliver(self, frame: Publish, owed: "Owed | None") -> None:  # noqa: ARG002 - it is not asked for here
        """One message."""
        self.put(frame, len(frame.payload))


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that its reader acknowledges. What is not acknowledged when the connection ends comes again."""

    message: Publish
    owed: "Owed | None"
    ear: "Consuming | None" = None

    def ack(self) -> None:
        """It is done. A second time does nothing."""
        if self.owed is not None:
            self.owed.settle(self)


class Consuming(Inbox[Delivery]):
    """A subscription whose messages are acknowledged by ``Delivery.ack``."""

    def __init__(self, table: "Table", topic_filter: str, qos: int, limit: int) -> None:
        super().__init__(table.intake, limit, on_close=lambda: table.remove(self))
        self.topic_filter: Final = topic_filter
        self.qos: Final = qos
        self.granted: int | None = None
        self.receipt = Receipt(withdraw=self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def deliver(self, frame: Publish, owed: "Owed | None") -> None:
        """One message."""
        delivery = Delivery(frame, owed, self)
        if owed is not None and self.taking:
            owed.to.append(delivery)
        self.put(delivery, len(frame.payload))


Ear = Listening | Consuming


class Owed:
    """An acknowledgement that waits for its readers, and for those of the messages before it (MQTT-150)."""

    __slots__ = ("acknowledgements", "octets", "to", "void")

    def __init__(self, acknowledgements: "Acknowledgements", octets: bytes) -> None:
        self.acknowledgements = acknowledgements
        self.octets = octets
        self.to: list[Delivery] = []
        self.void = False

    def settle(self, delivery: Delivery) -> None:
        """One of its readers is done."""
        for index, each in enumerate(self.to):
            if each is delivery:
                del self.to[index]
                break
        if not self.to:
            self.acknowledgements.go_on()


class Acknowledgements:
    """PUBACKs and PUBRECs in the order of their PUBLISH packets. ``write`` sends on the connection they belong to."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._owed: collections.deque[Owed] = collections.deque()

    def owe(self, octets: bytes) -> Owed:
        """One more to send, once ``go_on`` finds that nobody holds it."""
        owed = Owed(self, octets)
        self._owed.append(owed)
        return owed

    def go_on(self) -> None:
        """Send what nothing holds any more."""
        while self._owed and not self._owed[0].to:
            owed = self._owed.popleft()
            if not owed.void:
                self._write(owed.octets)

    def abandon(self, ear: Consuming) -> None:
        """What this reader has not acknowledged never is, on this connection, and keeps back nothing behind it."""
        for owed in self._owed:
            kept = [delivery for delivery in owed.to if delivery.ear is not ear]
            owed.void = owed.void or len(kept) < len(owed.to)
            owed.to = kept
        self.go_on()

    def end(self) -> None:
        """The connection has ended: what is unacknowledged comes again, and is acknowledged then."""
        self._owed.clear()


class Table:
    """All subscriptions of one client."""

    def __init__(self, intake: Intake, acknowledgements: Acknowledgements, unsubscribe: Callable[[str], None]) -> None:
        self.intake: Final = intake
        self.acknowledgements: Final = acknowledgements
        self._unsubscribe: Final = unsubscribe
        self._ears: Final[dict[str, list[Ear]]] = {}
        self._routes_to: Final[dict[tuple[int, ...], tuple[Ear, ...]]] = {}
        self.routes: Final[dict[bytes, object]] = {}
        self._unclaimed: list[tuple[Publish, Owed | None, Delivery]] | None = None
        self._holding: asyncio.TimerHandle | None = None
        self.discarded = 0
        """Messages nobody here listens to."""

    def add(self, ear: Ear) -> None:
        """Listen from now on, and to what was held."""
        self._ears.setdefault(ear.topic_filter, []).append(ear)
        self._forget_routes()
        if self._unclaimed:
            mine = [each for each in self._unclaimed if matches(ear.topic_filter, each[0].topic)]
            self._unclaimed = [each for each in self._unclaimed if each not in mine]
            for frame, owed, holder in mine:
                ear.deliver(frame, owed)
                holder.ack()

    def hold(self) -> None:
        """Keep what nobody listens to yet: the server knows subscriptions that this program has still to make."""
        self._unclaimed = []
        self._holding = asyncio.get_running_loop().call_later(CLAIM_TIME, self.hold_no_more)

    def hold_no_more(self) -> None:
        """What nobody has claimed is acknowledged and dropped."""
        unclaimed, self._unclaimed = self._unclaimed or [], None
        self.discarded += len(unclaimed)
        for _, _, holder in unclaimed:
            holder.ack()

    def remove(self, ear: Ear) -> None:
        """Listen no more."""
        ears = self._ears.get(ear.topic_filter, [])
        if ear in ears:
            ears.remove(ear)
            self._forget_routes()
            if isinstance(ear, Consuming):
                self.acknowledgements.abandon(ear)
            if not ears:
                del self._ears[ear.topic_filter]
                self._unsubscribe(ear.topic_filter)

    def filters(self, *, unanswered: bool) -> list[tuple[str, int]]:
        """Each filter with the highest QoS somebody wants; only those the server has not answered yet, if told so."""
        return [
            (name, max(ear.qos for ear in ears))
            for name, ears in self._ears.items()
            if not unanswered or any(ear.granted is None for ear in ears)
        ]

    def ears(self, route: object, count: int) -> "tuple[Ear, ...]":
        """Those who get a run of ``count`` messages."""
        ears = cast("tuple[Ear, ...]", route)
        if not ears:
            self.discarded += count
        return ears

    def qos(self, topic_filter: str) -> int:
        """The highest QoS somebody wants of this filter."""
        return max(ear.qos for ear in self._ears[topic_filter])

    def granted(self, topic_filter: str, code: int) -> None:
        """The server has answered a subscription."""
        for ear in list(self._ears.get(topic_filter, ())):
            if code != FAILURE:
                ear.granted = code
                ear.receipt.keep(Promise.ACKNOWLEDGED)
                continue
            refusal = Refused(f"the server refused the subscription to {topic_filter!r}", code=code)
            self._ears[topic_filter].remove(ear)
            ear.receipt.fail(refusal)
            ear.fail(refusal)
        if not self._ears.get(topic_filter, [None]):
            del self._ears[topic_filter]
            self._forget_routes()

    def end_connection(self) -> None:
        """What was not acknowledged comes again: drop it where a reader would have to do so."""
        self.acknowledgements.end()
        if self._unclaimed:
            self._unclaimed = []
        for ears in self._ears.values():
            for ear in ears:
                if isinstance(ear, Consuming):
                    ear.clear()

    def end(self, error: Exception) -> None:
        """There will be no more."""
        if self._holding is not None:
            self._holding.cancel()
        for ears in list(self._ears.values()):
            for ear in list(ears):
                ear.receipt.fail(error)
                ear.fail(error)

    def deliver(self, frame: Publish, owed: Owed | None) -> None:
        """Hand out one message."""
        name = frame.topic.encode()
        ears = cast("tuple[Ear, ...]", self.routes.get(name) or self.resolve(name))
        if not ears and self._unclaimed is not None:
            holder = Delivery(frame, owed)
            if owed is not None:
                owed.to.append(holder)
            self._unclaimed.append((frame, owed, holder))
        elif not ears:
            self.discarded += 1
        for ear in ears:
            ear.deliver(frame, owed)

    def resolve(self, name: bytes) -> object:
        """Who listens to a topic name: the same tuple for the same ones, so that their messages come as one run."""
        topic = name.decode()
        found: list[Ear] = []
        for topic_filter, ears in self._ears.items():
            if matches(topic_filter, topic):
                found += ears
        route = self._routes_to.setdefault(tuple(map(id, found)), tuple(found))
        if len(self.routes) >= ROUTES_KEPT:
            self.routes.clear()
        self.routes[name] = route
        return route

    def _forget_routes(self) -> None:
        self.routes.clear()
        self._routes_to.clear()
