"""The lake: the tables as Parquet files, written exactly once and readable by anything that reads Parquet.

``docs/pipeline.md`` describes the layout. Tables that are written row by row are in ``<lake>/<table>/``. The
parts of an aggregate are in ``<lake>/_parts/<table>/``; ``read`` merges them, and ``refresh`` writes the result into
``<lake>/<table>/``, for readers that do not know about parts.

The files of a table are changed so that a crash does no harm. New files are written elsewhere and moved in. A batch
that was moved in is noted as committed; one that was not is moved out again before it is written again. Files that
replace others (compaction, a finished table made again) come in by a *swap*: a note of what comes and what goes is
written first, so that an interrupted swap can be finished, and a concurrent reader knows which files count.
"""

import fcntl
import glob
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from polywire.pipeline.errors import LakeError, PipelineError
from polywire.pipeline.staging import sync_path
from polywire.pipeline.table import Table
from polywire.pipeline.tables import TABLES

SUFFIX: Final = ".parquet"
COMMITS: Final = "_commits"
STAGING: Final = "_staging"
SWAPS: Final = "_swaps"
LOCKS: Final = "_locks"


@dataclass(frozen=True, slots=True)
class Folder:
    """The directory ``home`` of a table's files in the lake ``root``. ``name`` is unique in the lake."""

    root: Path
    home: Path
    name: str

    def files(self, under: Path | None = None) -> list[Path]:
        """The files that count, in order; of a swap that is in flight either the old ones or the new."""
        found = set(self._listed(under or self.home))
        for swap in self._swaps():
            found -= {self.home / gone for gone in swap["remove"]}
            for staged, final in swap["add"].items():
                path = self.home / final
                if (under or self.home) in path.parents:
                    found.add(path if path.exists() else self.root / staged)
        return sorted(found)

    def days(self) -> list[str]:
        """The days there are files of."""
        if not self.home.is_dir():
            return []
        return sorted(path.name.removeprefix("day=") for path in self.home.glob("day=*") if path.is_dir())

    def staging(self) -> Path:
        """A new directory to write into, on the same file system."""
        return self.root / STAGING / f"{self.name}-{uuid.uuid4().hex}"

    def committed(self, query: str) -> int:
        """The last batch of this query that is wholly there; -1 for none."""
        try:
            return int(json.loads(self._commit_file(query).read_text(encoding="utf-8"))["batch"])
        except FileNotFoundError:
            return -1

    def move_in(self, staged: Path, query: str, batch: int, *, durable: bool) -> int:
        """Take in the files of a batch, and note that it is there. Returns how many files."""
        self._check(query)
        prefix = f"{query}-{batch:010d}-"
        begun = self._commit_file(query).with_suffix(".begun")
        if begun.exists():  # a process was killed here
            for place in _read(begun):
                for left in (self.home / place).glob(f"{glob.escape(prefix)}*"):
                    left.unlink()
        staged_files = self._listed(staged)
        places = sorted({str(path.parent.relative_to(staged)) for path in staged_files})
        _write(begun, places, durable=durable)
        for count, path in enumerate(staged_files):
            if durable:
                sync_path(path)
            _move(path, self.home / path.parent.relative_to(staged) / f"{prefix}{count:05d}{SUFFIX}")
        _write(self._commit_file(query), {"batch": batch, "files": len(staged_files)})
        begun.unlink()
        shutil.rmtree(staged, ignore_errors=True)
        return len(staged_files)

    def settled(self, files: list[Path]) -> list[Path]:
        """Those of the files that no batch may still take out again."""
        done: dict[str, int] = {}
        found = []
        for path in files:
            name = path.stem.rsplit("-", 2)
            if len(name) == 3 and name[1].isdigit():
                query, batch = name[0], int(name[1])
                if query not in done:
                    done[query] = self.committed(query)
                if batch > done[query]:
                    continue
            found.append(path)
        return found

    def swap(self, staged: Path, remove: list[Path]) -> int:
        """Put all files of a directory in the place of others, whole or not at all. Returns how many came in."""
        number = uuid.uuid4().hex
        add = {}
        for count, path in enumerate(self._listed(staged)):
            sync_path(path)
            final = path.parent.relative_to(staged) / f"swap{number}-{count:05d}{SUFFIX}"
            add[str(path.relative_to(self.root))] = str(final)
        note = self.root / SWAPS / self.name / f"{number}.json"
        _write(note, {"add": add, "remove": [str(path.relative_to(self.home)) for path in remove]})
        self.finish_swaps()
        shutil.rmtree(staged, ignore_errors=True)
        return len(add)

    def finish_swaps(self) -> None:
        """Finish what was started, by this process or by one that was killed."""
        for note in self._notes():
            swap = _read(note)
            for staged, final in swap["add"].items():
                source = self.root / staged
                if source.exists():
                    _move(source, self.home / final)
            for gone in swap["remove"]:
                (self.home / gone).unlink(missing_ok=True)
            for place in {Path(gone).parent for gone in swap["remove"]}:
                _drop_empty(self.home / place, self.home)
            note.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A lock for replacing files: one at a time, over all processes of this machine."""
        folder = self.root / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / self.name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.finish_swaps()
            yield

    def _listed(self, folder: Path) -> list[Path]:
        if not folder.is_dir():
            return []
        return sorted(path for path in folder.rglob(f"*{SUFFIX}") if not path.name.startswith((".", "_")))

    def _notes(self) -> list[Path]:
        return sorted((self.root / SWAPS / self.name).glob("*.json"))

    def _swaps(self) -> list[Any]:
        found = []
        for note in self._notes():
            try:
                found.append(_read(note))
            except FileNotFoundError:  # finished just now: the listing may be older
                continue
        return found

    def _commit_file(self, query: str) -> Path:
        return self.root / COMMITS / self.name / f"{query}.json"

    def _check(self, query: str) -> None:
        if not query or "/" in query or query.startswith((".", "_")):
            raise LakeError(self.name, f"invalid query name {query!r}: it must be usable in file names")


def _read(note: Path) -> Any:
    return json.loads(note.read_text(encoding="utf-8"))


def _write(path: Path, content: Any, *, durable: bool = True) -> None:
    """Write a file atomically: it has either its old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_path(path.parent)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except FileNotFoundError:  # the directory was empty, and another process has just removed it
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


