"""The journals a query reads, and how far it is in each.

They are found by path, URI, glob or a hub's address, opened once and kept up to date. A stream's place is, for each
journal, the offset it reads next.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from pyarrow import fs

from polywire import journal
from polywire.journal.reader import Journal
from polywire.pipeline.errors import OptionError
from polywire.pipeline.files import open_location

Place = dict[str, int]
"""The next offset of each journal, by the journal's name; names in order, because Spark compares places as text."""

TICK: Final = "$tick"
"""In a place, beside the journals: the time of the last tick (see ``ticks``)."""


def placed(offsets: Mapping[str, int]) -> Place:
    """The one way to write a place."""
    return {name: offsets[name] for name in sorted(offsets)}


def next_place(start: Place, safe: Mapping[str, int], first: Mapping[str, int], rows: int | None) -> Place:
    """Where a step that begins at ``start`` ends: at what is ``safe``, with at most ``rows`` rows altogether.

    A journal that ``start`` does not know yet begins at its ``first`` offset. A limit is shared out evenly: what one
    journal leaves of its share the others get.
    """
    begin = {name: start.get(name, first[name]) for name in safe}
    waiting = {name: max(safe[name] - begin[name], 0) for name in safe}
    taken = waiting if rows is None else _shared(waiting, rows)
    return placed({**start, **{name: begin[name] + taken[name] for name in safe}})


def _shared(waiting: Mapping[str, int], rows: int) -> dict[str, int]:
    taken: dict[str, int] = {}
    left = rows
    # The ones with little waiting come first, so that what they leave is there for those behind.
    order = sorted(waiting, key=lambda name: (waiting[name], name))
    for position, name in enumerate(order):
        share = left // (len(order) - position)
        taken[name] = min(waiting[name], share)
        left -= taken[name]
    return taken


def from_spark(offset: Mapping[str, Any]) -> Place:
    """A place as Spark gives it back from its checkpoint."""
    return placed({str(name): int(value) for name, value in offset.items()})


ONLY: Final = "journal"
"""The name of a journal that is the only one: it may be moved without its readers losing their place."""

_MAGIC: Final = re.compile(r"[*?[]")


def locate(locations: tuple[str, ...]) -> dict[str, str]:
    """The journals there are now: name to location.

    A name stays the same as long as the query is written the same way: of what a glob finds it is the part from the
    first wildcard on.
    """
    if len(locations) == 1 and not is_glob(locations[0]):
        return {ONLY: locations[0]}
    found: dict[str, str] = {}
    for location in locations:
        if not is_glob(location):
            found[location] = location
            continue
        for name, place in expand(location):
            found[name if len(locations) == 1 else place] = place
    return found


def is_glob(location: str) -> bool:
    """Whether a location is a glob for several. A ``?`` in an http address does not count."""
    return not is_remote(location) and _MAGIC.search(location) is not None


def is_remote(location: str) -> bool:
    """Whether a hub is asked rather than a storage."""
    return location.startswith(("http://", "https://"))


def expand(pattern: str) -> Iterator[tuple[str, str]]:
    """The directories a glob finds, in order: the part from the first wildcard on, and the location."""
    begin = _MAGIC.search(pattern)
    fixed = pattern[: pattern.rfind("/", 0, begin.start() if begin else 0) + 1]
    files, root = open_location(fixed or ".")
    levels = pattern[len(fixed) :].strip("/").split("/")
    for path in sorted(_matching(files, root.rstrip("/"), levels)):
        name = str(PurePosixPath(path).relative_to(root))
        yield name, fixed + name


def _matching(files: fs.FileSystem, folder: str, levels: list[str]) -> Iterator[str]:
    if not levels:
        yield folder
        return
    for info in files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        name = PurePosixPath(info.path).name
        if info.type == fs.FileType.Directory and fnmatch.fnmatchcase(name, levels[0]):
            yield from _matching(files, info.path, levels[1:])


class Journals:
    """The opened journals of a query, on the driver."""

    def __init__(self, locations: tuple[str, ...], token: str | None) -> None:
        self._locations = locations
        self._token = token
        self._opened: dict[str, tuple[str, Journal]] = {}

    def location(self, name: str) -> str:
        """Where a journal is."""
        return self._opened[name][0]

    def current(self) -> dict[str, Journal]:
        """All journals by name, as they are now."""
        found = locate(self._locations)
        for name, location in found.items():
            known = self._opened.get(name)
            if known is not None and known[0] == location:
                known[1].refresh()
            else:
                self._opened[name] = (location, journal.open(location, token=self._token))
        if not self._opened:
            raise OptionError("journal", f"no such directory: {', '.join(self._locations)}")
        # One that a glob no longer finds may come back; until then its offset is kept, and it has no new rows.
        return {name: opened for name, (_, opened) in self._opened.items() if name in found}
