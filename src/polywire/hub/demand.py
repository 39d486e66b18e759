"""How many subscribers each topic has, and who is notified when that changes.

Demand is counted by the exact pattern subscribed to, over all protocols, once per client. A watcher is kept under its
own pattern and is notified of every topic that matches it, under that topic's name.

A topic that has lost its last subscriber is remembered, so that a late watcher can tell "no longer wanted" from "never
wanted". Only so many are: the topics deserted longest ago are forgotten first.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final, final

from mypy_extensions import mypyc_attr

from polywire.hub.trie import Names, Search, Trie
from polywire.hub.work import DONE, MORE, Job, Work

MAX_DESERTED: Final = 10_000
LONGEST_DESERTED: Final = 255
"""Characters of a topic that is remembered: FMQP, where the watchers are, has no longer ones."""

MAX_NODES: Final = 200_000
"""Deserted topics are forgotten while the names take more nodes of a trie than this."""

AT_ONCE: Final = 64
"""Up to this many watchers are notified of a change at once; more are notified in slices."""

TELLING: Final = "demand"
"""The owner of that work."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Watcher:
    """Somebody who wants to know the demand for the topics that meet a pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern: Final = pattern
        self.watching = False  # the hub's

    def demand(self, topic: str, subscribers: int) -> None:
        """The topic now has this many subscribers."""
        raise NotImplementedError


@final
class Demand:
    """Subscribers by topic, and the watchers. ``work`` notifies many watchers in slices.

    Methods that change the demand name the client that caused it, so that one client's changes don't delay the others'.
    Subscribers of other nodes count too; each node has a part of its own in the count.
    """

    def __init__(self, work: Work, *, most_deserted: int = MAX_DESERTED) -> None:
        self._work: Final = work
        self._most_deserted: Final = most_deserted
        self._counts: Final[dict[str, int]] = {}
        self._deserted: Final[OrderedDict[str, None]] = OrderedDict()  # the topic deserted longest ago comes first
        self._names: Final = Names()  # of both
        self._watchers: Final[Trie[Watcher]] = Trie()
        self.untold: Final[OrderedDict[object, OrderedDict[str, None]]] = OrderedDict()
        """Topics that changed and whose watchers don't know it yet, by who has caused that."""
        self._untold_topics: Final[set[str]] = set()
        self._elsewhere: Final[dict[str, dict[str, int]]] = {}  # of these, the clients of each other node
        self.on_watch: Callable[[Watcher, bool], None] | None = None
        """Called with each new watcher, and with False when it is one no more."""

    def __len__(self) -> int:
        """How many watchers there are."""
        return len(self._watchers)

    def nodes(self) -> int:
        """How many nodes of tries it takes."""
        return self._names.nodes() + self._watchers.nodes

    def count(self, topic: str) -> int:
        """How many subscribers a topic has."""
        return self._counts.get(topic, 0)

    def count_here(self, topic: str) -> int:
        """How many of them are clients of this node."""
        count = self.count(topic)
        for part in self._elsewhere.values():
            count -= part.get(topic, 0)
        return count

    def add(self, topic: str, cause: object = None) -> None:
        """One subscriber more."""
        self._change(topic, self._counts.get(topic, 0) + 1, cause)

    def remove(self, topic: str, cause: object = None) -> None:
        """One subscriber less."""
        count = self._counts.get(topic, 0) - 1
        if count >= 0:
            self._change(topic, count, cause)

    def set_part(self, node: str, topic: str, count: int) -> None:
        """Another node's clients have so many subscriptions to a topic."""
        part = self._elsewhere.setdefault(node, {})
        before = part.pop(topic, 0)
        if count > 0:
            part[topic] = count
        elif not part:
            del self._elsewhere[node]
        if count != before:
            self._change(topic, self._counts.get(topic, 0) + count - before, node)

    def end_part(self, node: str, most: int) -> bool:
        """A node has gone, and ``most`` of the topics that its clients have subscribed to. False where none is left."""
        part = self._elsewhere.get(node, {})
        for topic in list(islice(part, most)):
            self.set_part(node, topic, 0)
        return node in self._elsewhere

    def repeat(self, topic: str, cause: object = None) -> None:
        """Tell the watchers of a topic its demand once more."""
        self._tell(topic, self.count(topic), cause)

    def watch(self, watcher: Watcher, *, remind: bool = True) -> None:
        """Notify the watcher of every change from now on, and of the current demand unless the caller does that."""
        watcher.watching = True
        if self._watchers.add(watcher.pattern, watcher) and self.on_watch is not None:
            self.on_watch(watcher, True)  # noqa: FBT003 - whether it is one
        search = self.search(watcher) if remind else None
        while search is not None:
            topics = search.some()
            if topics is None:
                break
            for topic in topics:
                watcher.demand(topic, self.count(topic))

    def search(self, watcher: Watcher) -> Search:
        """The topics whose demand a watcher gets, including remembered ones without subscribers, in steps."""
        return self._names.search(watcher.pattern)

    def unwatch(self, watcher: Watcher) -> bool:
        """Tell the watcher nothing more, and say whether it was one."""
        watcher.watching = False
        if not self._watchers.discard(watcher.pattern, watcher):
            return False
        if self.on_watch is not None:
            self.on_watch(watcher, False)  # noqa: FBT003 - whether it is one
        return True

    def watchers(self, topic: str) -> list[Watcher]:
        """The watchers of this topic."""
        return self._watchers.find(topic)

    def next_untold(self) -> str | None:
        """The topic whose watchers are notified next. The clients that caused changes take turns."""
        if not self.untold:
            return None
        cause, topics = self.untold.popitem(last=False)
        topic = topics.popitem(last=False)[0]
        self._untold_topics.discard(topic)
        if topics:
            self.untold[cause] = topics
        elif self._work.on_idle is not None:
            self._work.on_idle(cause)
        return topic

    def _change(self, topic: str, count: int, cause: object) -> None:
        """A topic has another number of subscribers."""
        if count == 0:
            del self._counts[topic]
            self._desert(topic)
        else:
            if topic not in self._counts:
                if topic in self._deserted:
                    del self._deserted[topic]
                else:
                    self._names.add(topic)
            self._counts[topic] = count
        self._tell(topic, count, cause)

    def _desert(self, topic: str) -> None:
        """Remember a topic without subscribers, and forget the oldest one where there are too many.

        A topic under ``$`` is forgotten at once: only the hub publishes there, so its demand does not matter.
        """
        if len(topic) > LONGEST_DESERTED or topic == "$" or topic.startswith("$/"):
            self._names.discard(topic)
            return
        deserted = self._deserted
        deserted[topic] = None
        while deserted and (len(deserted) > self._most_deserted or self._names.nodes() > MAX_NODES):
            self._names.discard(deserted.popitem(last=False)[0])

    def _tell(self, topic: str, count: int, cause: object) -> None:
        if len(self._watchers) == 0 or topic in self._untold_topics:
            return  # in the second case the watchers will get the count of that time
        watchers = self._watchers.find(topic)
        if len(watchers) <= AT_ONCE:
            for watcher in watchers:
                watcher.demand(topic, count)
            return
        self._untold_topics.add(topic)
        topics = self.untold.get(cause)
        if topics is None:
            topics = OrderedDict()
            self.untold[cause] = topics
        topics[topic] = None
        if not self._work.busy(TELLING):
            self._work.start(TELLING, _Telling(self))


@final
class _Telling(Job):
    """Tells the watchers of changes, one topic after the other."""

    def __init__(self, demand: Demand) -> None:
        self._demand: Final = demand
        self._topic = ""
        self._watchers: list[Watcher] = []

    def step(self) -> int:
        """Notify some watchers."""
        demand = self._demand
        if not self._watchers:
            topic = demand.next_untold()
            if topic is None:
                return DONE
            self._topic = topic
            self._watchers = demand.watchers(topic)
            return MORE
        count = demand.count(self._topic)
        for _ in range(min(AT_ONCE, len(self._watchers))):
            watcher = self._watchers.pop()
            if watcher.watching:
                watcher.demand(self._topic, count)
        return MORE
