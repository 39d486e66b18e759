"""How many subscribers each topic has, and who wants to hear when that changes.

Demand is counted by the exact pattern subscribed to, over all protocols, once per client. A watcher is kept under a
pattern of its own and hears of every topic that meets it, under that topic's name.

A topic that has lost its last subscriber is remembered, so that a late watcher can tell "no longer wanted" from "never
wanted". Only so many are: the topics deserted longest ago are forgotten first.
"""

from collections import OrderedDict
from typing import Final, final

from mypy_extensions import mypyc_attr

from polywire.hub.trie import Trie

MAX_DESERTED: Final = 10_000
LONGEST_DESERTED: Final = 255
"""Characters of a topic that is remembered: FMQP, where the watchers are, has no longer ones."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Watcher:
    """Somebody who wants to know the demand for the topics that meet a pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern: Final = pattern

    def demand(self, topic: str, subscribers: int) -> None:
        """The topic now has this many subscribers."""
        raise NotImplementedError


@final
class Demand:
    """Subscribers by topic, and the watchers."""

    def __init__(self, *, most_deserted: int = MAX_DESERTED) -> None:
        self._most_deserted: Final = most_deserted
        self._counts: Final[dict[str, int]] = {}
        self._deserted: Final[OrderedDict[str, None]] = OrderedDict()  # the topic deserted longest ago comes first
        self._names: Final[Trie[str]] = Trie()  # of both
        self._watchers: Final[Trie[Watcher]] = Trie()

    def count(self, topic: str) -> int:
        """How many subscribers a topic has."""
        return self._counts.get(topic, 0)

    def add(self, topic: str) -> None:
        """One subscriber more."""
        count = self._counts.get(topic, 0) + 1
        self._counts[topic] = count
        if count == 1:
            if topic in self._deserted:
                del self._deserted[topic]
            else:
                self._names.add(topic, topic)
        self._tell(topic, count)

    def remove(self, topic: str) -> None:
        """One subscriber less."""
        count = self._counts.get(topic, 0) - 1
        if count < 0:
            return
        if count == 0:
            del self._counts[topic]
            self._desert(topic)
        else:
            self._counts[topic] = count
        self._tell(topic, count)

    def repeat(self, topic: str) -> None:
        """Tell the watchers of a topic its demand once more."""
        self._tell(topic, self.count(topic))

    def watch(self, watcher: Watcher) -> None:
        """Tell the watcher of today's demand, and from now on of every change."""
        self._watchers.add(watcher.pattern, watcher)
        self.remind(watcher)

    def remind(self, watcher: Watcher) -> None:
        """Tell the watcher of today's demand once more, remembered deserted topics included."""
        for topic in self._names.find(watcher.pattern):
            watcher.demand(topic, self.count(topic))

    def unwatch(self, watcher: Watcher) -> bool:
        """Tell the watcher nothing more, and say whether it was one."""
        return self._watchers.discard(watcher.pattern, watcher)

    def _desert(self, topic: str) -> None:
        """Remember a topic without subscribers, and forget the oldest one where there are too many.

        A topic under ``$`` is forgotten at once: only the hub publishes there, so nobody asks whether it is wanted.
        """
        if len(topic) > LONGEST_DESERTED or topic == "$" or topic.startswith("$/"):
            self._names.discard(topic, topic)
            return
        self._deserted[topic] = None
        if len(self._deserted) > self._most_deserted:
            oldest = self._deserted.popitem(last=False)[0]
            self._names.discard(oldest, oldest)

    def _tell(self, topic: str, count: int) -> None:
        if len(self._watchers) == 0:
            return
        for watcher in self._watchers.find(topic):
            watcher.demand(topic, count)
