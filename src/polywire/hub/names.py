"""Names of channels, found by the patterns that meet them, all at once or a few at a time while they change.

Also what names cost: clients choose them, so they count as memory.
"""

from bisect import bisect_right
from typing import Final, final

from polywire.hub.channels import meets
from polywire.hub.trie import Trie

ENTRY: Final = 256
LEVEL: Final = 64
"""About how many bytes an entry takes besides its name, and its share of a node of a trie."""

NODE: Final = 256
"""About how many bytes a node takes that is not shared by many names."""

FEW: Final = 512
"""Names that are found at once; more of them are looked for in the order of their age."""

LOOKS: Final = 64
"""Names that one step of a search looks at."""


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
