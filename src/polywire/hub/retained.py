"""The newest retained message of each channel, for later subscribers.

MQTT calls them retained, FMQP cached; it is one store. A message without a body clears its channel. A message kept
under a pattern (FMQP publishes to those too) stays under that pattern and is found by every name or pattern that
matches it.

Who has just subscribed is sent them by a ``Replay``, in steps, as fast as it reads. What is published meanwhile reaches
it at once; a retained message that is replaced is not sent any more, so nothing old comes after something new.
"""

from collections import OrderedDict
from typing import Final, final

from polywire.hub.demand import Demand, Watcher
from polywire.hub.message import Message
from polywire.hub.outbox import Outbox
from polywire.hub.routes import Subscription
from polywire.hub.trie import Names, Search, name_cost
from polywire.hub.work import DONE, MORE, WAIT, Job, Work

MAX_MESSAGES: Final = 1_000_000
MAX_OCTETS: Final = 128 * 1024 * 1024
OWN: Final = "$/"
"""How the channels begin that the hub alone publishes to; what it keeps there takes no client's place."""


@final
class Retained:
    """Kept messages by channel, at most ``limit`` of them, which take at most ``most_octets`` together.

    ``size`` is about what they take: the messages, and what it costs to keep them under their names.
    """

    def __init__(self, *, limit: int = MAX_MESSAGES, most_octets: int = MAX_OCTETS) -> None:
        self.limit = limit
        self.most_octets = most_octets
        self.size = 0
        self._own = 0  # how many are the hub's
        self._messages: Final[dict[str, Message]] = {}
        self._names: Final = Names()

    def __len__(self) -> int:
        return len(self._messages)

    def has_room(self, message: Message) -> bool:
        """Whether the message can be kept; one that clears its channel, or is the hub's own, always can."""
        if (not message.body and not message.attachments) or message.channel.startswith(OWN):
            return True
        old = self._messages.get(message.channel)
        size = self.size + _cost(message) - (0 if old is None else _cost(old))
        if size > self.most_octets and size > self.size:
            return False
        return old is not None or len(self._messages) - self._own < self.limit

    def keep(self, message: Message) -> bool:
        """Keep the message, or with an empty body clear its channel. False where there is no room for it."""
        channel = message.channel
        old = self._messages.get(channel)
        if not message.body and not message.attachments:
            if old is not None:
                del self._messages[channel]
                self._own -= channel.startswith(OWN)
                self._names.discard(channel)
                self.size -= _cost(old)
            return True
        if not self.has_room(message):
            return False
        if old is None:
            self._own += channel.startswith(OWN)
        else:
            self.size -= _cost(old)
        self._names.add(channel)
        self._messages[channel] = message.again()  # what is encoded for today's subscribers is not kept
        self.size += _cost(message)
        return True

    def get(self, channel: str) -> Message | None:
        """The message kept under exactly this channel."""
        return self._messages.get(channel)

    def search(self, pattern: str, *, dollar: bool = False) -> Search:
        """The channels of the messages a new subscription to the pattern is to get, in steps, oldest first.

        A message that is replaced meanwhile is not found: the subscription gets the new one anyway.
        """
        return self._names.search(pattern, dollar=dollar)

    def find(self, pattern: str, *, dollar: bool = False) -> list[Message]:
        """All messages a new subscription to the pattern is to get, oldest first."""
        found: list[Message] = []
        search = self.search(pattern, dollar=dollar)
        while True:
            names = search.some()
            if names is None:
                return found
            found.extend([self._messages[name] for name in names])


def _cost(message: Message) -> int:
    """About how many bytes of clients a kept message takes."""
    return 0 if message.channel.startswith(OWN) else message.size() + name_cost(message.channel)


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
