"""Spark, DuckDB, polars and pandas read a lake while all is done to it that writes: nobody sees half of a change."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from polywire.pipeline.lake import Lake
from polywire.pipeline.query import Questions
from polywire.pipeline.table import table

pytestmark = pytest.mark.timeout(400)

FIRST, LAST = date(2026, 1, 31), date(2026, 2, 1)
ROWS = 40
"""Rows of a generation."""

TURNS = 6

Rows = list[tuple[Any, ...]]
Read = Callable[[str], Rows]


@table(partition_by=("day", "half"))
def numbers(rows: DataFrame) -> DataFrame:
    """Rows of a generation on each of two days."""
    return rows


def merged(parts: DataFrame) -> DataFrame:
    return parts.groupBy("day", "name").agg(sf.sum("n").alias("n"))


@table(merge=merged)
def sums(rows: DataFrame) -> DataFrame:
    """Sums by name, which are all the same at any time."""
    return merged(rows)


class Readers:
    """The same question to each engine."""

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        self._lake, self._spark = lake, spark
        self.all: dict[str, Read] = {
            "spark": self._by_spark,
            "duckdb": self._by_duckdb,
            "polars": self._by_polars,
            "pandas": self._by_pandas,
        }

    def _by_spark(self, name: str) -> Rows:
        return [tuple(row) for row in self._lake.read(name, self._spark).select("day", *_columns(name)).collect()]

    def _by_duckdb(self, name: str) -> Rows:
        questions = Questions(self._lake.storage)
        try:
            return questions.ask(f"SELECT day, {', '.join(_columns(name))} FROM {name}").rows  # noqa: S608 - our own
        finally:
            questions.close()

    def _by_polars(self, name: str) -> Rows:
        return pl.scan_delta(f"{self._lake.storage.uri}/{name}").select("day", *_columns(name)).collect().rows()

    def _by_pandas(self, name: str) -> Rows:
        frame = DeltaTable(f"{self._lake.storage.uri}/{name}").to_pandas()
        return list(frame[["day", *_columns(name)]].itertuples(index=False, name=None))


def _columns(name: str) -> Sequence[str]:
    return ("generation",) if name == "numbers" else ("name", "n")


def whole(rows: Rows) -> bool:
    """Whether these are the first day as it always was, and one generation of the second."""
    seen = Counter((day, generation) for day, generation in rows)
    later = [key for key in seen if key[0] == LAST]
    return len(later) == 1 and set(seen.values()) == {ROWS} and seen.keys() == {(FIRST, 0), later[0]}


def level(rows: Rows) -> bool:
    """Whether all sums of a day are of the same batches."""
    days = {day for day, _, _ in rows}
    return days == {FIRST, LAST} and all(len({n for day, _, n in rows if day == one}) == 1 for one in days)


def generation(spark: SparkSession, number: int, day: date) -> DataFrame:
    rows = spark.range(ROWS).repartition(2)
    return rows.select(
        sf.lit(day).alias("day"), (sf.col("id") % 2).cast("string").alias("half"), sf.lit(number).alias("generation")
    )


def test_nobody_who_reads_is_disturbed(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", {"numbers": numbers, "sums": sums})
    days = spark.createDataFrame([(FIRST,), (LAST,)], "day date").crossJoin(
        spark.createDataFrame([("a", 1), ("b", 1), ("c", 1)], "name string, n long")
    )
    for batch, day in enumerate((FIRST, LAST)):
        lake.write_batch("numbers", generation(spark, 0, day), batch, "q")
    lake.write_batch("sums", days, 0, "q")
    lake.refresh("sums", spark)
    stop = threading.Event()
    wrong: list[tuple[str, object]] = []
    reads: Counter[str] = Counter()

    def keep_reading(engine: str, read: Read) -> None:
        while not stop.is_set():
            for name, good in (("numbers", whole), ("sums", level)):
                try:
                    rows = read(name)
                except Exception as error:  # noqa: BLE001 - whatever a reader meets
                    wrong.append((engine, error))
                else:
                    reads[engine] += 1
                    if not good(rows):
                        wrong.append((engine, rows))

    threads = [
        threading.Thread(target=keep_reading, args=(engine, read)) for engine, read in Readers(lake, spark).all.items()
    ]
    for thread in threads:
        thread.start()
    try:
        for turn in range(1, TURNS + 1):
            lake.replace("numbers", generation(spark, turn, LAST), LAST, LAST)
            lake.write_batch("sums", days, turn, "q")
            lake.refresh("sums", spark)
            for name in ("numbers", "sums"):
                lake.compact(name, spark, least=2)
                lake.tidy(name)
                for one in (lake._written(name), lake._finished(name)):
                    one.checkpoint(after=2)
                    one.vacuum()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert set(reads) == {"spark", "duckdb", "polars", "pandas"}
    assert min(reads.values()) > 2
    for engine, read in Readers(lake, spark).all.items():
        assert whole(read("numbers")), engine
        assert {n for _, _, n in read("sums")} == {TURNS + 1}, engine
