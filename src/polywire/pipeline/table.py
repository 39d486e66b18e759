"""What a table is: a pure function of the journal's rows, and how its rows of many micro-batches become one table.

There are three sorts of tables:

- Each row of the journal gives a row or none (``messages``, ``faults``): what a micro-batch gives is added to the rest.
- An aggregate (``traffic``, ``sessions``, ``demand``, ``latency``) is written in *parts*. The part of a micro-batch is
  what its rows alone come to; parts are merged when the table is read. A row counts whenever it comes, however late,
  and nothing has to be kept in Spark's state.
- A ``stateful`` table (``calls``) keeps what is still open between micro-batches, and is a streaming query of its own.

A table may be made ``after`` another one: of that table's rows instead of the journal's.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, overload

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from polywire.journal.format import PLAIN_SCHEMA
from polywire.pipeline.errors import PipelineError

Rows = Callable[[DataFrame], DataFrame]
"""A pure function from rows to rows."""

ALL_COLUMNS: Final = tuple(PLAIN_SCHEMA.names)
LIGHT_COLUMNS: Final = tuple(name for name in ALL_COLUMNS if name not in {"body", "attachments"})
"""All columns except the large ones."""

_SIMPLE: Final = (BinaryType, BooleanType, DateType, DoubleType, IntegerType, LongType, StringType, TimestampType)
_TYPES: Final = {
    kind.simpleString(): kind
    for kind in (*(kind() for kind in _SIMPLE), ArrayType(BinaryType()), MapType(StringType(), StringType()))
}


def schema(columns: str) -> StructType:
    """A schema from ``"name type, name type"``. ``StructType.fromDDL`` would need a running Spark."""
    found = StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        found.add(name, _TYPES[kind])
    return found


MESSAGE_KINDS: Final = ("publish", "enqueue", "request", "reply", "error")
"""Rows that are a message: to a topic, into a queue, or a part of a call."""

TICK: Final = "tick"
"""Never stored: with it the source says that a node has come to this time though it wrote nothing."""

NO_PROTOCOL: Final = "none"
"""In the place of a protocol where the hub itself spoke: directories are named after protocols, and need a name."""


def is_message() -> Column:
    """Whether a row is a message."""
    return sf.col("kind").isin(*MESSAGE_KINDS)


def has_flag(flag: int) -> Column:
    """Whether a bit of the flags is set."""
    return sf.col("flags").bitwiseAND(flag) != 0


def protocol() -> Column:
    """The row's protocol."""
    return sf.coalesce(sf.col("protocol"), sf.lit(NO_PROTOCOL))


def is_start() -> Column:
    """Whether the row marks a start of the hub: clients that were connected before are not any more."""
    return (sf.col("kind") == "session") & sf.col("client").isNull() & sf.col("headers").contains('"start"')


MICROSECONDS: Final = 1_000_000
MINUTE: Final = 60 * MICROSECONDS
DAY: Final = 86_400 * MICROSECONDS


def micros(ts: Column) -> Column:
    """Microseconds since 1970."""
    return sf.unix_micros(ts)


def moment(at: Column) -> Column:
    """The way back: a timestamp."""
    return sf.timestamp_micros(at)


def day_of(ts: Column) -> Column:
    """The day a row belongs to."""
    return sf.date_from_unix_date(sf.floor(micros(ts) / sf.lit(DAY)).cast("int"))


def minute_of(ts: Column) -> Column:
    """The beginning of the minute."""
    at = micros(ts)
    return moment(at - sf.pmod(at, sf.lit(MINUTE)))


_STRICT: Final = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


def headers(text: str) -> Column:
    """The headers in a column of JSON texts: null where there are none, or where they are not one JSON object.

    Spark takes more for JSON than JSON is, and reads no further than the first value. So the text is read as the only
    item of a list, and as the only member of an object: what follows an object and is no part of it shows in either.
    """
    column = sf.col(text)
    listed = sf.from_json(sf.concat(sf.lit("["), column, sf.lit("]")), "array<map<string,string>>", _STRICT)
    member = sf.from_json(sf.concat(sf.lit('{"h":'), column, sf.lit("}")), "h map<string,string>", _STRICT)
    alone = (sf.size(listed) == 1) & member["h"].isNotNull()
    # Most rows have none, and parsing nothing takes its time too.
    return sf.when(column.isNotNull(), sf.when(alone, sf.get(listed, sf.lit(0))))


