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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, overload

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
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

from polywire.pipeline.columns import ALL_COLUMNS, Merge, Part, Rows
from polywire.pipeline.errors import PipelineError

Build = Callable[[DataFrame], DataFrame]
"""A pure function from rows to rows."""

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


def arrow_of(columns: StructType) -> pa.Schema:
    """A schema as Arrow has it."""
    return to_arrow_schema(columns, timezone="UTC")


@dataclass(frozen=True, slots=True)
class Kernel:
    """How Arrow computes a table, wherever its rows are.

    ``part`` makes the table's rows, or its part where it is an aggregate, of any rows of the journal. They have the
    columns of ``schema``. ``merge`` makes one row of all rows of parts with the same key, and may be used again on
    what it made; ``finish`` makes the table people see of merged parts. With ``matching`` the parts are those of
    calls, to be matched (``matches``): how long a call may take, and how late a row may come, in microseconds.
    """

    part: Part
    schema: StructType
    columns: tuple[str, ...] = ALL_COLUMNS
    merge: Merge | None = None
    finish: Merge | None = None
    matching: tuple[int, int] | None = None

    @property
    def arrow(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return arrow_of(self.schema)


HELD: Final = 500_000
"""Rows of parts that are held before they are merged."""


class HeldParts:
    """The parts of an aggregate, merged as they come."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._held: list[pa.Table] = []
        self._rows = 0

    def add(self, part: pa.RecordBatch | pa.Table) -> None:
        """Add the part of some more rows."""
        if part.num_rows:
            self._held.append(part if isinstance(part, pa.Table) else pa.Table.from_batches([part]))
            self._rows += part.num_rows
            if self._rows > HELD:
                self._held = [self.merged()]
                self._rows = 0

    def merged(self) -> pa.Table:
        """All of them as one."""
        whole = pa.concat_tables(self._held) if self._held else self._kernel.arrow.empty_table()
        return whole if self._kernel.merge is None else self._kernel.merge(whole)


class _Mapped:
    """For ``mapInArrow``: what a kernel makes of a task's rows."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        if self._kernel.merge is None:
            yield from (self._kernel.part(Rows(batch)) for batch in batches)
            return
        parts = HeldParts(self._kernel)
        for batch in batches:
            parts.add(self._kernel.part(Rows(batch)))
        yield from parts.merged().to_batches()


class _Merged:
    """For ``mapInArrow`` on all parts together: what they come to; where ``schema`` is given, finished."""

    def __init__(self, kernel: Kernel, schema: StructType | None) -> None:
        self._kernel = kernel
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All parts there are."""
        parts = HeldParts(self._kernel)
        for batch in batches:
            parts.add(batch)
        found = parts.merged()
        if self._schema is not None and self._kernel.finish is not None:
            found = self._kernel.finish(found)
        yield from found.to_batches()


def rows_of(kernel: Kernel) -> Build:
    """A kernel as a function of DataFrames, for rows that come from elsewhere."""

    def build(rows: DataFrame) -> DataFrame:
        return rows.select(*kernel.columns).mapInArrow(_Mapped(kernel), kernel.schema)

    return build


def parts_of(kernel: Kernel, finished: StructType, *, daily: bool = False) -> "Parts":
    """The same for an aggregate with these columns."""

    def merge(parts: DataFrame) -> DataFrame:
        return parts.coalesce(1).mapInArrow(_Merged(kernel, None), kernel.schema)

    def finish(parts: DataFrame) -> DataFrame:
        return parts.coalesce(1).mapInArrow(_Merged(kernel, finished), finished)

    return Parts(rows_of(kernel), merge, finish, daily)


@dataclass(frozen=True, slots=True)
class Parts:
    """How an aggregate is put together.

    ``build`` makes the part of any rows. ``merge`` makes one row of all rows with the same key, and may be used again
    on what it made. ``finish`` makes the table people see of merged parts; it is ``daily`` if a day's rows come of that
    day's parts alone. Every part has a column ``day``: that of the rows it was made of.
    """

    build: Build
    merge: Build
    finish: Build
    daily: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the pipeline. ``schema`` is its documented form; None if only the function knows it.

    ``columns`` and ``kinds`` are those of the journal it needs (no kinds: all), ``watermark`` describes how late a
    row may come, ``varied`` are columns whose values hardly ever repeat. ``build_again`` builds a table that depends on
    what time it is of rows at rest, for which nothing else says that.
    """

    name: str
    build: Build
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
    kernel: Kernel | None = None

    def rows(self, batch: DataFrame) -> DataFrame:
        """What a micro-batch adds to the table: finished rows, or its part."""
        return self.build(batch) if self.parts is None else self.parts.build(batch)

    def rows_at_rest(self, batch: DataFrame, now: float) -> DataFrame:
        """The same of rows at rest, with all the table's ``kinds``; ``now`` is in seconds since 1970."""
        return self.rows(batch) if self.build_again is None else self.build_again(batch, now)

    def finished(self, written: DataFrame) -> DataFrame:
        """The table, of everything that was added to it."""
        return written if self.parts is None else self.parts.finish(self.parts.merge(written))


def of_parts(parts: Parts) -> Build:
    """The function that makes a whole aggregate at once, of all rows there are."""

    def build(rows: DataFrame) -> DataFrame:
        return parts.finish(parts.merge(parts.build(rows)))

    return build


@overload
def table(function: Build, /) -> Table: ...


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
    merge: Build | None = None,
    finish: Build | None = None,
) -> Callable[[Build], Table]: ...


def table(
    function: Build | None = None,
    /,
    *,
    name: str | None = None,
    partition_by: tuple[str, ...] = (),
    columns: tuple[str, ...] = ALL_COLUMNS,
    kinds: tuple[str, ...] = (),
    watermark: str | None = None,
    stateful: bool = False,
    after: str | None = None,
    merge: Build | None = None,
    finish: Build | None = None,
) -> Table | Callable[[Build], Table]:
    """Make a table of a function from the journal's rows to its own, for ``polywire pipeline run my_tables.py``.

    The table is called as the function unless ``name`` is given, and described by its docstring. With ``merge`` it is
    an aggregate: the function makes the part of a micro-batch, ``merge`` one row of the rows with the same key.
    """

    def made(function: Build) -> Table:
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
