"""Questions to the tables: SQL, answered by DuckDB without Spark or Java; what was done to a table.

DuckDB reads the files that Delta's log lists, so it sees one version of each table to the end. Aggregates are read as
they were last merged; ``Answer.notes`` says when that was, if newer parts wait. Spark answers as well, and merges them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from polywire.pipeline.delta import LOG, MERGED, NOTED, PARTS, WIDENED, LakeTable
from polywire.pipeline.errors import LakeError, PipelineError
from polywire.pipeline.files import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polywire.pipeline.lake import Lake

RESERVED: Final = frozenset({"offset", "left"})
"""Columns of the tables whose names are words of SQL as well."""

_TYPES: Final = {"date": "DATE", "integer": "INTEGER", "long": "BIGINT", "boolean": "BOOLEAN", "double": "DOUBLE"}
"""Types of columns that are directories, as DuckDB calls them; others are texts."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question, and what is to be known about it."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Past:
    """Which version of the tables is meant; the latest, where both are None."""

    version: int | None = None
    at: datetime | None = None

    def __bool__(self) -> bool:
        return self.version is not None or self.at is not None


NOW: Final = Past()


def tables_in(storage: Storage) -> list[str]:
    """The finished tables of a lake."""
    files, root = storage.open()
    found = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
    names = [info.base_name for info in found if info.type == fs.FileType.Directory and info.base_name[0] not in "._"]
    logs = files.get_file_info([f"{root}/{name}/{LOG}" for name in names])
    return sorted(name for name, log in zip(names, logs, strict=True) if log.type == fs.FileType.Directory)


class Questions:
    """A connection to DuckDB with the tables of a lake in it, each from the moment it is first asked for."""

    def __init__(self, lake: str | Storage, options: Mapping[str, str] | None = None, past: Past = NOW) -> None:
        self.storage = Storage.parse(lake, options)
        self.names = tables_in(self.storage)
        if not self.names:
            raise PipelineError(
                f"{self.storage}: there are no tables yet; create them with 'polywire pipeline run --once'"
            )
        self.notes: list[str] = []
        self._past = past
        self._known: set[str] = set()
        settings = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        self._connection = duckdb.connect(config=settings)  # type: ignore[arg-type] # they are true or false
        self._connection.execute("SET TimeZone = 'UTC'")

    def ask(self, sql: str, limit: int | None = None) -> Answer:
        """The answer: up to ``limit`` rows."""
        asked = [name for name in self.names if re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE)]
        if self._past.version is not None and len(asked) != 1:
            raise PipelineError("--version is the version of one table: ask one, or use --at with a time")
        for name in asked or self.names:
            self._make_known(name)
        try:
            done = self._connection.execute(sql)
            columns = [str(column[0]) for column in done.description or ()]
            rows = done.fetchall() if limit is None else done.fetchmany(limit)
        except duckdb.Error as error:
            raise PipelineError(f"{_reason(error)}{self._hint(error)} (tables: {', '.join(self.names)})") from None
        return Answer(columns, rows, list(self.notes))

    def _hint(self, error: Exception) -> str:
        """What to do about a column whose name is a word of SQL as well."""
        found = re.search(r'at or near "(\w+)"', str(error))
        if found is None or found[1].lower() not in RESERVED:
            return ""
        return f'; for the column of this name write it in double quotes: "{found[1]}"'

    def all(self, sql: str) -> list[dict[str, Any]]:
        """The rows of an answer, each as a dictionary."""
        answer = self.ask(sql)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

    def close(self) -> None:
        """End it."""
        self._connection.close()

    def register(self, name: str, rows: Any) -> None:
        """Make rows known under a name, besides the tables."""
        self._connection.register(name, rows)

    def _make_known(self, name: str) -> None:
        if name in self._known:
            return
        self._known.add(name)
        try:
            opened = LakeTable(self.storage.below(name), name).at_version(self._past.version, self._past.at)
        except TableNotFoundError:
            raise LakeError(name, f"it has no such version in {self.storage}") from None
        files = opened.file_uris()
        if self.storage.local is None or not files:
            self._connection.register(name, opened.to_pyarrow_dataset() if files else _nothing(opened))
        else:
            try:
                self._connection.execute(_view(name, opened, files))
            except duckdb.Error as error:
                raise LakeError(
                    name, f"{_reason(error)}; 'polywire pipeline doctor' names what is missing or damaged"
                ) from None
        if not self._past:
            self.notes += _behind(self.storage, name, opened)


