"""What a pipeline is to do: which journal, which tables, into which lake, how often, in which streaming queries.

Tables share a query, so that the journal is read once for all of them. A query's checkpoint says how far all its tables
are, so the tables of a query are fixed once it has run. A table that is asked for later gets a query of its own, which
begins where the journal does. A table that is made of a stateful one shares that one's query, and is written whenever
that one is.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from polywire.pipeline.errors import OptionError, PipelineError
from polywire.pipeline.status import Notes
from polywire.pipeline.table import Table

DEFAULT_TRIGGER: Final = "1 second"
"""A step costs about half a second of CPU regardless of its size; new rows wait for the next one."""

_TRIGGER: Final = re.compile(r"\s*(\d+)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?)\s*")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


RETRIES: Final = 8
"""With the pauses between them about two minutes: a hub that starts again is back by then."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run of the pipeline. ``tables`` are all there are by name; ``wanted`` those to write, all where it is empty.

    ``retries`` is how often a query that fails for a passing reason is started again before it gets something done.
    """

    journal: str
    lake: str
    tables: Mapping[str, Table]
    wanted: tuple[str, ...] = ()
    trigger: str = DEFAULT_TRIGGER
    once: bool = False
    token: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """More options for the source."""
    retries: int = RETRIES

    def source_options(self, columns: tuple[str, ...], kinds: tuple[str, ...]) -> dict[str, str]:
        """The options to read the journal with."""
        options = {"journal": self.journal, "columns": ",".join(columns)}
        if kinds:
            options["kinds"] = ",".join(kinds)
        if self.token is not None:
            options["token"] = self.token
        return {**options, **self.options}


def trigger_interval(text: str) -> str:
    """An interval as Spark writes it: of ``5 s``, ``500ms``, ``1 minute``."""
    found = _TRIGGER.fullmatch(text)
    if found is None:
        raise OptionError("trigger", f"{text!r} is not an interval; write 1s, 500ms or '2 minutes'")
    unit = found[2][0] if found[2] != "ms" and not found[2].startswith("milli") else "ms"
    return f"{found[1]} {_UNITS[unit]}"


NOTE: Final = "groups"


@dataclass(frozen=True, slots=True)
class Group:
    """A streaming query: its name, and the tables it writes, each before those made of it."""

    query: str
    tables: tuple[Table, ...]

    @property
    def stateful(self) -> Table | None:
        """The table the query is built around, where it is not one of plain rows."""
        return self.tables[0] if self.tables[0].stateful else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the journal that are needed."""
        needed = {name for table in self.tables if table.after is None for name in table.columns}
        return tuple(sorted(needed))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows that are needed; none where all are."""
        own = [table.kinds for table in self.tables if table.after is None]
        return tuple(sorted({kind for kinds in own for kind in kinds})) if all(own) else ()


def closure(wanted: Iterable[str], tables: Mapping[str, Table]) -> tuple[Table, ...]:
    """These tables, those they are made of, and those made of them, in the order of ``tables``."""
    needed: set[str] = set()
    for name in wanted:
        table = tables.get(name)
        if table is None:
            raise PipelineError(f"there is no table {name!r}; there is {', '.join(sorted(tables))}")
        if table.after is not None and table.after not in tables:
            raise PipelineError(f"table {name!r} depends on {table.after!r}, which does not exist")
        needed |= {name, table.after or name}
    return tuple(table for name, table in tables.items() if name in needed or table.after in needed)


def arrange(wanted: Iterable[Table], tables: Mapping[str, Table], notes: Notes) -> list[Group]:
    """The queries that write these tables: those that ran before, and new ones for what is new."""
    chosen = list(wanted)
    known = {str(query): list(names) for query, names in (notes.read(NOTE) or {}).items()}
    placed = {name for names in known.values() for name in names}
    fresh = [table for table in chosen if table.name not in placed]
    for table in fresh:
        if table.after in placed:
            raise PipelineError(
                f"table {table.name!r} depends on {table.after!r}, which this lake was built without: use another lake"
            )
    plain = [table for table in fresh if not table.stateful and not _made_of_stateful(table, tables)]
    if plain:
        _place(known, "rows", sorted(plain, key=lambda table: table.after is not None))
    for table in fresh:
        if table.stateful:
            _place(known, table.name, [table, *(other for other in fresh if other.after == table.name)])
    if fresh:
        notes.write(NOTE, dict(known))
    names = {table.name for table in chosen}
    return [
        Group(query, tuple(tables[name] for name in held if name in tables))
        for query, held in known.items()
        if names & set(held)
    ]


def _made_of_stateful(table: Table, tables: Mapping[str, Table]) -> bool:
    return table.after is not None and tables[table.after].stateful


def _place(known: dict[str, list[str]], query: str, tables: list[Table]) -> None:
    name, number = query, 1
    while name in known:
        number += 1
        name = f"{query}-{number}"
    known[name] = [table.name for table in tables]
