"""What a client is sent because it has just subscribed: retained messages, and the demand there is.

That may be far more than the client can take at once, so it is sent in steps, as fast as the client reads. What is
published meanwhile reaches the client at once; a retained message that it replaces is not sent any more, so nothing old
comes after something new.
"""

from collections import OrderedDict
from typing import Final, final

from polywire.hub.demand import Demand, Watcher
from polywire.hub.names import Search
from polywire.hub.outbox import Outbox
from polywire.hub.retained import Retained
from polywire.hub.routes import Subscription
from polywire.hub.work import DONE, MORE, WAIT, Job, Work

AT_ONCE: Final = 16
"""Messages sent in one step."""


@final
class _Due:
    """What is left for one subscription or watcher; ``found`` are names in reverse."""

    def __init__(self, subscription: Subscription | None, watcher: Watcher | None, search: Search) -> None:
        self.subscription: Final = subscription
        self.watcher: Final = watcher
        self.search: Final = search
        self.found: list[str] = []


@final
class Replay(Job):
    """What is left for one client. ``owner`` is who does this work."""

    def __init__(self, outbox: Outbox, retained: Retained, demand: Demand, work: Work, owner: object) -> None:
        self._outbox: Final = outbox
        self._retained: Final = retained
        self._demand: Final = demand
        self._work: Final = work
        self._owner: Final = owner
        self._due: Final[OrderedDict[object, _Due]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def subscribed(self, subscription: Subscription) -> None:
        """Send a new subscription the retained messages there are."""
        search = self._retained.search(subscription.pattern, dollar=subscription.dollar)
        if not search.empty():
            self._begin(subscription, _Due(subscription, None, search))

    def watched(self, watcher: Watcher) -> None:
        """Tell a watcher today's demand, from the beginning if that is in flight."""
        search = self._demand.search(watcher)
        if not search.empty():
            self._begin(watcher, _Due(None, watcher, search))

    def forget(self, who: object) -> None:
        """Send nothing more to this subscription or watcher."""
        self._due.pop(who, None)

    def clear(self) -> None:
        """Send nothing more."""
        self._due.clear()
        self._outbox.on_relief = None

    def step(self) -> int:
        """Send a few messages, unless the client has to take others first."""
        if self._due and self._outbox.loaded():
            self._outbox.on_relief = self._relieved
            return WAIT
        if not self._due:
            self._outbox.on_relief = None
            return DONE
        who = next(iter(self._due))
        due = self._due[who]
        if not due.found:
            found = due.search.some()
            if found is None:
                del self._due[who]
                return MORE if self._due else DONE
            found.reverse()
            due.found = found
        for _ in range(min(AT_ONCE, len(due.found))):
            self._send(due, due.found.pop())
            if self._outbox.loaded():
                break
        return MORE

    def _begin(self, who: object, due: _Due) -> None:
        self._due[who] = due
        if not self._work.busy(self._owner):
            self._work.start(self._owner, self)

    def _relieved(self) -> None:
        self._work.wake(self._owner)

    def _send(self, due: _Due, name: str) -> None:
        if due.watcher is not None:
            due.watcher.demand(name, self._demand.count(name))
        elif due.subscription is not None:
            message = self._retained.get(name)
            if message is not None:
                due.subscription.deliver_retained(message.again())
