"""How many subscribers each topic has, and who wants to hear when that changes.

Demand is counted by the exact pattern subscribed to, over all protocols, once per client. A watcher is kept under a
pattern of its own and hears of every topic that meets it, under that topic's name.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from polywire.hub.trie import Trie


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

    def __init__(self) -> None:
        self._counts: Final[dict[str, int]] = {}
        self._names: Final[Trie[str]] = Trie()
        self._watchers: Final[Trie[Watcher]] = Trie()

    def count(self, topic: str) -> int:
        """How many subscribers a topic has."""
        return self._counts.get(topic, 0)

    def add(self, topic: str) -> None:
        """One subscriber more."""
        count = self._counts.get(topic, 0) + 1
        self._counts[topic] = count
        if count == 1:
            self._names.add(topic, topic)
        self._tell(topic, count)

    def remove(self, topic: str) -> None:
        """One subscriber less."""
        count = self._counts.get(topic, 0) - 1
        if count < 0:
            return
        if count == 0:
            del self._counts[topic]
            self._names.discard(topic, topic)
        else:
            self._counts[topic] = count
        self._tell(topic, count)

    def watch(self, watcher: Watcher) -> None:
        """Tell the watcher of today's demand, and from now on of every change."""
        self._watchers.add(watcher.pattern, watcher)
        self.remind(watcher)

    def remind(self, watcher: Watcher) -> None:
        """Tell the watcher of today's demand once more. Topics nobody subscribes to are not mentioned."""
        for topic in self._names.find(watcher.pattern):
            watcher.demand(topic, self._counts[topic])

    def unwatch(self, watcher: Watcher) -> bool:
        """Tell the watcher nothing more, and say whether it was one."""
        return self._watchers.discard(watcher.pattern, watcher)

    def _tell(self, topic: str, count: int) -> None:
        if len(self._watchers) == 0:
            return
        for watcher in self._watchers.find(topic):
            watcher.demand(topic, count)
