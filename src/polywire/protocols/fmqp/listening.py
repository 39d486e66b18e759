"""What a client of FMQP listens to: its subscriptions and watches, and who of them gets which packet.

The broker sends a message once, however many subscriptions of a client match it; here it goes to each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, cast

from polywire.client.inbox import Inbox, Intake
from polywire.protocols.fmqp.frames import (
    DEBUG,
    FEEDBACK,
    Decoder,
    Publication,
    Subscription,
    Unsubscription,
    decode_count,
    publications_in,
)
from polywire.protocols.fmqp.round_trips import RoundTrips
from polywire.protocols.fmqp.topics import equivalent
from polywire.wire.frame import Discarded, Run

ROUTES_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class Demand:
    """How many subscribers a topic has, debugging ones aside."""

    topic: str
    subscribers: int


class Listening(Inbox[Publication]):
    """A subscription: what is published to ``topic``, as it comes. Closing it unsubscribes."""

    def __init__(self, table: "Table", topic: str, flags: int, limit: int) -> None:
        super().__init__(table.intake, limit, on_close=lambda: table.remove(self))
        self.topic: Final = topic
        self.flags: Final = flags

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Watching(Inbox[Demand]):
    """A watch of the demand for ``topic``. Closing it ends it."""

    flags: Final = FEEDBACK

    def __init__(self, table: "Table", topic: str, limit: int) -> None:
        super().__init__(table.intake, limit, on_close=lambda: table.remove(self))
        self.topic: Final = topic

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


Ear = Listening | Watching


class Table:
    """All subscriptions and watches of one client. ``tell`` sends a frame to the broker, if there is one."""

    def __init__(
        self, intake: Intake, tell: Callable[[Subscription | Unsubscription], None], round_trips: RoundTrips
    ) -> None:
        self.intake: Final = intake
        self._tell: Final = tell
        self._ears: Final[dict[tuple[str, int], list[Ear]]] = {}  # by topic and system of topics
        self._routes: Final[dict[bytes, object]] = {}
        self._same: Final[dict[tuple[int, ...], tuple[Listening, ...]]] = {}
        self._round_trips: Final = round_trips
        self.discarded = 0
        """Packets that broke a rule, and publications nobody here listens to."""

    def add(self, ear: Ear) -> None:
        """Listen from now on."""
        self._ears.setdefault((ear.topic, ear.flags & FEEDBACK), []).append(ear)
        self._forget_routes()
        # Said to the broker even if it has been said before: so the cached message comes for the new one, too.
        self._tell(Subscription(ear.topic, ear.flags))

    def remove(self, ear: Ear) -> None:
        """Listen no more."""
        key = (ear.topic, ear.flags & FEEDBACK)
        ears = self._ears.get(key, [])
        if ear in ears:
            ears.remove(ear)
            self._forget_routes()
            if not ears:
                del self._ears[key]
                self._tell(Unsubscription(ear.topic, ear.flags & FEEDBACK))

    def again(self) -> list[Subscription]:
        """What to say to a broker that knows nothing of us."""
        said = []
        for (topic, system), ears in self._ears.items():
            debug = DEBUG if all(ear.flags & DEBUG for ear in ears) else 0
            said.append(Subscription(topic, system | debug))
        return said

    def end(self, error: Exception | None) -> None:
        """There will be no more."""
        for ears in list(self._ears.values()):
            for ear in list(ears):
                ear.fail(error)

    def received(self, decoder: Decoder, data: bytes) -> None:
        """Hand out what the broker has sent."""
        for item in decoder.feed_runs(data, self._routes, self._resolve):
            if isinstance(item, Run):
                route = cast("tuple[Listening, ...]", item.route)
                if not route:
                    self.discarded += item.count
                    continue
                found = publications_in(item.data, item.start, item.end)
                for listening in route:
                    listening.extend(found, item.end - item.start)
            elif isinstance(item, Publication):
                self._publication(item)
            elif isinstance(item, Discarded):
                self.discarded += 1

    def _publication(self, frame: Publication) -> None:
        ours = bool(frame.flags & FEEDBACK) and self._round_trips.heard(frame.topic)
        found = self._find(frame.topic, frame.flags & FEEDBACK)
        if not found and not ours:
            self.discarded += 1
        for ear in found:
            if isinstance(ear, Listening):
                ear.put(frame, len(frame.body))
            else:
                ear.put(Demand(frame.topic, decode_count(frame.body) or 0))

    def _find(self, topic: str, system: int) -> list[Ear]:
        found: list[Ear] = []
        for (wanted, of), ears in self._ears.items():
            if of == system and equivalent(wanted, topic):
                found += ears
        return found

    def _resolve(self, name: bytes) -> object:
        found = tuple(cast("list[Listening]", self._find(name.decode(), 0)))
        # The same tuple for the same listeners, so that topics with the same ones come as one run.
        route = self._same.setdefault(tuple(map(id, found)), found)
        if len(self._routes) >= ROUTES_KEPT:
            self._routes.clear()
        self._routes[name] = route
        return route

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._same.clear()
