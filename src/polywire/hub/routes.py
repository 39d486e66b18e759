"""Who gets what is published where: subscriptions, routes, and the tables that find them quickly.

A ``Route`` is the set of those who get the messages of a channel. Routes are interned: channels with the same
subscribers share one, so runs of publications to them can be forwarded as one. A ``RouteTable`` finds the route of a
channel in a bounded cache; a change of subscriptions takes out only the channels it concerns. A ``RouteView`` is such
a cache by the bytes of topics, for the scanners of cut-through protocols, one for each set of publishers with the
same rights; it catches up with the table's changes when it is next used. Floods of topics that don't return (a device's
number as a level) miss every cache; for them it keeps a few ``Shape`` objects, which know a topic by what it has in
common with one whose route was looked up.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, final

from librt.strings import read_i64_le
from mypy_extensions import i64, mypyc_attr

from polywire.hub.channels import is_literal
from polywire.hub.message import Message
from polywire.hub.outbox import Outbox
from polywire.hub.trie import Node, Trie

CACHED_CHANNELS: Final = 16384
LONGEST_CACHED: Final = 256
DEEPEST_CACHED: Final = 16
"""Channels with longer names, or more levels, are not kept in the cache, which has many places: clients choose them."""

REPLACED: Final = 64
CHANGES_KEPT: Final = 4096
SHAPES: Final = 4
SHAPE_AFTER: Final = 8
"""Misses before another shape is made: making one costs more than a miss."""

FEW_NAMES: Final = 64
LONG_NAME: Final = 60
ANY_LENGTH: Final = (1 << (LONG_NAME + 1)) - 1
"""A shape knows the lengths of up to so many names of a level, as a set of bits; all from ``LONG_NAME`` on are one."""

SLASH: Final = 0x2F
DOLLAR: Final = 0x24

ELSEWHERE: Final = -2
"""The ``protocol`` of a ``Remote``."""

WANTED: Final = "wanted"
"""What a ``Remote`` keeps under each of its patterns."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscription:
    """One connection's subscription to a pattern. Each session subclasses it and implements delivery.

    A message goes to each ``group`` once, by a subscription with the highest ``rank`` there; subscriptions of one
    group and rank are interchangeable. ``protocol`` numbers the protocol whose publications may be written to
    ``outbox`` as they are, -1 for none, ``ELSEWHERE`` for a ``Remote``. ``dollar``: whether a wildcard in front matches
    names that begin with ``$``. ``counted``: whether it counts as demand. ``away``: its client is not connected at the
    moment, so nothing is forwarded to it directly. ``takes_failed_body``: as in ``Message.body_failed``.
    """

    takes_failed_body: bool = False

    def __init__(
        self,
        pattern: str,
        outbox: Outbox,
        group: int,
        *,
        protocol: int = -1,
        rank: int = 0,
        dollar: bool = False,
        counted: bool = True,
        away: bool = False,
    ) -> None:
        self.pattern: Final = pattern
        self.outbox: Final = outbox
        self.group: Final = group
        self.protocol: Final = protocol
        self.rank: Final = rank
        self.dollar: Final = dollar
        self.counted: Final = counted
        self.away: Final = away
        self.alone: Route | None = None  # the table's
        self.since: i64 = 0  # when it began, by the hub's clock, as far as that is known

    def deliver(self, message: Message) -> None:
        """Encode the message for this subscriber and put it into its outbox."""
        raise NotImplementedError

    def deliver_retained(self, message: Message) -> None:
        """As ``deliver``, for a retained message that is delivered because the subscription is new."""
        self.deliver(message)

    def leave(self) -> None:
        """The client is gone, and in a moment so is this subscription."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Remote(Subscription):
    """Another node of a fabric: one subscription to all patterns that its clients have subscribed to.

    It takes publications of every protocol as they came, run by run, and all other messages. What came from another
    node never goes to one.
    """

    takes_failed_body: bool = True

    def __init__(self, outbox: Outbox, group: int) -> None:
        super().__init__("", outbox, group, protocol=ELSEWHERE, counted=False)
        self.patterns: Final[Trie[str]] = Trie()

    def wants(self, channel: str) -> bool:
        """Whether its clients have subscribed to this channel, or might have where it begins with ``$``."""
        return len(self.patterns.match(channel)) > 0

    def meets(self, pattern: str) -> bool:
        """Whether its clients get a message published to a pattern."""
        return len(self.patterns.find(pattern)) > 0

    def forward(self, data: bytes | memoryview, head: tuple[int, int, int, int, int]) -> None:
        """Send it publications of a client as they came.

        ``head`` is the number of their protocol, how many they are, the client, the time, and the offset of the first
        one's row in the journal, -1 where they are not acknowledged to the client.
        """
        raise NotImplementedError


@final
@mypyc_attr(acyclic=True)
class Readers:
    """Who gets the publications of one protocol, as they are (``raw``) or as messages (``cooked``)."""

    def __init__(self, protocol: int, subscriptions: list[Subscription]) -> None:
        self.protocol: Final = protocol
        self.raw: Final = [each.outbox for each in subscriptions if each.protocol == protocol and not each.away]
        self.cooked: Final = [each for each in subscriptions if each.protocol != protocol]


@final
@mypyc_attr(acyclic=True)
class Route:
    """The subscribers of some channels, sorted by how they are reached: those ``here``, and other nodes."""

    def __init__(self, subscriptions: list[Subscription], key: tuple[tuple[int, int], ...]) -> None:
        self.subscriptions: Final = subscriptions
        self.remotes: Final = [each for each in subscriptions if isinstance(each, Remote)]
        self.here: Final = (
            [each for each in subscriptions if each.protocol != ELSEWHERE] if self.remotes else subscriptions
        )
        self.key: Final = key
        self.users: i64 = 0
        self._readers: Final[dict[int, Readers]] = {}
        self._last: Readers | None = None  # those of the protocol asked for last

    def raw(self, protocol: int) -> list[Outbox]:
        """The outboxes that take publications of this protocol as they are."""
        last = self._last
        return last.raw if last is not None and last.protocol == protocol else self._sort(protocol).raw

    def cooked(self, protocol: int) -> list[Subscription]:
        """The subscriptions that need publications of this protocol as messages."""
        last = self._last
        return last.cooked if last is not None and last.protocol == protocol else self._sort(protocol).cooked

    def _sort(self, protocol: int) -> Readers:
        found = self._readers.get(protocol)
        if found is None:
            found = Readers(protocol, self.here)
            self._readers[protocol] = found
        self._last = found
        return found

    def __len__(self) -> int:
        return len(self.subscriptions)


@final
class RouteTable:
    """All subscriptions, and the routes of the channels published to lately.

    The cache is for channels that are published to repeatedly. Once it is full, one new channel in ``REPLACED``
    takes the place of the oldest, so a flood of channels that never return costs a search each and little more.

    ``version`` counts the channels that have left the cache, ``changes`` the subscriptions that came and went.
    ``kept`` says whether the route asked for last is in the cache.

    ``on_interest`` is called with each pattern that the first client subscribes to, and with False where the last one
    has unsubscribed.
    """

    def __init__(self, *, cached: int = CACHED_CHANNELS) -> None:
        self._cached: Final = cached
        self._subscriptions: Final[Trie[Subscription]] = Trie()
        self._routes: Final[OrderedDict[str, Route]] = OrderedDict()
        self._names: Final[Trie[str]] = Trie()
        self._interned: Final[dict[tuple[tuple[int, int], ...], Route]] = {}
        self._uncached: Final[dict[tuple[tuple[int, int], ...], Route]] = {}  # as interned, until something changes
        self._misses: i64 = 0
        self._forgotten: list[str] = []
        self._first_forgotten: i64 = 0
        self.version: i64 = 0
        self.changes: i64 = 0
        self.kept = False
        self.on_interest: Callable[[str, bool], None] | None = None
        self._remotes: Final[list[Remote]] = []

    def __len__(self) -> int:
        return len(self._subscriptions)

    def nodes(self) -> int:
        """How many nodes the subscriptions take in their trie."""
        return self._subscriptions.nodes

    def reach(self) -> int:
        """How many nodes of the subscriptions' trie a single publication visits at most."""
        return self._subscriptions.reach()

    def add(self, subscription: Subscription) -> bool:
        """Take a subscription in, and say whether it is new."""
        pattern = subscription.pattern
        first = self.on_interest is not None and not self._subscriptions.holds(pattern)
        if not self._subscriptions.add(pattern, subscription):
            return False
        self._changed(pattern)
        if first and self.on_interest is not None:
            self.on_interest(pattern, True)  # noqa: FBT003 - it is the answer to a question
        return True

    def discard(self, subscription: Subscription) -> bool:
        """Take a subscription out, and say whether it was there."""
        if not self._subscriptions.discard(subscription.pattern, subscription):
            return False
        subscription.alone = None  # routes are not collected, so the cycle must not outlive the subscription
        pattern = subscription.pattern
        self._changed(pattern)
        if self.on_interest is not None and not self._subscriptions.holds(pattern):
            self.on_interest(pattern, False)  # noqa: FBT003 - it is the answer to a question
        return True

    def patterns(self) -> list[str]:
        """What clients have subscribed to."""
        return self._subscriptions.keys()

    def has(self, pattern: str) -> bool:
        """Whether a client has subscribed to exactly this pattern."""
        return self._subscriptions.holds(pattern)

    def admit(self, remote: Remote) -> None:
        """Another node has joined. It gets nothing until it ``wants`` something."""
        self._remotes.append(remote)

    def expel(self, remote: Remote) -> None:
        """Another node has left."""
        if remote in self._remotes:
            self._remotes.remove(remote)
            remote.alone = None
            self.changes += 1
            self._uncached.clear()
            for channel, route in list(self._routes.items()):
                if remote in route.remotes:
                    self._forget(channel)

    def want(self, remote: Remote, pattern: str) -> None:
        """A node's clients have subscribed to a pattern."""
        if remote.patterns.add(pattern, WANTED):
            self._changed(pattern)

    def unwant(self, remote: Remote, pattern: str) -> None:
        """The last of a node's clients has unsubscribed from a pattern."""
        if remote.patterns.discard(pattern, WANTED):
            self._changed(pattern)

    def route(self, channel: str) -> Route:
        """The route of a literal channel."""
        route = self._routes.get(channel)
        if route is not None:
            self.kept = True
            return route
        found = self._subscriptions.match(channel)
        if len(found) > 1 or (found and channel.startswith("$")):
            found = winners(found, channel)
        for remote in self._remotes:
            if remote.wants(channel):
                found.append(remote)
        if len(channel) > LONGEST_CACHED or channel.count("/") >= DEEPEST_CACHED:
            self.kept = False
            return self._passing(found)
        if len(self._routes) >= self._cached:
            self._misses += 1
            if self._misses % REPLACED != 0:
                self.kept = False
                return self._passing(found)
            self._forget(next(iter(self._routes)))
        self.kept = True
        route = self._intern(found)
        route.users += 1
        self._routes[channel] = route
        self._names.add(channel, channel)
        return route

    def meeting(self, pattern: str) -> list[Subscription]:
        """Those who get a message published to a pattern. It reaches no service channel, and is not cached."""
        found = self._subscriptions.find(pattern)
        best = winners([each for each in found if not each.pattern.startswith("$/")], pattern)
        best.extend([each for each in self._remotes if each.meets(pattern)])
        return best

    def named(self, levels: list[str]) -> list[list[dict[str, Node]]]:
        """As ``Trie.named``, of all subscriptions."""
        known = self._subscriptions.named(levels)
        for remote in self._remotes:
            for mine, theirs in zip(known, remote.patterns.named(levels), strict=True):
                mine.extend(theirs)
        return known

    def view(self, topics: "TopicFilter | None" = None) -> "RouteView":
        """A view for scanners; ``topics`` decides which it holds, by default all."""
        return RouteView(self, TopicFilter() if topics is None else topics)

    def forgotten_since(self, version: i64) -> list[str] | None:
        """The channels whose routes are no longer kept since ``version``; None if that is too long ago."""
        if version < self._first_forgotten:
            return None
        return self._forgotten[version - self._first_forgotten :]

    def _changed(self, pattern: str) -> None:
        self.changes += 1
        self._uncached.clear()
        names = [pattern] if is_literal(pattern) else self._names.find(pattern)
        for name in names:
            if name in self._routes:
                self._forget(name)

    def _forget(self, channel: str) -> None:
        route = self._routes.pop(channel)
        self._names.discard(channel, channel)
        route.users -= 1
        if route.users == 0:
            del self._interned[route.key]
        self.version += 1
        self._forgotten.append(channel)
        if len(self._forgotten) >= 2 * CHANGES_KEPT:
            self._forgotten = self._forgotten[CHANGES_KEPT:]
            self._first_forgotten += CHANGES_KEPT

    def _intern(self, subscriptions: list[Subscription]) -> Route:
        key = _key(subscriptions)
        route = self._interned.get(key)
        if route is None:
            route = Route(subscriptions, key)
            self._interned[key] = route
        return route

    def _passing(self, subscriptions: list[Subscription]) -> Route:
        """A route for one publication whose channel is not kept."""
        if len(subscriptions) == 1:
            alone = subscriptions[0].alone
            if alone is None:
                alone = Route(subscriptions, _key(subscriptions))
                subscriptions[0].alone = alone
            return alone
        key = _key(subscriptions)
        route = self._interned.get(key)
        if route is None:
            route = self._uncached.get(key)
            if route is None:
                route = Route(subscriptions, key)
                if len(self._uncached) >= CHANGES_KEPT:
                    self._uncached.clear()
                self._uncached[key] = route
        return route


