"""Things kept under patterns, found by every name or pattern that meets theirs.

One structure serves both ways: subscriptions kept under patterns and found by a published name, and names (of
retained messages, of cached routes) found by a subscription's pattern. Two keys meet when their levels do, position
by position; ``ANY`` meets any level, a last ``REST`` any number of them.

Nothing here recurses, so a deep key costs no stack, and the nodes have no way back up, so they need no collector.
"""

from typing import Final, Generic, TypeVar, final

from mypy_extensions import mypyc_attr

from polywire.hub.channels import ANY, REST

T = TypeVar("T")


@final
@mypyc_attr(acyclic=True)
class Node:
    """One level: what is kept here, and the levels below.

    Most nodes of a large trie hold one item; it has a place of its own, and only more of them need a dict.
    """

    def __init__(self) -> None:
        self.children: dict[str, Node] | None = None
        self.item: object | None = None
        self.items: dict[object, None] | None = None

    def empty(self) -> bool:
        """Whether the node holds nothing and leads nowhere."""
        return not self.children and self.item is None and self.items is None

    def add(self, item: object) -> bool:
        """Keep one more item, and say whether it is new."""
        if self.items is not None:
            if item in self.items:
                return False
            self.items[item] = None
        elif self.item is None:
            self.item = item
        elif self.item == item:
            return False
        else:
            self.items = {self.item: None, item: None}
            self.item = None
        return True

    def discard(self, item: object) -> bool:
        """Keep one item less, and say whether it was there."""
        if self.items is not None:
            if item not in self.items:
                return False
            del self.items[item]
            if not self.items:
                self.items = None
            return True
        if self.item is None or self.item != item:
            return False
        self.item = None
        return True

    def collect(self, found: list[object]) -> None:
        """Append what is kept here."""
        if self.item is not None:
            found.append(self.item)
        elif self.items is not None:
            found.extend(self.items)


@final
class Trie(Generic[T]):
    """Items under patterns, each under a key at most once. Items are hashable and not None."""

    def __init__(self) -> None:
        self._root: Final = Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, key: str, item: T) -> bool:
        """Keep ``item`` under ``key``, and say whether it is new there."""
        node = self._root
        for level in key.split("/"):
            children = node.children
            if children is None:
                children = {}
                node.children = children
            child = children.get(level)
            if child is None:
                child = Node()
                children[level] = child
            node = child
        if not node.add(item):
            return False
        self._size += 1
        return True

    def discard(self, key: str, item: T) -> bool:
        """Take ``item`` from under ``key``, and say whether it was there. Nodes that hold nothing any more go too."""
        levels = key.split("/")
        path = [self._root]
        for level in levels:
            children = path[-1].children
            child = children.get(level) if children is not None else None
            if child is None:
                return False
            path.append(child)
        if not path[-1].discard(item):
            return False
        self._size -= 1
        depth = len(levels)
        while depth > 0 and path[depth].empty():
            depth -= 1
            children = path[depth].children
            if children is not None:
                del children[levels[depth]]
        return True

    def find(self, key: str) -> list[T]:
        """All items whose key meets this one, whichever of the two has the wildcards."""
        found: list[object] = []
        levels = key.split("/")
        deep = levels[-1] == REST
        if deep:
            levels.pop()
        nodes = [self._root]
        for level in levels:
            below: list[Node] = []
            for node in nodes:
                children = node.children
                if children is None:
                    continue
                rest = children.get(REST)
                if rest is not None:
                    rest.collect(found)
                if level == ANY:
                    for name, child in children.items():
                        if name != REST:
                            below.append(child)
                else:
                    child_named = children.get(level)
                    if child_named is not None:
                        below.append(child_named)
                    child_any = children.get(ANY)
                    if child_any is not None:
                        below.append(child_any)
            nodes = below
            if not nodes:
                break
        self._collect(nodes, found, deep=deep)
        return found  # type: ignore[return-value] # nodes hold what was added; a native node can't be generic

    def _collect(self, nodes: list[Node], found: list[object], *, deep: bool) -> None:
        """The items of these nodes, and of all below them if ``deep``, else of a ``REST`` right below them."""
        while nodes:
            node = nodes.pop()
            node.collect(found)
            children = node.children
            if children is None:
                continue
            if deep:
                nodes.extend(children.values())
            else:
                rest = children.get(REST)
                if rest is not None:
                    rest.collect(found)
