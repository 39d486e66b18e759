"""Values stored under patterns, found by every name or pattern that matches theirs.

One structure serves both ways: subscriptions kept under patterns and found by a published name, and names (of
retained messages, of cached routes) found by a subscription's pattern. Two keys meet when their levels do, position
by position; ``ANY`` meets any level, a last ``REST`` any number of them.

A name that meets many patterns visits many nodes, and clients choose the patterns. So every node knows its ``reach``:
how many nodes below it a single name can visit at most. It is kept up to date along the path of each change, so
that the caller that adds a pattern can check ``Trie.reach`` and undo it.

Nothing here recurses, so a deep key costs no stack, and the nodes have no way back up, so they need no collector.

``Names`` are found by the patterns that meet them, all at once or a few at a time while they change. Clients choose
names, so they count as memory: ``name_cost``.
"""

from bisect import bisect_right
from typing import Final, Generic, TypeVar, final

from mypy_extensions import i64, mypyc_attr

from polywire.hub.channels import ANY, REST, meets

WIDE: Final = 64
"""From so many children on, a node's reaches are tallied: looking through all of them for the largest would be slow."""

ENTRY: Final = 256
LEVEL: Final = 64
"""About how many bytes an entry takes besides its name, and its share of a node of a trie."""

NODE: Final = 256
"""About how many bytes a node takes that is not shared by many names."""

FEW: Final = 512
"""Names that are found at once; more of them are looked for in the order of their age."""

LOOKS: Final = 64
"""Names that one step of a search looks at."""

LEVELS_SHARED: Final = 1024
"""Names of levels of which a trie keeps one copy for many nodes."""

T = TypeVar("T")


@final
@mypyc_attr(acyclic=True)
class Node:
    """One level: what is kept here, and the levels below.

    Most nodes of a large trie hold one item, and many have one child with a name; these have places of their own, and
    only more of them need a dict.
    """

    def __init__(self) -> None:
        self.name: str | None = None  # of the only child
        self.only: Node | None = None
        self.children: dict[str, Node] | None = None  # those with a name, if there are several
        self.any: Node | None = None
        self.rest: Node | None = None
        self.item: object | None = None  # a dict of them, if there are several
        self.reach: i64 = 1

    def empty(self) -> bool:
        """Whether the node holds nothing and leads nowhere."""
        return self.only is None and not self.children and self.any is None and self.rest is None and self.item is None

    def child(self, level: str) -> "Node | None":
        """The node below for this level."""
        if level == ANY:
            return self.any
        if level == REST:
            return self.rest
        return self.named(level)

    def named(self, level: str) -> "Node | None":
        """The node below with this name."""
        if self.only is not None:
            return self.only if self.name == level else None
        children = self.children
        return None if children is None else children.get(level)

    def below(self) -> "list[Node]":
        """The nodes below with a name."""
        if self.only is not None:
            return [self.only]
        return [] if self.children is None else list(self.children.values())

    def by_name(self) -> "dict[str, Node] | None":
        """The same, by name; None where there are none."""
        if self.only is not None and self.name is not None:
            return {self.name: self.only}
        return self.children

    def width(self) -> int:
        """How many they are."""
        if self.only is not None:
            return 1
        return 0 if self.children is None else len(self.children)

    def make(self, level: str) -> "Node":
        """A new node below for this level."""
        node = Node()
        if level == ANY:
            self.any = node
        elif level == REST:
            self.rest = node
        elif self.children is not None:
            self.children[level] = node
        elif self.only is not None and self.name is not None:
            self.children = {self.name: self.only, level: node}
            self.name = None
            self.only = None
        else:
            self.name = level
            self.only = node
        return node

    def drop(self, level: str) -> None:
        """Forget the node below for this level."""
        if level == ANY:
            self.any = None
        elif level == REST:
            self.rest = None
        elif self.only is not None:
            self.name = None
            self.only = None
        elif self.children is not None:
            del self.children[level]
            if not self.children:
                self.children = None

    def add(self, item: object) -> bool:
        """Keep one more item, and say whether it is new."""
        kept = self.item
        if kept is None:
            self.item = item
        elif isinstance(kept, dict):
            if item in kept:
                return False
            kept[item] = None
        elif kept == item:
            return False
        else:
            self.item = {kept: None, item: None}
        return True

    def discard(self, item: object) -> bool:
        """Keep one item less, and say whether it was there."""
        kept = self.item
        if isinstance(kept, dict):
            if item not in kept:
                return False
            del kept[item]
            if not kept:
                self.item = None
            return True
        if kept is None or kept != item:
            return False
        self.item = None
        return True

    def collect(self, found: list[object]) -> None:
        """Append what is kept here."""
        kept = self.item
        if isinstance(kept, dict):
            found.extend(kept)
        elif kept is not None:
            found.append(kept)

    def widest(self) -> i64:
        """The largest reach of the children with a name."""
        most: i64 = 0
        for child in self.below():
            most = max(most, child.reach)
        return most


