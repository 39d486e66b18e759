"""The lake: the tables as Delta tables, written by Spark exactly once and readable by anything that reads Delta Lake.

``docs/pipeline.md`` describes the layout. A table is in ``<lake>/<table>/``. The parts of an aggregate are in
``<lake>/_parts/<table>/``, a Delta table as well; ``read`` merges them, and ``refresh`` writes the result into
``<lake>/<table>/``, for readers that do not know about parts.

What Spark's tasks write are files (``files.py``); what makes them count is a transaction (``delta.py``).
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Transaction
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from polywire.pipeline.delta import (
    KEPT,
    MERGED,
    PARTS,
    Batch,
    Compaction,
    FilesChangedError,
    LakeTable,
    between,
    days_of,
    files_of,
    lots,
)
from polywire.pipeline.errors import LakeError
from polywire.pipeline.files import (
    NO_VALUE,
    SUFFIX,
    WRITTEN,
    DataFile,
    FilePlace,
    FileWriter,
    Storage,
    check_visible,
    content_of,
    reported,
    statistics,
    write_rows,
)
from polywire.pipeline.table import HeldParts, Table
from polywire.pipeline.tables import TABLES

COMMITTERS: Final = 4
"""How many tables are committed at once: much of it is waiting for the disk or the network."""


@dataclass(frozen=True, slots=True)
class Written:
    """Files that were written for a table, and the columns of their rows as JSON."""

    files: list[DataFile]
    schema: str


def prefix_of(batch: Batch) -> str:
    """What the names of the files of a batch begin with."""
    return f"{batch.query}-{batch.number:010d}"


class Lake:
    """A directory of tables on any storage. ``tables`` are those it may hold: the seven, and the user's own.

    With ``durable`` a batch counts only once its files are safe on the disk, not just against the end of a process.
    ``options`` are of the storage, such as ``aws_region``.
    """

    def __init__(
        self,
        place: str | Path | Storage,
        tables: Mapping[str, Table] = TABLES,
        *,
        durable: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.storage = Storage.parse(place, options)
        self._tables = dict(tables)
        self._durable = durable
        self._opened: dict[str, LakeTable] = {}

    def tables(self) -> list[str]:
        """The tables there is data of."""
        return [name for name in self._tables if self._written(name).opened() is not None]

    def write_batch(self, table: str, rows: DataFrame, batch_id: int, query: str) -> bool:
        """Add what a micro-batch gives (``Table.rows``). A batch that is there already is not added again.

        Returns whether it was added.
        """
        return table in self.write({table: rows}, Batch(query, batch_id))

    def write(self, rows: Mapping[str, DataFrame], batch: Batch) -> list[str]:
        """The same for several tables, in one job of Spark. Returns those it was added to."""
        # All are looked at before the first one is written: a lost checkpoint must not change any.
        missing = self.missing(list(rows), batch)
        return self.commit(self.wrote({name: rows[name] for name in missing}, batch), batch) if missing else []

    def missing(self, tables: Sequence[str], batch: Batch) -> list[str]:
        """Those of the tables that do not have a batch yet. A lost checkpoint is an error."""
        _check_query(batch.query)

        def lacks(name: str) -> bool:
            return not self._written(name).holds(batch)

        with ThreadPoolExecutor(COMMITTERS) as pool:
            return [name for name, is_missing in zip(tables, pool.map(lacks, tables), strict=True) if is_missing]

    def wrote(self, rows: Mapping[str, DataFrame], batch: Batch) -> dict[str, "Written"]:
        """Write rows to files, in one job of Spark. They do not count before ``commit``."""
        frames = {name: _columns(name, frame, self.partitioned(name)) for name, frame in rows.items()}
        schemas = {name: schema_of(name, frame) for name, frame in frames.items()}
        narrow = {name: self._narrow(name, frame) for name, frame in frames.items()}
        found = self._wrote(narrow, prefix_of(batch))
        return {name: Written(files, schemas[name]) for name, files in found.items()}

    def commit(self, found: Mapping[str, "Written"], batch: Batch) -> list[str]:
        """Let files count: one transaction for each table. Returns the tables that had not this batch already."""

        def commit(name: str) -> bool:
            files, table = found[name].files, self._written(name)
            check_visible(name, table.storage, files)
            return bool(files) and table.append(files, found[name].schema, self.partitioned(name), batch)

        with ThreadPoolExecutor(COMMITTERS) as pool:
            return [name for name, done in zip(found, pool.map(commit, found), strict=True) if done]

    def place(self, table: str, batch: Batch) -> FilePlace:
        """Where the files of a batch go."""
        return FilePlace(self._written(table).storage, prefix_of(batch), self._of(table).varied, self._durable)

    def frame(self, table: str, found: "Written", spark: SparkSession) -> DataFrame:
        """The rows of files that need not count yet."""
        return self._frame(self._written(table), found.files, found.schema, spark)

    def read(
        self,
        table: str,
        spark: SparkSession | None = None,
        *,
        version: int | None = None,
        at: datetime | None = None,
    ) -> DataFrame:
        """The table as it is now, or was. ``spark``: the session that is active, by default."""
        if version is not None or at is not None:
            past = self._finished(table).at_version(version, at)
            return self._frame(self._finished(table), files_of(past), past.schema().to_json(), _session(spark))
        written = self._written(table)
        schema = written.schema()
        known = self._of(table)
        if schema is None:
            if known.schema is None or known.parts is not None:
                raise LakeError(table, f"it has no data in {self.storage} yet")
            return _session(spark).createDataFrame([], known.schema)
        return known.finished(self._frame(written, written.files(), schema, _session(spark)))

    def replace(self, table: str, rows: DataFrame, from_day: date, to_day: date) -> None:
        """Put rows in the place of everything there is of these days, the last one included, in one transaction.

        ``rows`` are what ``Table.rows`` makes of the journal's rows of these days; those of other days are left out.
        """
        if "day" not in self.partitioned(table):
            raise LakeError(table, "is not partitioned by day (partition_by), so days of it can't be replaced")
        chosen = _columns(table, rows, self.partitioned(table)).filter(sf.col("day").between(from_day, to_day))
        found = self._wrote({table: self._narrow(table, chosen)}, "backfill")[table]
        self._written(table).replace(
            between(from_day, to_day),
            found,
            schema_of(table, chosen),
            self.partitioned(table),
            noted={"backfill": [from_day.isoformat(), to_day.isoformat()]},
        )

    def refresh(self, table: str, spark: SparkSession | None = None) -> int:
        """Write what an aggregate's parts come to, where that has changed. Returns the number of files written."""
        parts = self._of(table).parts
        opened = self._written(table).opened()
        if parts is None or opened is None:
            return 0
        version, finished = opened.version(), self._finished(table)
        before = finished.committed(MERGED)[0]
        if version == before:
            return 0
        files, there = files_of(opened), finished.files()
        days = self._changed_days(table, before, files)
        if parts.daily and days is not None:
            files = [file for file in files if file.partition.get("day") in days]
            there = [file for file in there if file.partition.get("day") in days]
        made: list[DataFile] = []
        schema = finished.schema() or ""
        if files and (days is None or days):
            schema, made = self._merged(table, files, opened.schema().to_json(), spark)
        elif days is not None and not days:
            there = []  # other files with the same rows
        kept = {content_of(file) for file in made} & {content_of(file) for file in there}
        new = [file for file in made if content_of(file) not in kept]
        if not schema:
            return 0
        finished.replace(
            [file for file in there if content_of(file) not in kept],
            new,
            schema,
            self._of(table).partition_by,
            noted={"merged": version},
            transactions=[Transaction(MERGED, version)],
        )
        return len(new)

    def _merged(
        self, table: str, files: Sequence[DataFile], schema: str, spark: SparkSession | None
    ) -> tuple[str, list[DataFile]]:
        """The finished table of these parts, in files: its columns, and the files."""
        known = self._of(table)
        place = FilePlace(self._finished(table).storage, "merged", durable=self._durable, by_content=True)
        if known.kernel is not None and known.kernel.finish is not None and known.schema is not None:
            rows = known.kernel.finish(self._parts(table, files))
            order: Any = [(name, "ascending") for name in (*known.partition_by, *known.keys)]
            return schema_text(known.schema), write_rows(place, known.partition_by, rows.sort_by(order))
        frame = known.finished(self._frame(self._written(table), files, schema, _session(spark)))
        schema = schema_of(table, _columns(table, frame, known.partition_by))
        names = [name for name in (*known.partition_by, *known.keys) if name in frame.columns]
        one = frame.coalesce(1)
        one = one.sortWithinPartitions(*names) if names else one
        return schema, self._wrote({table: one}, "", {table: place})[table]

    def _parts(self, table: str, files: Sequence[DataFile]) -> pa.Table:
        """The merged parts in these files, of a table that Arrow computes."""
        kernel = self._of(table).kernel
        assert kernel is not None  # noqa: S101 - only those are asked for
        held = HeldParts(kernel)
        reader = FileReader(self._written(table).storage, kernel.arrow)
        for file in files:
            for rows in reader.read(file.path, file.partition):
                held.add(rows)
        return held.merged()

    def _joined(self, table: str, files: Sequence[DataFile], schema: str, spark: SparkSession | None) -> list[DataFile]:
        """These parts merged, in new files."""
        if self._of(table).kernel is not None:
            place = FilePlace(self._written(table).storage, "compact", durable=self._durable)
            return write_rows(place, self.partitioned(table), self._parts(table, files))
        frame = self._frame(self._written(table), files, schema, _session(spark))
        parts = self._of(table).parts
        merged = frame if parts is None else parts.merge(frame)
        return self._wrote({table: merged.coalesce(1)}, "compact")[table]

    def _changed_days(self, table: str, before: int, files: Sequence[DataFile]) -> set[str] | None:
        """The days whose parts have changed since a version; None where nobody knows any more."""
        if before < 0:
            return None
        try:
            past = files_of(self._written(table).at_version(before))
        except (LakeError, DeltaError):  # it is too old
            return None
        old, new = {file.path for file in past}, {file.path for file in files}
        return days_of(file for file in (*past, *files) if (file.path in old) != (file.path in new))

    def compact(self, table: str, spark: SparkSession | None = None, *, least: int = 8) -> Compaction:
        """Make large files of small ones, partition by partition, where there are at least so many."""
        known, parts = self._written(table), self._of(table).parts
        if parts is None:
            return known.compact(least)
        total = Compaction(0, 0)
        opened = known.opened()
        if opened is None:
            return total
        files = files_of(opened)
        for day in sorted(days_of(files)):
            for chosen in lots([file for file in files if file.partition.get("day") == day], least):
                schema = opened.schema().to_json()
                made = self._joined(table, chosen, schema, spark)
                try:
                    known.replace(chosen, made, schema, noted={"compacted": True}, changes=False)
                except FilesChangedError:
                    continue  # another process did something about them; what was made here is vacuumed
                total += Compaction(len(chosen), len(made))
        return total

    def keep(self, table: str, days: int) -> int:
        """Delete the rows of days that ended more than so many days ago. Returns the number of files."""
        if "day" not in self.partitioned(table):
            return 0
        last = (datetime.now(UTC) - timedelta(days=days)).date() - timedelta(days=1)
        total = 0
        for known in {id(one): one for one in (self._written(table), self._finished(table))}.values():
            schema = known.schema()
            if schema is not None and days_of(known.files()) & _until(last, known.files()):
                total += known.replace(
                    between(date.min, last),
                    [],
                    schema,
                    noted={"kept": f"{days} days"},
                    transactions=[Transaction(KEPT, last.toordinal())],
                )
        return total

    def tidy(self, table: str) -> None:
        """What keeps reading and committing fast: the log in one file, and files that no version needs deleted."""
        for known in {id(one): one for one in (self._written(table), self._finished(table))}.values():
            if known.checkpoint():
                known.vacuum()

    def _narrow(self, table: str, rows: DataFrame) -> DataFrame:
        """The part of a micro-batch is small: one file a day."""
        return rows if self._of(table).parts is None else rows.coalesce(1)

    def _wrote(
        self, frames: Mapping[str, DataFrame], prefix: str, places: Mapping[str, FilePlace] | None = None
    ) -> dict[str, list[DataFile]]:
        """Write all rows of these, in one job. What files there are then, by table; none counts yet."""
        writing = []
        for name, rows in frames.items():
            place = (places or {}).get(name) or FilePlace(
                self._written(name).storage, prefix, self._of(name).varied, self._durable
            )
            by = self._of(name).partition_by if places else self.partitioned(name)
            writing.append(rows.mapInArrow(FileWriter(name, place, by), WRITTEN))
        found: dict[str, list[DataFile]] = {name: [] for name in frames}
        for row in reduce(DataFrame.union, writing).collect():
            found[row["name"]].append(reported(row))
        for name, files in found.items():
            check_visible(name, (places or {})[name].storage if places else self._written(name).storage, files)
        return found

    def _frame(self, table: LakeTable, files: Sequence[DataFile], schema: str, spark: SparkSession) -> DataFrame:
        """The rows of these files."""
        columns = StructType.fromJson(json.loads(schema))
        if not files:
            return spark.createDataFrame([], columns)
        if table.storage.local is not None:
            paths = [f"{table.storage.uri}/{file.path}" for file in files]
            return (
                spark.read.option("basePath", table.storage.uri).schema(columns).parquet(*paths).select(*columns.names)
            )
        told = [(file.path, json.dumps(dict(file.partition))) for file in files]
        names = spark.createDataFrame(told, "path string, partition string").repartition(min(len(told), 64))
        return names.mapInArrow(FileReader(table.storage, to_arrow_schema(columns, timezone="UTC")), columns)

    def _of(self, table: str) -> Table:
        known = self._tables.get(table)
        if known is None:
            raise LakeError(table, f"is not known; there is {', '.join(self._tables)}")
        return known

    def partitioned(self, table: str) -> tuple[str, ...]:
        """What the rows that are written, or the parts, are partitioned by."""
        return self._of(table).partition_by if self._of(table).parts is None else ("day",)

    def _written(self, table: str) -> LakeTable:
        """Where its rows, or its parts, are written."""
        return self._at(table if self._of(table).parts is None else f"{PARTS}/{table}", table)

    def _finished(self, table: str) -> LakeTable:
        """The finished table."""
        return self._at(table, table)

    def _at(self, path: str, table: str) -> LakeTable:
        found = self._opened.get(path)
        if found is None:
            found = self._opened.setdefault(path, LakeTable(self.storage.below(path), table, durable=self._durable))
        return found