def _drop_empty(folder: Path, home: Path) -> None:
    """Remove a directory nothing is left in, and those above it."""
    while folder != home:
        try:
            folder.rmdir()
        except OSError:
            return  # something is in it, or it is gone
        folder = folder.parent


LARGE: Final = 128 << 20
"""Files of this size are not compacted."""
ROW_GROUP: Final = 128 << 10
"""Rows in a group: what a reader decompresses at once."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """How many files were made into how many."""

    before: int
    after: int

    def __add__(self, other: "Compaction") -> "Compaction":
        return Compaction(self.before + other.before, self.after + other.after)


def compact_rows(folder: Folder, least: int) -> Compaction:
    """One file instead of many small ones, in each directory that has at least ``least`` of them."""
    total = Compaction(0, 0)
    by_place: dict[Path, list[Path]] = {}
    for path in folder.settled(folder.files()):
        by_place.setdefault(path.parent, []).append(path)
    for place, files in by_place.items():
        small = [path for path in files if path.stat().st_size < LARGE]
        if len(small) < max(least, 2):
            continue
        for chosen in _lots(small):
            staged = folder.staging()
            target = staged / place.relative_to(folder.home)
            target.mkdir(parents=True)
            _join(chosen, target / "part.parquet")
            total += Compaction(len(chosen), folder.swap(staged, chosen))
    return total


def _lots(files: list[Path]) -> list[list[Path]]:
    """The files in lots that make a large one each; a last single one is left alone."""
    lots: list[list[Path]] = [[]]
    octets = 0
    for path in files:
        if octets >= LARGE:
            lots.append([])
            octets = 0
        lots[-1].append(path)
        octets += path.stat().st_size
    return [lot for lot in lots if len(lot) > 1]


def _join(files: list[Path], target: Path) -> None:
    """All rows of the files in one, file by file; never more than some of them in memory."""
    schema = pa.unify_schemas([pq.read_schema(path) for path in files]).with_metadata(
        pq.read_schema(files[-1]).metadata
    )
    coded: Any = _coded(files[0])  # the stubs know only true and false
    with pq.ParquetWriter(target, schema, compression="zstd", use_dictionary=coded) as writer:
        for path in files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(ROW_GROUP):
                    writer.write_batch(_fitted(batch, schema), row_group_size=ROW_GROUP)


def _coded(path: Path) -> list[str]:
    """The columns for which a dictionary was worth it when they were first written."""
    with pq.ParquetFile(path) as file:
        if not file.metadata.num_row_groups:
            return []
        group = file.metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
        return [column.path_in_schema for column in columns if column.has_dictionary_page]


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of a schema: one that came later is null in older files."""
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        arrays.append(pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


PARTS: Final = "_parts"
REFRESHED: Final = "_refreshed"

COMMITTER: Final = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
"""Tasks move their files into place immediately: what a failed job leaves in its own directory is never read."""


class Lake:
    """A directory of tables. ``tables`` are those it may hold: the seven, and the user's own.

    With ``durable`` a batch counts only once its files are safe on the disk, not just against the end of a process.
    """

    def __init__(self, path: str | Path, tables: Mapping[str, Table] = TABLES, *, durable: bool = True) -> None:
        self.path = Path(path).absolute()
        self._tables = dict(tables)
        self._durable = durable

    def tables(self) -> list[str]:
        """The tables there is data of."""
        return [name for name in self._tables if self._folder(name).files()]

    def write_batch(self, table: str, rows: DataFrame, batch_id: int, query: str) -> bool:
        """Add what a micro-batch gives (``Table.rows``). A batch that is there already is not added again.

        Returns whether it was added.
        """
        folder = self._folder(table)
        done = folder.committed(query)
        if batch_id == done:
            return False
        if batch_id < done:
            raise LakeError(
                table,
                f"query {query!r} is at batch {batch_id}, but batch {done} is in the lake: the checkpoint was lost or "
                "is an old one; give the query another name, or restore the checkpoint",
            )
        staged = folder.staging()
        try:
            self._write(table, rows, staged)
            folder.move_in(staged, query, batch_id, durable=self._durable)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return True

    def read(self, table: str, spark: SparkSession | None = None) -> DataFrame:
        """The table as it is now. ``spark``: the session that is active, by default."""
        found = self._read(table, self._folder(table).files(), _session(spark))
        return self._of(table).finished(found)

    def replace(self, table: str, rows: DataFrame, from_day: date, to_day: date) -> None:
        """Put rows in the place of everything there is of these days, the last one included.

        ``rows`` are what ``Table.rows`` makes of the journal's rows of these days; those of other days are left out.
        """
        self._of_days(table)
        folder = self._folder(table)
        staged = folder.staging()
        self._write(table, rows.filter(sf.col("day").between(from_day, to_day)), staged)
        with folder.locked():
            gone = [
                path
                for day in folder.days()
                for path in folder.files(folder.home / f"day={day}")
                if from_day.isoformat() <= day <= to_day.isoformat()
            ]
            folder.swap(staged, gone)

    def refresh(self, table: str, spark: SparkSession | None = None) -> int:
        """Write what an aggregate's parts come to, where that has changed. Returns the number of files written."""
        parts = self._of(table).parts
        if parts is None:
            return 0
        source, target = self._folder(table), self._finished(table)
        with target.locked():
            now = {day: _fingerprint(source.files(source.home / f"day={day}")) for day in source.days()}
            note = self.path / REFRESHED / f"{table}.json"
            before = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
            if now == before:
                return 0
            files, gone = source.files(), target.files()
            if parts.daily:
                changed = sorted(day for day in now | before if now.get(day) != before.get(day))
                files = [path for day in changed for path in source.files(source.home / f"day={day}")]
                gone = [path for day in changed for path in target.files(target.home / f"day={day}")]
            staged = target.staging()
            made = self._of(table).finished(self._read(table, files, _session(spark)))
            _save(table, made.coalesce(1), self._of(table).partition_by, staged)
            written = target.swap(staged, gone)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(now), encoding="utf-8")
        return written

    def compact(self, table: str, spark: SparkSession | None = None, *, least: int = 8) -> Compaction:
        """Make one file of many small ones, directory by directory, where there are at least so many."""
        folder = self._folder(table)
        total = Compaction(0, 0)
        with folder.locked():
            if self._of(table).parts is None:
                return compact_rows(folder, least)
            for day in folder.days():
                files = folder.settled(folder.files(folder.home / f"day={day}"))
                if len(files) >= least:
                    total += self._compact_parts(table, files, _session(spark))
        return total

    def clean(self) -> None:
        """Remove what killed writers have left. Only while no writer runs."""
        for name in self._tables:
            for folder in (self._folder(name), self._finished(name)):
                folder.finish_swaps()
        shutil.rmtree(self.path / STAGING, ignore_errors=True)

    def _compact_parts(self, table: str, files: list[Path], spark: SparkSession) -> Compaction:
        folder, parts = self._folder(table), self._of(table).parts
        if parts is None:
            raise LakeError(table, "has no parts")
        staged = folder.staging()
        _save(table, parts.merge(self._read(table, files, spark)).coalesce(1), ("day",), staged)
        return Compaction(len(files), folder.swap(staged, files))

    def _write(self, table: str, rows: DataFrame, staged: Path) -> None:
        known = self._of(table)
        if known.parts is None:
            _save(table, rows, known.partition_by, staged, known.varied)
        else:
            _save(table, rows.coalesce(1), ("day",), staged)

    def _read(self, table: str, files: list[Path], spark: SparkSession) -> DataFrame:
        known, folder = self._of(table), self._folder(table)
        reader = spark.read.option("basePath", str(folder.home))
        if known.parts is not None or known.schema is None:
            if not files:
                raise LakeError(table, f"it has no data in {self.path} yet")
            return reader.parquet(*map(str, files))
        if not files:
            return spark.createDataFrame([], known.schema)
        return reader.schema(known.schema).parquet(*map(str, files)).select(*known.schema.names)

    def _of(self, table: str) -> Table:
        known = self._tables.get(table)
        if known is None:
            raise LakeError(table, f"is not known; there is {', '.join(self._tables)}")
        return known

    def _of_days(self, table: str) -> None:
        known = self._of(table)
        if known.parts is None and "day" not in known.partition_by:
            raise LakeError(table, "is not partitioned by day (partition_by), so days of it can't be replaced")

    def _folder(self, table: str) -> Folder:
        """Where its rows, or its parts, are written."""
        if self._of(table).parts is None:
            return self._finished(table)
        return Folder(self.path, self.path / PARTS / table, f"{table}-parts")

    def _finished(self, table: str) -> Folder:
        """The directory of the finished table."""
        return Folder(self.path, self.path / table, table)


