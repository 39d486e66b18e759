"""The lake with Spark: batches once, aggregates merged, files that DuckDB and polars read as they are."""

from datetime import date
from pathlib import Path

import duckdb
import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from polywire.pipeline.errors import LakeError
from polywire.pipeline.lake import Lake
from polywire.pipeline.table import table
from polywire.pipeline.tables import TABLES
from tests.pipeline.tables.made_traffic import made, shuffled
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import batched, collected, frame, ordered

pytestmark = pytest.mark.timeout(900)


@table(partition_by=("day",))
def numbers(rows: DataFrame) -> DataFrame:
    """Numbers, for tests."""
    return rows


@table(merge=lambda parts: parts.groupBy("day", "name").agg(sf.sum("n").alias("n")))
def sums(rows: DataFrame) -> DataFrame:
    """Sums by name, for tests."""
    return rows.groupBy("day", "name").agg(sf.sum("n").alias("n"))


OWN = {"numbers": numbers, "sums": sums}


def some(spark: SparkSession, *values: tuple[str, int]) -> DataFrame:
    return spark.createDataFrame(list(values), "name string, n long").withColumn(
        "day", sf.lit("2026-01-31").cast("date")
    )


def files(glob: str) -> duckdb.DuckDBPyRelation:
    """What DuckDB reads, told nothing but where the files are."""
    return duckdb.read_parquet(glob, hive_partitioning=True)


def test_a_batch_that_comes_again_is_not_added_again(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    assert lake.tables() == []
    assert lake.write_batch("numbers", some(spark, ("a", 1)), 0, "q")
    assert not lake.write_batch("numbers", some(spark, ("a", 1)), 0, "q")
    assert lake.write_batch("numbers", some(spark, ("b", 2)), 1, "q")
    assert [(row["name"], row["n"]) for row in collected(lake.read("numbers", spark))] == [("a", 1), ("b", 2)]
    assert lake.tables() == ["numbers"]


def test_a_batch_from_before_the_last_one_says_that_the_checkpoint_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    lake.write_batch("numbers", some(spark, ("a", 1)), 7, "q")
    with pytest.raises(LakeError, match="batch 0, but batch 7 is in the lake: the checkpoint was lost"):
        lake.write_batch("numbers", some(spark, ("a", 1)), 0, "q")


def test_rows_without_a_column_for_their_folder_are_an_error_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="table 'sums': its rows have no column 'day'"):
        Lake(tmp_path, OWN).write_batch("sums", some(spark, ("a", 1)).drop("day"), 0, "q")


def test_an_unknown_table_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="'traffik': is not known; there is numbers, sums"):
        Lake(tmp_path, OWN).read("traffik")


def test_parts_are_merged_when_read_refreshed_for_others_and_compacted(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    for batch in range(3):
        lake.write_batch("sums", some(spark, ("a", 1), ("b", batch)), batch, "q")
    wanted = [("a", 3), ("b", 3)]
    assert [(row["name"], row["n"]) for row in collected(lake.read("sums", spark))] == wanted
    assert lake.refresh("sums", spark) == 1
    assert lake.refresh("sums", spark) == 0
    done = lake.compact("sums", spark, least=2)
    assert (done.before, done.after) == (3, 1)
    assert [(row["name"], row["n"]) for row in collected(lake.read("sums", spark))] == wanted
    assert files(f"{tmp_path}/sums/**/*.parquet").order("name").project("name, n").fetchall() == wanted


def test_days_are_replaced_whole(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    day = sf.when(sf.col("n") > 10, sf.lit("2026-02-01")).otherwise("2026-01-31").cast("date")
    lake.write_batch("numbers", some(spark, ("old", 1), ("kept", 11)).withColumn("day", day), 0, "q")
    fresh = some(spark, ("new", 2), ("outside", 12)).withColumn("day", day)
    lake.replace("numbers", fresh, date(2026, 1, 31), date(2026, 1, 31))
    assert [row["name"] for row in collected(lake.read("numbers", spark))] == ["new", "kept"]


def test_the_tables_are_read_by_duckdb_and_polars_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(11, steps=150)
    lake = Lake(tmp_path / "lake")
    for number, batch in enumerate(shuffled(rows, 2, 11)):
        part = frame(spark, tmp_path / f"rows{number}", batch)
        for name in ("messages", "traffic"):
            lake.write_batch(name, TABLES[name].rows(part), number, "q")
    lake.compact("messages", spark, least=2)
    lake.refresh("traffic", spark)
    wanted = tables(rows)
    for name in ("messages", "traffic"):
        assert collected(lake.read(name, spark)) == ordered(wanted[name])
    where = str(lake.path)
    counted = files(f"{where}/messages/**/*.parquet").aggregate("count(*), sum(size), count(text)").fetchall()
    messages = wanted["messages"]
    texts = sum(one["text"] is not None for one in messages)
    assert counted == [(len(messages), sum(one["size"] for one in messages), texts)]
    today = files(f"{where}/traffic/**/*.parquet").filter("day = '2026-01-31'")
    by_protocol = today.aggregate("protocol, sum(messages)").fetchall()
    frame_of = pl.scan_parquet(f"{where}/traffic/").group_by("protocol").agg(pl.col("messages").sum()).collect()
    sums_wanted: dict[str, int] = {}
    for one in wanted["traffic"]:
        sums_wanted[one["protocol"]] = sums_wanted.get(one["protocol"], 0) + one["messages"]
    assert dict(by_protocol) == sums_wanted
    assert dict(frame_of.iter_rows()) == sums_wanted


def test_a_whole_day_of_an_aggregate_is_replaced_by_what_the_journal_says(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(12, steps=100)
    lake = Lake(tmp_path / "lake")
    at_rest = batched(spark, tmp_path / "rows", [rows])
    lake.write_batch("sessions", TABLES["sessions"].rows(at_rest.limit(20)), 0, "q")
    lake.replace("sessions", TABLES["sessions"].rows(at_rest), date(2026, 1, 31), date(2026, 1, 31))
    assert collected(lake.read("sessions", spark)) == ordered(tables(rows)["sessions"])
