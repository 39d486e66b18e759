"""The options of the format ``polywire``, read once and checked, whichever way Spark hands them over."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.kinds import KINDS
from polywire.pipeline.errors import OptionError
from polywire.pipeline.rpc import RPC
from polywire.registry import names

SPARKS: Final = frozenset({"path", "checkpointlocation", "queryname", "paths"})
"""Options that Spark itself adds."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

COLUMNS: Final = tuple(PLAIN_SCHEMA.names)

ROWS_PER_PARTITION: Final = 500_000
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

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "SourceOptions":
        """The options as Spark gives them: names in any case, values as text."""
        given = known(options, SOURCE_OPTIONS)
        journal = given.get("journal") or given.get("path")
        if not journal:
            raise OptionError("journal", "is missing: a directory, a URI, a glob over several, or http://hub:7100")
        start = given.get("startingoffset", EARLIEST)
        starting_time = moment("startingTime", given.get("startingtime"))
        if start not in {EARLIEST, LATEST} and not start.isdigit():
            if starting_time is not None:
                raise OptionError("startingOffset", "is a time, but startingTime is set too: use one of them")
            start, starting_time = EARLIEST, moment("startingOffset", start)
        return cls(
            journals=listed(journal),
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
