"""The lake with Spark: batches once, aggregates merged, Delta tables that Spark, DuckDB, polars and pandas read."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from polywire.pipeline.delta import Batch
from polywire.pipeline.errors import LakeError
from polywire.pipeline.lake import Lake
from polywire.pipeline.query import Past, Questions
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


@table(partition_by=("day",), merge=lambda parts: parts.groupBy("day", "name").agg(sf.sum("n").alias("n")))
def sums(rows: DataFrame) -> DataFrame:
    """Sums by name, for tests."""
    return rows.groupBy("day", "name").agg(sf.sum("n").alias("n"))


OWN = {"numbers": numbers, "sums": sums}


def some(spark: SparkSession, *values: tuple[str, int], day: str = "2026-01-31") -> DataFrame:
    return spark.createDataFrame(list(values), "name string, n long").withColumn("day", sf.lit(day).cast("date"))


def held(rows: DataFrame) -> list[tuple[Any, ...]]:
    return [(row["name"], row["n"]) for row in collected(rows)]


def asked(lake: Lake, sql: str) -> list[tuple[Any, ...]]:
    questions = Questions(lake.storage)
    try:
        return questions.ask(sql).rows
    finally:
        questions.close()


def test_a_batch_counts_once_and_one_of_another_journal_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(f"file://{tmp_path}/lake", OWN)
    assert lake.tables() == []
    places: list[dict[str, Any]] = [
        {"begin": None, "end": {"journal": 1}},
        {"begin": {"journal": 1}, "end": {"journal": 2}},
    ]
    rows = {"numbers": some(spark, ("a", 1)), "sums": some(spark, ("a", 1))}
    assert lake.write(rows, Batch("q", 0, places[0])) == ["numbers", "sums"]
    assert lake.write(rows, Batch("q", 0, places[0])) == []
    assert lake.write({"numbers": some(spark, ("b", 2))}, Batch("q", 1, places[1])) == ["numbers"]
    # What was cut short between two tables is finished, and what was done is left alone.
    assert lake.write(rows, Batch("q", 1, places[1])) == ["sums"]
    assert held(lake.read("numbers", spark)) == [("a", 1), ("b", 2)]
    assert lake.tables() == ["numbers", "sums"]
    assert (tmp_path / "lake" / "numbers" / "_delta_log").is_dir()
    with pytest.raises(LakeError, match="batch 0, but batch 1 is in the lake: the checkpoint was lost"):
        lake.write({"numbers": rows["numbers"]}, Batch("q", 0, places[0]))
    with pytest.raises(LakeError, match=r"batch 1, but another batch of this number .* Nothing was written"):
        lake.write({"numbers": rows["numbers"]}, Batch("q", 1, places[0]))
    assert held(Lake(tmp_path / "lake", OWN).read("numbers", spark)) == [("a", 1), ("b", 2)]


def test_what_can_not_be_written_is_an_error_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    with pytest.raises(LakeError, match="table 'sums': its rows have no column 'day'"):
        lake.write_batch("sums", some(spark, ("a", 1)).drop("day"), 0, "q")
    with pytest.raises(LakeError, match="column 'x' has the type void: cast it"):
        lake.write_batch("numbers", some(spark, ("a", 1)).withColumn("x", sf.lit(None)), 0, "q")
    with pytest.raises(LakeError, match="'traffik': is not known; there is numbers, sums"):
        lake.read("traffik")
    with pytest.raises(LakeError, match="invalid query name 'a/b'"):
        lake.write_batch("numbers", some(spark, ("a", 1)), 0, "a/b")


def test_a_column_may_be_added_but_its_type_stays(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    lake.write_batch("numbers", some(spark, ("a", 1)), 0, "q")
    lake.write_batch("numbers", some(spark, ("b", 2)).withColumn("more", sf.lit("x")), 1, "q")
    lake.write_batch("numbers", some(spark, ("c", 3)).drop("n"), 2, "q")
    wanted = [("a", 1, None), ("b", 2, "x"), ("c", None, None)]
    found = collected(lake.read("numbers", spark))
    assert sorted((row["name"], row["n"], row["more"]) for row in found) == wanted
    assert asked(lake, "SELECT name, n, more FROM numbers ORDER BY name") == wanted
    assert pl.scan_delta(str(tmp_path / "numbers")).sort("name").select("name", "n", "more").collect().rows() == wanted
    with pytest.raises(LakeError, match="table 'numbers': column 'n' is string now, but bigint in the lake"):
        lake.write_batch("numbers", some(spark, ("d", 4)).withColumn("n", sf.lit("four")), 3, "q")
    assert lake.compact("numbers", spark, least=2).before == 3
    assert sorted((row["name"], row["n"], row["more"]) for row in collected(lake.read("numbers", spark))) == wanted


def test_parts_are_merged_when_read_refreshed_for_others_and_compacted(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    for batch in range(3):
        lake.write_batch("sums", some(spark, ("a", 1), ("b", batch)), batch, "q")
    wanted = [("a", 3), ("b", 3)]
    assert held(lake.read("sums", spark)) == wanted
    assert lake.refresh("sums", spark) == 1
    assert lake.refresh("sums", spark) == 0
    done = lake.compact("sums", spark, least=2)
    assert (done.before, done.after) == (3, 1)
    assert held(lake.read("sums", spark)) == wanted
    assert lake.refresh("sums", spark) == 0  # other files, the same rows
    assert asked(lake, "SELECT name, n FROM sums ORDER BY name") == wanted
    lake.write_batch("sums", some(spark, ("c", 7), day="2026-02-01"), 3, "q")
    questions = Questions(lake.storage)
    answer = questions.ask("SELECT count(*) FROM sums")
    assert answer.rows == [(2,)]
    assert answer.notes[0].startswith("sums is as of ")
    before = {file.path for file in lake._finished("sums").files()}
    assert lake.refresh("sums", spark) == 1
    assert len(before & {file.path for file in lake._finished("sums").files()}) == 1  # the day before is untouched
    # The version from before is still there, for those who read it and for those who ask for it.
    assert questions.ask("SELECT count(*) FROM sums").rows == [(2,)]
    questions.close()
    past = Questions(lake.storage, past=Past(version=0))
    assert past.ask("SELECT count(*) FROM sums").rows == [(2,)]
    past.close()
    assert asked(lake, "SELECT count(*) FROM sums") == [(3,)]


def test_days_are_replaced_whole_and_old_ones_deleted(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, OWN)
    today = datetime.now(UTC).date()
    old, kept = today - timedelta(days=40), today - timedelta(days=20)
    day = sf.when(sf.col("n") > 10, sf.lit(str(kept))).otherwise(str(old)).cast("date")
    lake.write_batch("numbers", some(spark, ("old", 1), ("kept", 11)).withColumn("day", day), 0, "q")
    fresh = some(spark, ("new", 2), ("outside", 12)).withColumn("day", day)
    lake.replace("numbers", fresh, old, old)
    assert sorted(name for name, _ in held(lake.read("numbers", spark))) == ["kept", "new"]
    assert lake.keep("numbers", 30) == 1
    assert lake.keep("numbers", 30) == 0
    assert held(lake.read("numbers", spark)) == [("kept", 11)]


def test_the_tables_are_read_by_every_engine(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(11, steps=150)
    lake = Lake(tmp_path / "lake")
    for number, batch in enumerate(shuffled(rows, 2, 11)):
        part = frame(spark, tmp_path / f"rows{number}", batch)
        lake.write({name: TABLES[name].rows(part) for name in ("messages", "traffic")}, Batch("q", number))
    lake.compact("messages", spark, least=2)
    lake.refresh("traffic", spark)
    wanted = tables(rows)
    for name in ("messages", "traffic"):
        assert collected(lake.read(name, spark)) == ordered(wanted[name])
        delta = DeltaTable(tmp_path / "lake" / name)
        assert ordered(delta.to_pyarrow_table().to_pylist()) == ordered(wanted[name])
        assert len(delta.to_pandas()) == len(wanted[name])
        assert pl.scan_delta(str(tmp_path / "lake" / name)).select(pl.len()).collect().item() == len(wanted[name])
        questions = Questions(lake.storage)
        assert ordered(questions.all("FROM " + name)) == ordered(wanted[name])
        questions.close()
    # Spark alone, without us, may read the files of one version; of other partitions nothing is opened.
    pruned = DeltaTable(tmp_path / "lake" / "messages").file_uris(file_pruning_predicate="protocol = 'mqtt'")
    assert pruned
    assert all("protocol=mqtt" in path for path in pruned)


def test_a_whole_day_of_an_aggregate_is_replaced_by_what_the_journal_says(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(12, steps=100)
    lake = Lake(tmp_path / "lake")
    at_rest = batched(spark, tmp_path / "rows", [rows])
    lake.write_batch("sessions", TABLES["sessions"].rows(at_rest.limit(20)), 0, "q")
    lake.replace("sessions", TABLES["sessions"].rows(at_rest), date(2026, 1, 31), date(2026, 1, 31))
    assert collected(lake.read("sessions", spark)) == ordered(tables(rows)["sessions"])