@dataclass(frozen=True, slots=True)
class Parts:
    """How an aggregate is put together.

    ``build`` makes the part of any rows. ``merge`` makes one row of all rows with the same key, and may be used again
    on what it made. ``finish`` makes the table people see of merged parts; it is ``daily`` if a day's rows come of that
    day's parts alone. Every part has a column ``day``: that of the rows it was made of.
    """

    build: Rows
    merge: Rows
    finish: Rows
    daily: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the pipeline. ``schema`` is its documented form; None if only the function knows it.

    ``columns`` and ``kinds`` are those of the journal it needs (no kinds: all), ``watermark`` describes how late a
    row may come, ``varied`` are columns whose values hardly ever repeat. ``build_again`` builds a table that depends on
    what time it is of rows at rest, for which nothing else says that.
    """

    name: str
    build: Rows
    description: str
    schema: StructType | None = None
    partition_by: tuple[str, ...] = ()
    columns: tuple[str, ...] = ALL_COLUMNS
    kinds: tuple[str, ...] = ()
    watermark: str | None = None
    output_mode: str = "append"
    stateful: bool = False
    after: str | None = None
    parts: Parts | None = None
    keys: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    build_again: Callable[[DataFrame, float], DataFrame] | None = None

    def rows(self, batch: DataFrame) -> DataFrame:
        """What a micro-batch adds to the table: finished rows, or its part."""
        return self.build(batch) if self.parts is None else self.parts.build(batch)

    def rows_at_rest(self, batch: DataFrame, now: float) -> DataFrame:
        """The same of rows at rest, with all the table's ``kinds``; ``now`` is in seconds since 1970."""
        return self.rows(batch) if self.build_again is None else self.build_again(batch, now)

    def finished(self, written: DataFrame) -> DataFrame:
        """The table, of everything that was added to it."""
        return written if self.parts is None else self.parts.finish(self.parts.merge(written))


def of_parts(parts: Parts) -> Rows:
    """The function that makes a whole aggregate at once, of all rows there are."""

    def build(rows: DataFrame) -> DataFrame:
        return parts.finish(parts.merge(parts.build(rows)))

    return build


@overload
def table(function: Rows, /) -> Table: ...


@overload
def table(
    *,
    name: str | None = None,
    partition_by: tuple[str, ...] = (),
    columns: tuple[str, ...] = ALL_COLUMNS,
    kinds: tuple[str, ...] = (),
    watermark: str | None = None,
    stateful: bool = False,
    after: str | None = None,
    merge: Rows | None = None,
    finish: Rows | None = None,
) -> Callable[[Rows], Table]: ...


def table(
    function: Rows | None = None,
    /,
    *,
    name: str | None = None,
    partition_by: tuple[str, ...] = (),
    columns: tuple[str, ...] = ALL_COLUMNS,
    kinds: tuple[str, ...] = (),
    watermark: str | None = None,
    stateful: bool = False,
    after: str | None = None,
    merge: Rows | None = None,
    finish: Rows | None = None,
) -> Table | Callable[[Rows], Table]:
    """Make a table of a function from the journal's rows to its own, for ``polywire pipeline run my_tables.py``.

    The table is called as the function unless ``name`` is given, and described by its docstring. With ``merge`` it is
    an aggregate: the function makes the part of a micro-batch, ``merge`` one row of the rows with the same key.
    """

    def made(function: Rows) -> Table:
        called = name or function.__name__
        description = (function.__doc__ or "").strip().partition("\n")[0]
        parts = None
        if merge is not None:
            parts = Parts(function, merge, finish or _unchanged)
        return Table(
            called,
            function if parts is None else of_parts(parts),
            description,
            partition_by=partition_by,
            columns=columns,
            kinds=kinds,
            watermark=watermark,
            stateful=stateful,
            after=after,
            parts=parts,
        )

    return made if function is None else made(function)


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


def load_tables(path: Path, known: Mapping[str, Table]) -> dict[str, Table]:
    """The tables a file defines, in its order. A name that is ``known`` already is an error."""
    from pyspark import cloudpickle  # noqa: PLC0415 - needs a second, and is an extra

    if not path.is_file():
        raise PipelineError(f"{path}: there is no such file")
    name = f"polywire_tables_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PipelineError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    # Workers have no such file: functions of it that run there are sent along.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    found = {value.name: value for value in vars(module).values() if isinstance(value, Table)}
    own = {table: value for table, value in found.items() if known.get(table) is not value}
    for table in own:
        if table in known:
            raise PipelineError(f"{path}: there is already a table {table!r}; choose another name")
    if not own:
        raise PipelineError(f"{path} has no table: decorate a function from DataFrame to DataFrame with @table")
    return own