def _until(last: date, files: Iterable[DataFile]) -> set[str]:
    return {day for day in days_of(files) if day <= last.isoformat()}


def _check_query(query: str) -> None:
    if not query or "/" in query or query.startswith((".", "_")):
        raise LakeError("*", f"invalid query name {query!r}: it must be usable in file names")


def _columns(table: str, rows: DataFrame, partition_by: Iterable[str]) -> DataFrame:
    """The rows, once it is known that they have what they are partitioned by."""
    for name in partition_by:
        if name not in rows.columns:
            raise LakeError(
                table,
                f"its rows have no column {name!r}, which it is partitioned by (partition_by; parts of an aggregate "
                f"need 'day', before and after merging); they have {', '.join(rows.columns)}",
            )
    return rows


def schema_text(columns: StructType) -> str:
    """Columns as JSON: what Spark and Delta have in common."""
    fields = [{**field, "nullable": True, "metadata": {}} for field in columns.jsonValue()["fields"]]
    return json.dumps({"type": "struct", "fields": fields})


def schema_of(table: str, rows: DataFrame) -> str:
    """The columns of rows as JSON: what Spark and Delta have in common."""
    fields = rows.schema.jsonValue()["fields"]
    for field in fields:
        if str(field["type"]).startswith(("void", "timestamp_ntz", "interval")):
            raise LakeError(table, f"column {field['name']!r} has the type {field['type']}: cast it to another one")
        field |= {"nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": fields})