@final
class Trie(Generic[T]):
    """Items under patterns, each under a key at most once. Items are hashable and not None."""

    def __init__(self) -> None:
        self._root: Final = Node()
        self._size = 0
        self.nodes = 0
        self._levels: Final[dict[str, str]] = {}  # names of only children, which often are the same below many nodes
        self._tallies: Final[dict[Node, dict[int, int]]] = {}  # of wide nodes: how many children have which reach

    def __len__(self) -> int:
        return self._size

    def reach(self) -> int:
        """How many nodes a single name visits at most."""
        return self._root.reach

    def add(self, key: str, item: T) -> bool:
        """Keep ``item`` under ``key``, and say whether it is new there."""
        levels = key.split("/")
        path = [self._root]
        made: i64 = 0
        for level in levels:
            node = path[-1]
            child = node.child(level)
            if child is None:
                child = node.make(self._shared(level) if node.width() == 0 else level)
                made += 1
            path.append(child)
        if not path[-1].add(item):
            return False
        self._size += 1
        if made > 0:
            self.nodes += made
            self._grown(path, levels, i64(len(levels)) - made)
        return True

    def discard(self, key: str, item: T) -> bool:
        """Take ``item`` from under ``key``, and say whether it was there. Nodes that hold nothing any more go too."""
        levels = key.split("/")
        path = [self._root]
        for level in levels:
            child = path[-1].child(level)
            if child is None:
                return False
            path.append(child)
        if not path[-1].discard(item):
            return False
        self._size -= 1
        depth: i64 = len(levels)
        while depth > 0 and path[depth].empty():
            depth -= 1
            path[depth].drop(levels[depth])
        if depth < i64(len(levels)):
            self.nodes -= i64(len(levels)) - depth
            self._shrunk(path, levels, depth)
        return True

    def holds(self, key: str) -> bool:
        """Whether anything is kept under exactly this key."""
        node: Node | None = self._root
        for level in key.split("/"):
            if node is None:
                return False
            node = node.child(level)
        return node is not None and node.item is not None

    def keys(self) -> list[str]:
        """The keys under which something is kept."""
        found: list[str] = []
        nodes: list[tuple[str, Node]] = [("", self._root)]
        while nodes:
            above, node = nodes.pop()
            if node.item is not None:
                found.append(above[:-1])
            if node.any is not None:
                nodes.append((f"{above}{ANY}/", node.any))
            if node.rest is not None:
                nodes.append((f"{above}{REST}/", node.rest))
            below = node.by_name()
            if below is not None:
                nodes.extend([(f"{above}{level}/", child) for level, child in below.items()])
        return found

    def match(self, name: str) -> list[T]:
        """All items whose pattern matches the name, which has no wildcards: as ``find``, and faster."""
        found: list[object] = []
        node = self._root
        others: list[Node] | None = None  # further nodes the name has reached
        for level in name.split("/"):
            if others is not None:
                others = _below([node, *others], level, found)
                if not others:
                    return found  # type: ignore[return-value] # as in find
                node = others.pop()
                if not others:
                    others = None
                continue
            if node.rest is not None:
                node.rest.collect(found)
            child: Node | None = None
            if node.only is not None:
                if node.name == level:
                    child = node.only
            elif node.children is not None:
                child = node.children.get(level)
            wild = node.any
            if child is None:
                if wild is None:
                    return found  # type: ignore[return-value] # as in find
                node = wild
            else:
                node = child
                if wild is not None:
                    others = [wild]
        node.collect(found)
        if node.rest is not None:
            node.rest.collect(found)
        if others is not None:
            self._collect(others, found, deep=False)
        return found  # type: ignore[return-value] # as in find

    def named(self, levels: list[str]) -> list[list[dict[str, Node]]]:
        """For each level of a name without wildcards: the levels that have a name where ``match`` looks for it.

        Two names of as many levels match the same where they differ only in levels that are not among these.
        """
        nodes = [self._root]
        passed: list[list[dict[str, Node]]] = []
        for level in levels:
            some = [node.by_name() for node in nodes]
            passed.append([each for each in some if each is not None])
            nodes = _below(nodes, level, [])
        return passed

    def find(self, key: str) -> list[T]:
        """All items whose key meets this one, whichever of the two has the wildcards."""
        found: list[object] = []
        levels = key.split("/")
        deep = levels[-1] == REST
        if deep:
            levels.pop()
        nodes = [self._root]
        for level in levels:
            nodes = _below(nodes, level, found)
            if not nodes:
                break
        self._collect(nodes, found, deep=deep)
        return found  # type: ignore[return-value] # nodes hold what was added; a native node can't be generic

    def few(self, key: str, most: int) -> list[T] | None:
        """As ``find``, as long as that looks at no more than ``most`` nodes at a time; None where it would."""
        found: list[object] = []
        levels = key.split("/")
        deep = levels[-1] == REST
        if deep:
            levels.pop()
        nodes = [self._root]
        for level in levels:
            if level == ANY and _width(nodes, most) > most:
                return None
            nodes = _below(nodes, level, found)
            if len(nodes) > most or len(found) > most:
                return None
            if not nodes:
                break
        looked = 0
        while nodes:
            looked += 1
            node = nodes.pop()
            node.collect(found)
            if node.rest is not None:
                node.rest.collect(found)
            if deep:
                if node.any is not None:
                    nodes.append(node.any)
                if node.width() > most:
                    return None
                nodes.extend(node.below())
            if looked + len(nodes) > most or len(found) > most:
                return None
        return found  # type: ignore[return-value] # as in find

    def _shared(self, level: str) -> str:
        """The name of a level, as one object for as many nodes as possible."""
        known = self._levels.get(level)
        if known is not None:
            return known
        if len(self._levels) < LEVELS_SHARED:
            self._levels[level] = level
        return level

    def _collect(self, nodes: list[Node], found: list[object], *, deep: bool) -> None:
        """The items of these nodes, and of all below them if ``deep``, else of a ``REST`` right below them."""
        while nodes:
            node = nodes.pop()
            node.collect(found)
            if node.rest is not None:
                node.rest.collect(found)
            if deep:
                if node.any is not None:
                    nodes.append(node.any)
                nodes.extend(node.below())

    def _grown(self, path: list[Node], levels: list[str], at: i64) -> None:
        """There are new nodes below ``path[at]``: bring the reach of all above them up to date."""
        depth: i64 = i64(len(levels)) - 1
        before: i64 = 0  # the reach of the node below, 0 where it is new
        while depth >= 0:
            node = path[depth]
            child = path[depth + 1]
            reach = node.reach
            if levels[depth] == ANY:
                node.reach = reach + child.reach - before
            elif levels[depth] == REST:
                node.reach = reach + 1
            else:
                wild: i64 = 0 if node.any is None else node.any.reach
                rest: i64 = 0 if node.rest is None else 1
                most = reach - 1 - wild - rest
                if child.reach > most:
                    node.reach = reach + child.reach - most
                self._tally(node, before, child.reach)
            if depth <= at and node.reach == reach:
                return
            before = reach if depth <= at else 0
            depth -= 1

    def _shrunk(self, path: list[Node], levels: list[str], at: i64) -> None:
        """Nodes below ``path[at]`` are gone: bring the reach of all above them up to date."""
        depth = at
        before = path[at + 1].reach
        after: i64 = 0
        while depth >= 0:
            node = path[depth]
            reach = node.reach
            if levels[depth] == ANY:
                node.reach = reach + after - before
            elif levels[depth] == REST:
                node.reach = reach - 1
            else:
                wild: i64 = 0 if node.any is None else node.any.reach
                rest: i64 = 0 if node.rest is None else 1
                tally = self._tally(node, before, after)
                if before == reach - 1 - wild - rest:
                    most = node.widest() if tally is None else i64(max(tally))
                    node.reach = 1 + wild + rest + most
            if node.reach == reach:
                return
            before = reach
            after = node.reach
            depth -= 1

    def _tally(self, node: Node, before: i64, after: i64) -> dict[int, int] | None:
        """Note that a child with a name has another reach now, 0 for none. The tally, where the node is wide."""
        children = node.children
        wide = children is not None and len(children) >= WIDE
        tally = self._tallies.get(node)
        if tally is None:
            if not wide or children is None:
                return None
            tally = {}
            for child in children.values():
                tally[child.reach] = tally.get(child.reach, 0) + 1
            self._tallies[node] = tally
            return tally
        if not wide:
            del self._tallies[node]
            return None
        if after > 0:
            tally[after] = tally.get(after, 0) + 1
        if before > 0:
            left = tally.get(before, 0) - 1
            if left > 0:
                tally[before] = left
            else:
                tally.pop(before, None)
        return tally


