"""The lake: the tables as Parquet files in folders, written exactly once and readable by anything that reads Parquet.

``docs/pipeline.md`` describes the layout. Tables that are written row by row lie in ``<lake>/<table>/``. Of an
aggregate the parts lie in ``<lake>/_parts/<table>/``; ``read`` merges them, and ``refresh`` writes what they come to
into ``<lake>/<table>/``, for readers that know nothing of parts.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from polywire.pipeline.compaction import Compaction, compact_rows
from polywire.pipeline.errors import LakeError
from polywire.pipeline.lake_files import STAGING, Folder
from polywire.pipeline.table import Table
from polywire.pipeline.tables import TABLES

PARTS: Final = "_parts"
REFRESHED: Final = "_refreshed"

COMMITTER: Final = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
"""Tasks put their files in place at once: nobody looks at what a failed job leaves in a folder of its own."""


class Lake:
    """A folder of tables. ``tables`` are those it may hold: the seven, and the user's own.

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
        """The table as it is now. ``spark``: the session that is active, unless given."""
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
        """Make one file of many small ones, folder by folder, where there are at least so many."""
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
        """Remove what writers that were killed have left. Only while nobody writes."""
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
                raise LakeError(table, f"nothing of it is in {self.path} yet")
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
            raise LakeError(table, "is not kept by days (partition_by), so no day of it can be replaced")

    def _folder(self, table: str) -> Folder:
        """Where its rows, or its parts, are written."""
        if self._of(table).parts is None:
            return self._finished(table)
        return Folder(self.path, self.path / PARTS / table, f"{table}-parts")

    def _finished(self, table: str) -> Folder:
        """Where people look."""
        return Folder(self.path, self.path / table, table)


def _save(
    table: str, rows: DataFrame, partition_by: tuple[str, ...], staged: Path, varied: tuple[str, ...] = ()
) -> None:
    for name in partition_by:
        if name not in rows.columns:
            raise LakeError(
                table,
                f"its rows have no column {name!r}, which folders are made of (partition_by; an aggregate's parts need "
                f"'day', before and after merging); they have {', '.join(rows.columns)}",
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
        raise LakeError("*", "no Spark session is active: begin one with polywire.spark_session()")
    return found