def _nothing(opened: DeltaTable) -> pa.Table:
    found: Any = opened.schema().to_arrow()  # another library's schema, which Arrow takes
    return pa.schema(found).empty_table()


def _view(name: str, opened: DeltaTable, files: Sequence[str]) -> str:
    """The statement that makes a table of these files known."""
    metadata = opened.metadata()
    kinds = {field.name: field.type for field in opened.schema().fields}
    columns = ", ".join(_name(column) for column in kinds)
    options = ""
    if metadata.partition_columns:
        types = [
            f"{_name(column)}: {_TYPES.get(str(getattr(kinds[column], 'type', '')), 'VARCHAR')}"
            for column in metadata.partition_columns
        ]
        options = f", hive_partitioning = true, hive_types = {{{', '.join(types)}}}"
    if WIDENED in metadata.configuration:
        options += ", union_by_name = true"
    paths = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
    return f"CREATE VIEW {_name(name)} AS SELECT {columns} FROM read_parquet([{paths}]{options})"  # noqa: S608 - ours


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _behind(storage: Storage, name: str, opened: DeltaTable) -> Iterator[str]:
    """A note, where the parts of an aggregate are newer than the table."""
    parts = LakeTable(storage.below(f"{PARTS}/{name}"), name)
    version, merged = parts.version(), opened.transaction_version(MERGED)
    if version > (-1 if merged is None else merged):
        when = datetime.fromtimestamp(opened.history(1)[0]["timestamp"] / 1000, UTC)
        yield f"{name} is as of {when:%Y-%m-%d %H:%M:%S} UTC: newer rows are merged once a minute while it runs"


def _reason(error: Exception) -> str:
    """What DuckDB says, in one line: without what sort of error it is, and without the text of the question."""
    lines = str(error).partition("\nLINE ")[0].splitlines()
    told = " ".join(line.strip() for line in lines if line.strip())
    return re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", told)


def ask_spark(spark: "SparkSession", lake: "Lake", sql: str, limit: int, past: Past = NOW) -> Answer:
    """The same by Spark, in its dialect."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra of its own weight

    names = lake.tables()
    if not names:
        raise PipelineError(f"{lake.storage}: there are no tables yet; create them with 'polywire pipeline run --once'")
    for name in names:
        lake.read(name, spark, version=past.version, at=past.at).createOrReplaceTempView(name)
    try:
        answer = spark.sql(sql)
        found = answer.limit(limit).toArrow()
    except PySparkException as error:
        told = str(error).strip().partition("\n")[0]
        raise PipelineError(f"{told} (tables: {', '.join(names)})") from None
    columns = [column.to_pylist() for column in found.columns]
    return Answer(list(answer.columns), list(zip(*columns, strict=True)), [])


@dataclass(frozen=True, slots=True)
class Change:
    """A version of a table: when it was made, and by what."""

    table: str
    version: int
    at: datetime
    what: str


def history(lake: str | Storage, table: str, limit: int, options: Mapping[str, str] | None = None) -> list[Change]:
    """The versions of a table, the last one first."""
    storage = Storage.parse(lake, options)
    names = tables_in(storage)
    if table not in names:
        raise PipelineError(f"{storage}: there is no table {table!r}; there is {', '.join(names) or 'none yet'}")
    return [
        Change(table, int(one["version"]), datetime.fromtimestamp(one["timestamp"] / 1000, UTC), _what(one))
        for one in LakeTable(storage.below(table), table).history(limit)
    ]


def _what(commit: Mapping[str, Any]) -> str:
    noted = commit.get(NOTED)
    if not isinstance(noted, dict):
        return str(commit.get("operation", "")).lower()
    if "batch" in noted:
        return f"batch {noted['batch']} of {noted['query']}"
    if "backfill" in noted:
        return "backfill of " + " to ".join(dict.fromkeys(noted["backfill"]))
    if "kept" in noted:
        return f"rows older than {noted['kept']} deleted"
    return "merged" if "merged" in noted else "compacted" if "compacted" in noted else "converted"