def _width(nodes: list[Node], most: int) -> int:
    """How many nodes with a name are below these; more than ``most`` are not counted on."""
    width = 0
    for node in nodes:
        width += node.width()
        if width > most:
            break
    return width


def _below(nodes: list[Node], level: str, found: list[object]) -> list[Node]:
    """The nodes below these that meet a level; what is kept under ``REST`` right below them is found."""
    below: list[Node] = []
    for node in nodes:
        if node.rest is not None:
            node.rest.collect(found)
        if level == ANY:
            below.extend(node.below())
        else:
            child = node.named(level)
            if child is not None:
                below.append(child)
        if node.any is not None:
            below.append(node.any)
    return below


def name_cost(name: str) -> int:
    """About how many bytes something takes that is kept under a name: in a table, and level by level in a trie."""
    width = 1 if name.isascii() else 4
    return ENTRY + 2 * width * len(name) + LEVEL * (name.count("/") + 1)


@final
class Names:
    """A set of names, in the order in which they were last added."""

    def __init__(self) -> None:
        self._trie: Final[Trie[str]] = Trie()
        self._numbers: Final[dict[str, int]] = {}
        self._names: Final[dict[int, str]] = {}  # by number, in ascending order
        self._order: list[int] = []  # the numbers, and some that are gone
        self.last = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def nodes(self) -> int:
        """How many nodes the names take in their trie."""
        return self._trie.nodes

    def add(self, name: str) -> None:
        """Add a name, or make it the newest."""
        number = self._numbers.get(name)
        if number is None:
            self._trie.add(name, name)
        else:
            del self._names[number]
        self.last += 1
        self._numbers[name] = self.last
        self._names[self.last] = name
        self._order.append(self.last)
        self._tidy()

    def discard(self, name: str) -> None:
        """Remove a name, if it is there."""
        number = self._numbers.pop(name, None)
        if number is not None:
            del self._names[number]
            self._trie.discard(name, name)
            self._tidy()

    def search(self, pattern: str, *, dollar: bool = True) -> "Search":
        """Look for the names there are now. ``dollar``: as in ``Subscription``."""
        return Search(self, pattern, dollar=dollar)

    def few(self, pattern: str) -> list[int] | None:
        """The numbers of the names that meet a pattern, the newest first; None where that could be many."""
        found = self._trie.few(pattern, FEW)
        if found is None:
            return None
        numbers = [self._numbers[name] for name in found]
        numbers.sort(reverse=True)
        return numbers

    def name(self, number: int) -> str | None:
        """The name that has this number."""
        return self._names.get(number)

    def after(self, number: int) -> list[int]:
        """Some of the numbers above this one, in ascending order; not all of them are in use."""
        start = bisect_right(self._order, number)
        return self._order[start : start + LOOKS]

    def _tidy(self) -> None:
        if len(self._order) > 2 * len(self._numbers) + LOOKS:
            self._order = list(self._names)