class FileReader:
    """For ``mapInArrow``: the rows of the files that are named, on storage that Spark itself can't read."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        self._storage = storage
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the files whose paths come, each with what its rows have in common."""
        for batch in batches:
            for told in batch.to_pylist():
                yield from self.read(told["path"], json.loads(told["partition"]))

    def read(self, path: str, partition: Mapping[str, str | None]) -> Iterator[pa.RecordBatch]:
        """The rows of one file."""
        files, root = self._storage.open()
        with pq.ParquetFile(f"{root}/{path}", filesystem=files) as parquet:
            for rows in parquet.iter_batches():
                yield self._fitted(rows, partition)

    def _fitted(self, rows: pa.RecordBatch, partition: Mapping[str, str | None]) -> pa.RecordBatch:
        arrays = []
        for wanted in self._schema:
            if wanted.name in partition:
                arrays.append(pa.repeat(pa.scalar(partition[wanted.name], pa.utf8()), rows.num_rows).cast(wanted.type))
            elif wanted.name in rows.schema.names:
                arrays.append(rows.column(wanted.name).cast(wanted.type))
            else:
                arrays.append(pa.nulls(rows.num_rows, wanted.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _session(spark: SparkSession | None) -> SparkSession:
    found = spark or SparkSession.getActiveSession()
    if found is None:
        raise LakeError("*", "no Spark session is active: start one with polywire.spark_session()")
    return found


COMMITS: Final = "_commits"
"""Where the first release noted the last batch of each query, by table."""

LEFT: Final = ("_swaps", "_staging", "_locks", "_refreshed", COMMITS)
"""What else a lake of the first release has. The notes go last: while they are there, the work is not done."""

ROW_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
"""Under this name Spark keeps the columns of a file, in the file."""


def convert(storage: Storage, tables: Mapping[str, Table]) -> list[str]:
    """Make Delta tables of a lake of the first release, in place. Returns their names.

    The files stay where they are, and the batches that were committed are transactions of the new log. It may be cut
    short, and is then finished the next time.
    """
    root = storage.local
    if root is None or not (root / COMMITS).is_dir():
        return []
    found = []
    for notes in sorted((root / COMMITS).iterdir()):
        name = notes.name.removesuffix("-parts")
        parts = notes.name.endswith("-parts") and (root / PARTS / name).is_dir()
        name = name if parts else notes.name
        table = LakeTable(storage.below(f"{PARTS}/{name}" if parts else name), name)
        _finish_swaps(root, notes.name, root / PARTS / name if parts else root / name)
        if table.version() < 0:
            _convert(table, notes, None if parts or name not in tables else tables[name])
        if parts:  # made again of its parts, as a Delta table
            for old in (root / name).glob("day=*"):
                shutil.rmtree(old)
        found.append(name)
    for left in LEFT:
        shutil.rmtree(root / left, ignore_errors=True)
    return found


def _finish_swaps(root: Path, name: str, home: Path) -> None:
    """Finish what a killed process had begun: files that take the place of others."""
    for note in sorted((root / "_swaps" / name).glob("*.json")):
        swap = json.loads(note.read_text(encoding="utf-8"))
        for staged, final in swap["add"].items():
            if (root / staged).exists():
                (home / final).parent.mkdir(parents=True, exist_ok=True)
                (root / staged).rename(home / final)
        for gone in swap["remove"]:
            (home / gone).unlink(missing_ok=True)
        note.unlink()


def _convert(table: LakeTable, notes: Path, known: Table | None) -> None:
    """The log of a table: its files, without those of batches that were not committed, and the batches that were."""
    home = table.storage.local
    done = {
        note.stem: int(json.loads(note.read_text(encoding="utf-8"))["batch"])
        for note in notes.glob("*.json")
        if not note.name.startswith(".")
    }
    files: list[DataFile] = []
    fields: dict[str, Any] = {}
    partition: dict[str, str | None] = {}
    for path in sorted(home.rglob(f"*{SUFFIX}")) if home is not None else ():
        query, _, batch = path.stem.rpartition("-")[0].rpartition("-")
        if batch.isdigit() and int(batch) > done.get(query, -1):
            continue  # was never committed
        below = path.relative_to(home or path)
        pairs = [part.split("=", 1) for part in below.parent.parts]
        partition = {unquote(name): None if value == NO_VALUE else unquote(value) for name, value in pairs}
        metadata = pq.read_metadata(path)
        told = json.loads((metadata.metadata or {}).get(ROW_SCHEMA, b'{"fields": []}'))
        fields |= {field["name"]: {**field, "nullable": True, "metadata": {}} for field in told["fields"]}
        files.append(DataFile(str(below), path.stat().st_size, metadata.num_rows, partition, statistics(metadata)))
    if not files:
        return
    folders = [{"name": name, "type": "date" if name == "day" else "string"} for name in partition]
    columns = [*({**field, "nullable": True, "metadata": {}} for field in folders), *fields.values()]
    if known is not None and known.schema is not None:
        columns = [{**field, "nullable": True} for field in known.schema.jsonValue()["fields"]]
    schema = json.dumps({"type": "struct", "fields": columns})
    batches = [action for query, batch in done.items() for action in Batch(query, batch).transactions()]
    table.replace([], files, schema, tuple(partition), noted={"converted": len(files)}, transactions=batches)
