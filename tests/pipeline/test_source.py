from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.readers import NamedReaders
from tests.hub_process import running_hub
from tests.interop.speakers import speak
from tests.pipeline.traffic import START, Row, messages, write_journal

pytestmark = pytest.mark.timeout(120)


def read(spark: SparkSession, journal: Path | str, **options: str) -> DataFrame:
    return spark.read.format("polywire").options(**options).load(str(journal))


def stream(spark: SparkSession, journal: Path | str, out: Path, **options: str) -> list[int]:
    """Catch up, and return the offsets that were written so far."""
    query = (
        spark.readStream.format("polywire")
        .options(journal=str(journal), **options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoint"))
        .option("path", str(out / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    written = spark.read.schema("offset bigint").parquet(str(out / "rows"))
    return sorted(row.offset for row in written.collect())


def test_every_column_arrives_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    row = {
        "kind": "reply",
        "protocol": "umq",
        "connection": 7,
        "client": "c",
        "channel": "s/m",
        "correlation": "x",
        "content_type": "text/plain",
        "headers": '{"a": 1}',
        "attachments": [b"1", b""],
        "body": b"\xff",
        "size": 2,
        "flags": 16,
    }
    write_journal(tmp_path, [row, {"protocol": None, "kind": "session"}])
    frame = read(spark, tmp_path)
    assert frame.columns == PLAIN_SCHEMA.names
    first, second = frame.orderBy("offset").collect()
    found = first.asDict()
    assert found.pop("ts").timestamp() == START.timestamp()
    attachments = [bytes(part) for part in found.pop("attachments")]
    assert attachments == row.pop("attachments")
    assert found == {**row, "offset": 0, "node": "n1"}
    assert second.protocol is None
    assert second.attachments is None


def test_columns_are_chosen_before_anything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path, messages(10))
    frame = read(spark, tmp_path, columns="body, offset")
    assert frame.columns == ["offset", "body"]
    assert sorted(bytes(row.body) for row in frame.collect()) == sorted(str(number).encode() for number in range(10))


def test_kinds_protocols_and_channels_are_chosen_by_options(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Row] = [
        {"kind": "publish", "protocol": "mqtt", "channel": "a/1/x"},
        {"kind": "publish", "protocol": "umq", "channel": "a/2/x"},
        {"kind": "enqueue", "protocol": "umq", "channel": "a/3/x"},
        {"kind": "publish", "protocol": "umq", "channel": "b"},
        {"kind": "publish", "protocol": "umq", "channel": None},
    ]
    write_journal(tmp_path, rows)

    def offsets(**options: str) -> list[int]:
        return sorted(row.offset for row in read(spark, tmp_path, columns="offset", **options).collect())

    assert offsets(kinds="enqueue") == [2]
    assert offsets(protocols="umq", kinds="publish") == [1, 3, 4]
    assert offsets(channels="a/*/x") == [0, 1, 2]
    assert offsets(channels="a/1/**, b") == [0, 3]


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, messages(250))
    assert stream(spark, journal, out) == list(range(250))
    write_journal(journal, messages(50))
    assert stream(spark, journal, out) == list(range(300))


def test_a_stream_takes_no_more_than_it_is_told_in_one_step(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal", messages(250))
    assert stream(spark, tmp_path / "journal", tmp_path / "out", maxRowsPerTrigger="100") == list(range(250))
    assert len(list((tmp_path / "out" / "checkpoint" / "offsets").glob("[0-9]*"))) == 3


def test_a_stream_begins_where_it_is_told(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_journal(journal, messages(300))
    assert stream(spark, journal, tmp_path / "latest", startingOffset="latest") == []
    assert stream(spark, journal, tmp_path / "number", startingOffset="290") == list(range(290, 300))
    noon = (START + timedelta(milliseconds=200)).isoformat()
    assert stream(spark, journal, tmp_path / "time", startingOffset=noon) == list(range(200, 300))


def test_journals_of_many_nodes_are_read_as_one(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path / "n1" / "journal", messages(10), node="n1")
    write_journal(tmp_path / "n2" / "journal", messages(20), node="n2")
    glob = f"{tmp_path}/n*/journal"
    counts = {row.node: row["count"] for row in read(spark, glob).groupBy("node").count().collect()}
    assert counts == {"n1": 10, "n2": 20}
    assert len(stream(spark, glob, tmp_path / "out")) == 30
    write_journal(tmp_path / "n3" / "journal", messages(5), node="n3")
    assert len(stream(spark, glob, tmp_path / "out")) == 35


def test_filters_are_applied_while_reading(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"channel": None if number % 10 == 0 else f"c/{number % 3}", "size": number} for number in range(100)]
    write_journal(tmp_path, rows, batch=10)
    frame = read(spark, tmp_path)
    cases = {
        "offset >= 20 and offset < 23": [20, 21, 22],
        "offset = 7": [7],
        "size in (3, 5)": [3, 5],
        "channel is null and offset > 50": [60, 70, 80, 90],
        "channel = 'c/1' and size <= 7": [1, 4, 7],
        "channel not in ('c/0', 'c/1') and size < 9": [2, 5, 8],
        "channel <> 'c/0' and size < 6": [1, 2, 4, 5],
        "channel like 'c/%' and size < 3": [1, 2],
        "channel like '%/2' and size < 6": [2, 5],
        "channel like '%/%' and size < 3": [1, 2],
        "ts >= timestamp'2026-01-31 12:00:00.098' and kind = 'publish'": [98, 99],
        "ts < timestamp'2026-01-31 12:00:00.002'": [0, 1],
        "size % 50 = 1": [1, 51],
    }
    for condition, expected in cases.items():
        found = frame.where(condition)
        assert sorted(row.offset for row in found.collect()) == expected, condition
    plan = frame.where("offset = 7").select("offset")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    # Only the batch with that row was opened: what is planned is what is needed.
    assert frame.where("offset = 7").rdd.getNumPartitions() == 1


def test_rows_that_are_gone_stop_a_stream_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, messages(100))
    stream(spark, journal, out)
    write_journal(journal, messages(300), batch=100, segment_octets=1)
    for path in sorted(journal.glob("*.arrow"))[:2]:
        path.with_suffix(".index").unlink()
        path.unlink()
    with pytest.raises(PySparkException, match="has not read offsets 100 to 199, and they are gone"):
        stream(spark, journal, out)
    found = stream(spark, journal, out, failOnDataLoss="false")
    assert found == [*range(100), *range(200, 400)]


def test_a_named_reader_holds_what_a_stream_still_needs(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_journal(journal, messages(250))
    stream(spark, journal, tmp_path / "out", reader="lake", maxRowsPerTrigger="100")
    found = NamedReaders(journal).get("lake")
    assert found is not None
    # Spark tells what is done when it plans the step after it.
    assert found.offset in {200, 250}


def test_an_unknown_option_names_the_nearest_right_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="option 'chanels': is not known; did you mean 'channels'"):
        read(spark, tmp_path, chanels="a").count()


def test_the_size_of_a_partition_is_bounded(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path, messages(1000), batch=100)
    frame = read(spark, tmp_path, rowsPerPartition="300")
    assert frame.rdd.getNumPartitions() == 4
    assert frame.agg(F.sum("size")).first() is not None


def test_a_stream_with_ticks_learns_how_late_it_is_once_all_is_read(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path / "n1", messages(30), node="n1")
    write_journal(tmp_path / "n2", messages(20), node="n2")
    write_journal(tmp_path / "n3", [], node="n3")
    before = datetime.now(UTC).timestamp()
    for _ in range(2):
        stream(spark, f"{tmp_path}/n*", tmp_path / "out", ticks="60")
    rows = spark.read.parquet(str(tmp_path / "out" / "rows"))
    assert rows.where("kind = 'publish'").count() == 50
    ticks = rows.where("kind = 'tick'").orderBy("ts", "node").collect()
    assert [(tick.node, tick.offset) for tick in ticks] == [("n1", 30), ("n2", 20)] * 2
    assert all(before <= tick.ts.timestamp() <= datetime.now(UTC).timestamp() for tick in ticks)
    assert {bytes(tick.body) for tick in ticks} == {b""}


def test_with_some_kinds_only_ticks_tell_the_time_of_the_others(spark: SparkSession, tmp_path: Path) -> None:
    rows = [*messages(10), *messages(1, kind="request", channel="s/m", correlation="1"), *messages(20)]
    write_journal(tmp_path / "journal", rows, node="n1")
    stream(spark, tmp_path / "journal", tmp_path / "out", ticks="60", kinds="request", columns="kind,offset,node,ts")
    found = spark.read.parquet(str(tmp_path / "out" / "rows")).orderBy("ts").collect()
    assert [(row.kind, row.offset) for row in found] == [("request", 10), ("tick", 31), ("tick", 31)]
    assert found[1].ts.timestamp() == (START + timedelta(milliseconds=30)).timestamp()


def test_a_journal_is_read_from_a_running_hub(spark: SparkSession, tmp_path: Path) -> None:
    with running_hub("journal.enabled=true", f"journal.path={tmp_path / 'journal'}") as hub:
        with speak("mqtt", hub.addresses) as client:
            for number in range(20):
                client.publish("from/afar", str(number).encode())
            client.subscribe("sync")
            client.publish("sync", b"all before this is safe as well")
            client.receive()
        rows = read(spark, hub.addresses["http"], channels="from/**", kinds="publish").collect()
        assert sorted(int(row.body) for row in rows) == list(range(20))
        offsets = stream(spark, hub.addresses["http"], tmp_path / "out", channels="from/**", kinds="publish")
        assert len(offsets) == 20