def _key(subscriptions: list[Subscription]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted([(each.group, each.rank) for each in subscriptions]))


def winners(subscriptions: list[Subscription], channel: str) -> list[Subscription]:
    """Of each group the one with the highest rank, without those whose wildcard does not match a leading ``$``."""
    if channel.startswith("$"):
        subscriptions = [each for each in subscriptions if each.dollar or not each.pattern.startswith("\0")]
    if len(subscriptions) <= 1:
        return subscriptions
    best: dict[int, Subscription] = {}
    for each in subscriptions:
        other = best.get(each.group)
        if other is None or each.rank > other.rank:
            best[each.group] = each
    return list(best.values())


@mypyc_attr(allow_interpreted_subclasses=True)
class TopicFilter:
    """Decides which topics scanners may forward without a look at the single frame.

    Topics that begin with neither a slash nor a ``$``, have the same number of levels and differ only in levels that
    none of the ``tries`` names are decided alike.
    """

    def takes(self, channel: str) -> bool:  # noqa: ARG002 - for those who choose
        """Whether publications to this channel may be forwarded as they are."""
        return True

    def tries(self) -> list[Trie[str]]:
        """What ``takes`` looks a channel up in."""
        return []


@final
@mypyc_attr(acyclic=True)
class Shape:
    """What topics with one route have in common: ``parts`` are the bytes between levels that may be any but ``named``.

    It holds as long as nobody subscribes or unsubscribes.
    """

    def __init__(self, route: Route, parts: list[bytes], named: list[list[dict[str, Node]]]) -> None:
        self.route: Final = route
        self._parts: Final = parts
        self._named: Final = named
        self._lengths: Final = [_lengths(each) for each in named]

    def fits(self, topic: bytes) -> bool:
        """Whether the route of this topic is the shape's."""
        end: i64 = len(topic)
        if end == 0 or topic[0] == SLASH or topic[0] == DOLLAR:
            return False
        pos: i64 = 0
        free: i64 = len(self._named)
        index: i64 = 0
        while True:
            part = self._parts[index]
            length: i64 = len(part)
            if length > end - pos or not _same(topic, pos, part, length):
                return False
            pos += length
            if index == free:
                return pos == end
            start = pos
            while pos < end and topic[pos] != SLASH:
                pos += 1
            lengths: i64 = self._lengths[index]
            if (lengths >> min(pos - start, LONG_NAME)) & 1 != 0:
                level = topic[start:pos].decode()
                for names in self._named[index]:
                    if level in names:
                        return False
            index += 1


