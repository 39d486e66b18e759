"""What a query reads: the options of the format ``polywire``, and the journals they name.

Options are read once and checked, whichever way Spark hands them over. Journals are found by path, URI, glob or a hub's
address, opened once and kept up to date. A stream's place is, for each journal, the offset it reads next.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Final

from pyarrow import fs

from polywire import journal
from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.kinds import KINDS
from polywire.journal.reader import Journal
from polywire.pipeline.errors import OptionError
from polywire.pipeline.files import open_location
from polywire.pipeline.rpc import RPC
from polywire.registry import names

SPARKS: Final = frozenset({"path", "checkpointlocation", "queryname", "paths"})
"""Options that Spark itself adds."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

COLUMNS: Final = tuple(PLAIN_SCHEMA.names)

ROWS_PER_PARTITION: Final = 1_000_000
ROWS_PER_TRIGGER: Final = 4_000_000
"""About what two cores turn into tables in half a minute: a query that lags far behind still shows progress."""

SOURCE_OPTIONS: Final = (
    "journal",
    "token",
    "columns",
    "channels",
    "kinds",
    "protocols",
    "startingOffset",
    "startingTime",
    "endingTime",
    "failOnDataLoss",
    "onCorrupt",
    "reader",
    "maxRowsPerTrigger",
    "rowsPerPartition",
    "ticks",
    "splits",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read: the options of ``spark.read`` and ``spark.readStream``."""

    journals: tuple[str, ...]
    token: str | None
    columns: tuple[str, ...]
    channels: tuple[str, ...]
    kinds: tuple[str, ...]
    protocols: tuple[str, ...]
    starting_offset: str
    starting_time: datetime | None
    ending_time: datetime | None
    fail_on_data_loss: bool
    on_corrupt: str
    reader: str | None
    rows_per_trigger: int
    rows_per_partition: int
    ticks: float | None
    splits: int
    """How many tasks a step is cut into at least, if these read the journal themselves; else 0."""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "SourceOptions":
        """The options as Spark gives them: names in any case, values as text."""
        given = known(options, SOURCE_OPTIONS)
        place = given.get("journal") or given.get("path")
        if not place:
            raise OptionError("journal", "is missing: a directory, a URI, a glob over several, or http://hub:7100")
        start = given.get("startingoffset", EARLIEST)
        starting_time = moment("startingTime", given.get("startingtime"))
        if start not in {EARLIEST, LATEST} and not start.isdigit():
            if starting_time is not None:
                raise OptionError("startingOffset", "is a time, but startingTime is set too: use one of them")
            start, starting_time = EARLIEST, moment("startingOffset", start)
        return cls(
            journals=listed(place),
            token=given.get("token"),
            columns=chosen("columns", given.get("columns"), COLUMNS) or COLUMNS,
            channels=listed(given.get("channels", "")),
            kinds=chosen("kinds", given.get("kinds"), (*KINDS, RPC)),
            protocols=chosen("protocols", given.get("protocols"), names()),
            starting_offset=start,
            starting_time=starting_time,
            ending_time=moment("endingTime", given.get("endingtime")),
            fail_on_data_loss=flag("failOnDataLoss", given.get("failondataloss", "true")),
            on_corrupt=one_of("onCorrupt", given.get("oncorrupt", "gap"), ("gap", "raise", "skip")),
            reader=given.get("reader"),
            rows_per_trigger=number("maxRowsPerTrigger", given.get("maxrowspertrigger"), ROWS_PER_TRIGGER),
            rows_per_partition=number("rowsPerPartition", given.get("rowsperpartition"), ROWS_PER_PARTITION),
            ticks=seconds("ticks", given.get("ticks")),
            splits=number("splits", given["splits"], 0) if "splits" in given else 0,
        )


def known(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options under lower-case names; one that does not exist is an error that names the nearest right one."""
    right = {name.lower(): name for name in names}
    given = {key.lower(): value for key, value in options.items()}
    for key in given:
        if key not in right and key not in SPARKS:
            near = difflib.get_close_matches(key, right, n=1)
            hint = f"; did you mean {right[near[0]]!r}?" if near else f"; there is {', '.join(names)}"
            raise OptionError(key, f"is not known{hint}")
    return given


def listed(text: str) -> tuple[str, ...]:
    """The values of a list with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def chosen(option: str, text: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The values of a list, each one of those allowed, in the order of those."""
    values = listed(text or "")
    for value in values:
        one_of(option, value, allowed)
    return tuple(value for value in allowed if value in values)


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value, if it is one of those allowed."""
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(allowed)}"
        raise OptionError(option, f"{value!r} is not one of them; {hint}")
    return value


def flag(option: str, text: str) -> bool:
    """True or false."""
    return one_of(option, text.strip().lower(), ("true", "false")) == "true"


def number(option: str, text: str | None, default: int) -> int:
    """A whole number above zero; the default where there is none."""
    if text is None:
        return default
    digits = text.strip().replace("_", "")
    if not digits.isdigit() or int(digits) == 0:
        raise OptionError(option, f"{text!r} is not a positive whole number")
    return int(digits)


def seconds(option: str, text: str | None) -> float | None:
    """Seconds above zero, or None where there are none."""
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise OptionError(option, f"{text!r} is not a positive number of seconds")
    return found


def moment(option: str, text: str | None) -> datetime | None:
    """A time as ISO 8601 writes it; without a zone it is UTC."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(option, f"{text!r} is not a time; write 2026-01-31T12:00:00Z") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


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
        self._nodes: dict[str, str] = {}

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
                self._nodes.pop(name, None)
        if len(found) > 1:
            self._check_nodes(found)
        if not self._opened:
            raise OptionError("journal", f"no such directory: {', '.join(self._locations)}")
        # One that a glob no longer finds may come back; until then its offset is kept, and it has no new rows.
        return {name: opened for name, (_, opened) in self._opened.items() if name in found}

    def _check_nodes(self, found: Mapping[str, str]) -> None:
        """Whether each journal is of a node of its own: rows of several are told apart by node and offset."""
        owners: dict[str, str] = {}
        for name, location in found.items():
            node = self._nodes.get(name) or _node_of(self._opened[name][1])
            if node is None:
                continue  # nothing was written there yet
            self._nodes[name] = node
            other = owners.setdefault(node, location)
            if other != location:
                raise OptionError(
                    "journal",
                    f"{other} and {location} are both of the node {node!r}: name a journal once, without copies, and "
                    "give each hub a name of its own (journal.node)",
                )


def _node_of(opened: Journal) -> str | None:
    """The node that a journal's first row is of."""
    first = opened.first_offset
    for batch in opened.scan(["node"], from_offset=first, to_offset=first + 1, on_corrupt="skip"):
        return str(batch.column("node")[0].as_py())
    return None
