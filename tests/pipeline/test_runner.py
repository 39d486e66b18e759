"""Jobs run to their end, and queries that fail for a passing reason are started again; every row counts once."""

import logging
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from polywire.pipeline.errors import PipelineError
from polywire.pipeline.lake import Lake
from polywire.pipeline.query import Questions, ask_spark
from polywire.pipeline.runner import Job, QueryFailedError, Runner
from polywire.pipeline.status import Notes, Status, read_statuses
from polywire.pipeline.table import table
from polywire.pipeline.tables import TABLES
from tests.hub_process import running_hub
from tests.interop.speakers import speak
from tests.pipeline.traffic import messages, write_journal

pytestmark = pytest.mark.timeout(240)


def merged(parts: DataFrame) -> DataFrame:
    return parts.groupBy("channel", "day").sum("octets").toDF("channel", "day", "octets")


@table(columns=("ts", "channel", "size"), merge=merged)
def octets(rows: DataFrame) -> DataFrame:
    """Bytes of each channel and day."""
    days = rows.withColumn("day", rows["ts"].cast("date"))
    return days.groupBy("channel", "day").sum("size").toDF("channel", "day", "octets")


@table(after="messages")
def spoken(rows: DataFrame) -> DataFrame:
    """Texts of messages to some channels."""
    return rows.filter("channel like 'c/%'").select("channel", "text")


def job(folder: Path, *wanted: str, once: bool = True, **options: str) -> Job:
    known = {**TABLES, "octets": octets, "spoken": spoken}
    return Job(
        str(folder / "journal"), str(folder / "lake"), known, wanted, once=once, trigger="100ms", options=options
    )


def test_tables_of_ours_and_of_others_are_written_once_over_many_runs(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[list[Status]] = []
    for number in range(2):
        write_journal(tmp_path / "journal", [*messages(10), *messages(5, channel=f"c/{number}")])
        runner = Runner(spark, job(tmp_path, "messages", "octets"))
        assert runner.start() == ["rows"]
        runner.follow(seen.append)
    lake = str(tmp_path / "lake")
    known = job(tmp_path).tables
    questions = Questions(lake)
    sql = "SELECT channel, octets FROM octets ORDER BY channel"
    for found in (questions.ask(sql), ask_spark(spark, Lake(lake, known), sql, 10)):
        assert (found.columns, found.rows) == (["channel", "octets"], [("a/b", 20), ("c/0", 5), ("c/1", 5)])
        assert found.notes == []
    assert questions.ask("SELECT count(*) AS n FROM messages").rows == [(30,)]
    assert questions.ask("SELECT channel, max(text) FROM spoken GROUP BY channel ORDER BY channel").rows == [
        ("c/0", "4"),
        ("c/1", "4"),
    ]
    (status,) = read_statuses(Notes(lake))
    assert (status.state, status.batch, status.place) == ("ended", 1, {"journal": 30})
    assert status.tables == ("messages", "octets", "spoken")
    assert seen[-1][0].rows == 15
    with pytest.raises(PipelineError, match=r"nothing.*tables: messages, octets, spoken"):
        questions.ask("SELECT * FROM nothing")
    with pytest.raises(PipelineError, match='for the column of this name write it in double quotes: "offset"'):
        questions.ask("SELECT ts FROM messages ORDER BY offset")
    with pytest.raises(PipelineError, match=r'"chanel" not found.* "channel"'):
        questions.ask("SELECT chanel FROM messages")
    questions.close()
    with pytest.raises(PipelineError, match=r"nothing.*tables: messages, octets, spoken"):
        ask_spark(spark, Lake(lake, known), "SELECT * FROM nothing", 10)


def test_a_run_goes_on_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal", messages(10))
    runner = Runner(spark, job(tmp_path, "octets", once=False))
    runner.start()
    writes = 1

    def watch(statuses: list[Status]) -> None:
        nonlocal writes
        if statuses[0].place == {"journal": 10 * writes}:
            if writes == 3:
                runner.stop()
            else:
                write_journal(tmp_path / "journal", messages(10))
                writes += 1

    runner.follow(watch)
    (status,) = read_statuses(Notes(str(tmp_path / "lake")))
    assert status.state == "stopped"
    assert status.place == {"journal": 30}


def test_a_query_that_fails_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal", messages(300), segment_octets=1)
    run = Runner(spark, job(tmp_path, "octets"))
    run.start()
    run.follow()
    for name in (tmp_path / "journal").iterdir():
        name.unlink()
    write_journal(tmp_path / "journal", messages(3))
    again = Runner(spark, job(tmp_path, "octets"))
    again.start()
    with pytest.raises(QueryFailedError, match="read up to offset 300, but the journal ends at 3"):
        again.follow()
    assert read_statuses(Notes(str(tmp_path / "lake")))[0].state == "failed"


def test_a_table_that_fails_is_told_however_long_its_error_is(spark: SparkSession, tmp_path: Path) -> None:
    @table
    def bad(rows: DataFrame) -> DataFrame:
        raise ValueError("no such thing" + " at all" * 20_000 + f" in {rows.columns}")

    write_journal(tmp_path / "journal", messages(3))
    failing = Runner(spark, Job(str(tmp_path / "journal"), str(tmp_path / "lake"), {"bad": bad}, once=True))
    failing.start()
    with pytest.raises(QueryFailedError, match="no such thing at all"):
        failing.follow()
    assert read_statuses(Notes(str(tmp_path / "lake")))[0].state == "failed"


def test_a_lake_without_tables_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="pipeline run --once"):
        Questions(str(tmp_path))