def _lengths(named: list[dict[str, Node]]) -> i64:
    """The lengths in bytes that these names have."""
    found: i64 = 0
    for names in named:
        if len(names) > FEW_NAMES:
            return ANY_LENGTH
        for name in names:
            length: i64 = len(name.encode())
            found |= i64(1) << min(length, LONG_NAME)
    return found


def _same(topic: bytes, pos: i64, part: bytes, length: i64) -> bool:
    """Whether ``part`` is what the topic has at ``pos``."""
    i: i64 = 0
    while i + 8 <= length:
        if read_i64_le(topic, pos + i) != read_i64_le(part, i):
            return False
        i += 8
    while i < length:
        if topic[pos + i] != part[i]:
            return False
        i += 1
    return True


@final
class RouteView:
    """Routes by the bytes of topics, for the scanner of one protocol and publishers with the same rights."""

    def __init__(self, table: RouteTable, topics: TopicFilter) -> None:
        self._table: Final = table
        self._topics: Final = topics
        self._version: i64 = table.version
        self._shapes: Final[list[Shape]] = []
        self._shapes_of: i64 = 0  # the table's changes when the shapes were made
        self._fitted: i64 = 0
        self._missed: i64 = 0
        self.cache: dict[bytes, object] = {}

    def current(self) -> dict[bytes, object]:
        """The cache, after catching up with the table."""
        if self._version != self._table.version:
            forgotten = self._table.forgotten_since(self._version)
            self._version = self._table.version
            if forgotten is None or len(forgotten) > len(self.cache):
                self.cache.clear()
            else:
                for name in forgotten:
                    self.cache.pop(name.encode(), None)
        return self.cache

    def resolve(self, topic: bytes) -> object | None:
        """The route of a topic that is not in the cache; None where its frames must be looked at one by one."""
        table = self._table
        if self._shapes_of != table.changes:
            self._shapes.clear()
            self._shapes_of = table.changes
        known = False
        for shape in self._shapes:
            if shape.fits(topic):
                self._fitted += 1
                if self._fitted % REPLACED != 0:
                    return shape.route
                known = True  # now and then a topic gets its chance to be cached
                break
        channel = topic.decode()
        if not self._topics.takes(channel):
            return None
        route = table.route(channel)
        if table.kept:
            if len(self.cache) >= CACHED_CHANNELS:
                self.cache.clear()
            self.cache[topic] = route
            # Finding it may have pushed another channel out of the table, which concerns no route that is cached here.
        elif not known:
            self._missed += 1
            if self._missed % SHAPE_AFTER == 0:
                self._learn(channel, route)
        return route

    def _learn(self, channel: str, route: Route) -> None:
        """Make a shape of a topic, in place of the oldest if there are enough."""
        if channel.startswith(("/", "$")):
            return
        levels = channel.split("/")
        known = self._table.named(levels)
        for trie in self._topics.tries():
            for mine, theirs in zip(known, trie.named(levels), strict=True):
                mine.extend(theirs)
        parts: list[bytes] = []
        named: list[list[dict[str, Node]]] = []
        part = ""
        for depth, level in enumerate(levels):
            if depth > 0:
                part += "/"
            names = known[depth]
            if any(level in each for each in names):
                part += level
            else:
                parts.append(part.encode())
                named.append(names)
                part = ""
        parts.append(part.encode())
        if len(self._shapes) >= SHAPES:
            self._shapes.pop(0)
        self._shapes.append(Shape(route, parts, named))