@final
class Search:
    """Finds the names that were there when it began, oldest first. One removed, or added again, is not found any more.

    However many names there are, and however long it takes, it holds a few of them at most.
    """

    def __init__(self, names: Names, pattern: str, *, dollar: bool) -> None:
        self._names: Final = names
        self._pattern: Final = pattern
        self._hidden: Final = not dollar and pattern.startswith("\0")  # names that begin with "$"
        self._last: Final = names.last
        self._at = 0
        self._few: Final = names.few(pattern)

    def empty(self) -> bool:
        """Whether it is known at once that there is nothing to be found."""
        return self._few is not None and not self._few

    def some(self) -> list[str] | None:
        """The next names, perhaps none; None when all were found."""
        names = self._names
        found: list[str] = []
        few = self._few
        if few is not None:
            if not few:
                return None
            while few and len(found) < LOOKS:
                name = names.name(few.pop())
                if name is not None and not (self._hidden and name.startswith("$")):
                    found.append(name)
            return found
        if self._at >= self._last:
            return None
        numbers = names.after(self._at)
        if not numbers:
            return None
        for number in numbers:
            if number > self._last:
                self._at = self._last
                return found
            self._at = number
            name = names.name(number)
            if name is not None and not (self._hidden and name.startswith("$")) and meets(self._pattern, name):
                found.append(name)
        return found