def _save(
    table: str, rows: DataFrame, partition_by: tuple[str, ...], staged: Path, varied: tuple[str, ...] = ()
) -> None:
    for name in partition_by:
        if name not in rows.columns:
            raise LakeError(
                table,
                f"its rows have no column {name!r}, which it is partitioned by (partition_by; parts of an aggregate "
                f"need 'day', before and after merging); they have {', '.join(rows.columns)}",
            )
    # A dictionary of values that are all different costs time, and saves nothing.
    plain = {f"parquet.enable.dictionary#{name}": "false" for name in varied}
    writer = rows.write.option("compression", "zstd").options(**plain).options(**COMMITTER)
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(str(staged))


def _fingerprint(files: list[Path]) -> str:
    return hashlib.sha256("\n".join(path.name for path in files).encode()).hexdigest()[:16]


def _session(spark: SparkSession | None) -> SparkSession:
    found = spark or SparkSession.getActiveSession()
    if found is None:
        raise LakeError("*", "no Spark session is active: start one with polywire.spark_session()")
    return found


def create_views(spark: SparkSession, lake: str, tables: Mapping[str, Table]) -> list[str]:
    """Make the tables of a lake known to a session; their names."""
    found = Lake(lake, tables)
    names = found.tables()
    for name in names:
        found.read(name, spark).createOrReplaceTempView(name)
    return names


def ask(
    spark: SparkSession, lake: str, tables: Mapping[str, Table], sql: str, limit: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The answer to a question: its columns and, up to ``limit``, its rows."""
    names = create_views(spark, lake, tables)
    if not names:
        raise PipelineError(f"{lake}: there are no tables yet; create them with 'polywire pipeline run --once'")
    try:
        answer = spark.sql(sql)
        return answer.columns, [tuple(row) for row in answer.limit(limit).collect()]
    except (AnalysisException, ParseException) as error:
        told = str(error).strip().partition("\n")[0]
        raise PipelineError(f"{told} (tables: {', '.join(names)})") from None