PAUSE = 0.2


def published(spark: SparkSession, lake: Path) -> list[str]:
    rows = Lake(lake).read("messages", spark).filter("kind = 'publish'")
    return sorted(row["text"] for row in rows.select("text").collect())


def test_a_hub_that_goes_and_comes_back_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sets = ("journal.enabled=true", f"journal.path={tmp_path / 'journal'}")
    states: list[str] = []
    with ExitStack() as stack:
        hub = stack.enter_context(running_hub(*sets))
        http = hub.addresses["http"]

        def publish(number: int) -> None:
            with speak("mqtt", hub.addresses) as speaker:
                speaker.publish("a/b", str(number).encode())

        publish(0)
        job = Job(http, str(tmp_path / "lake"), TABLES, ("messages",), trigger="100ms")
        runner = Runner(spark, job, pause=PAUSE)
        runner.start()

        def watch(statuses: list[Status]) -> None:
            nonlocal hub
            (status,) = statuses
            if status.state == "running" and not states and status.rows:
                hub.stop(signal.SIGKILL)
                states.append("killed")
            elif status.state == "retrying" and states == ["killed"]:
                hub = stack.enter_context(running_hub(*sets, f"listen.http={http}"))
                publish(1)
                states.append("back")
            elif states == ["killed", "back"] and published(spark, tmp_path / "lake") == ["0", "1"]:
                runner.stop()

        with caplog.at_level(logging.WARNING, "polywire.pipeline"):
            runner.follow(watch)
    assert states == ["killed", "back"]
    assert published(spark, tmp_path / "lake") == ["0", "1"]
    assert "the query 'rows' failed: " in caplog.text
    assert re.search(rf"restarting it in \d+\.\d s \(attempt 1 of {job.retries}\)", caplog.text)
    assert read_statuses(Notes(str(tmp_path / "lake")))[0].state == "stopped"


def test_a_batch_that_failed_in_the_middle_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    fails = ["Python worker failed to connect back.", "ExecutorLostFailure"]

    @table
    def shaky(rows: DataFrame) -> DataFrame:
        if fails:
            raise RuntimeError(fails.pop())
        return rows.select("offset")

    write_journal(tmp_path / "journal", messages(10))
    tables = {"messages": TABLES["messages"], "shaky": shaky}
    runner = Runner(spark, Job(str(tmp_path / "journal"), str(tmp_path / "lake"), tables, once=True), pause=PAUSE)
    runner.start()
    runner.follow()
    assert fails == []
    lake = Lake(tmp_path / "lake", tables)
    assert lake.read("messages", spark).count() == 10
    assert sorted(row["offset"] for row in lake.read("shaky", spark).collect()) == list(range(10))


def test_a_hub_that_stays_away_is_given_up(spark: SparkSession, tmp_path: Path) -> None:
    job = Job("http://127.0.0.1:1", str(tmp_path / "lake"), TABLES, ("messages",), retries=2)
    runner = Runner(spark, job, pause=PAUSE)
    runner.start()
    with pytest.raises(QueryFailedError, match=r"also after 2 restarts\): .*no answer") as caught:
        runner.follow()
    assert caught.value.tries == 2
    assert read_statuses(Notes(str(tmp_path / "lake")))[0].state == "failed"
