"""Queries that fail for a passing reason are started again, and count every row once."""

import logging
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from polywire.pipeline.failures import QueryFailedError
from polywire.pipeline.jobs import Job
from polywire.pipeline.lake import Lake
from polywire.pipeline.notes import Notes
from polywire.pipeline.running import Runner
from polywire.pipeline.status import Status, read_statuses
from polywire.pipeline.table import table
from polywire.pipeline.tables import TABLES
from tests.hub_process import running_hub
from tests.interop.speakers import speak
from tests.pipeline.traffic import messages, write_journal

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("spark")]

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
    assert f"it is started again in {PAUSE:g} s (try 1 of {job.retries})" in caplog.text
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
    assert not list((tmp_path / "lake" / "_staging").glob("*"))


def test_a_hub_that_stays_away_is_given_up(spark: SparkSession, tmp_path: Path) -> None:
    job = Job("http://127.0.0.1:1", str(tmp_path / "lake"), TABLES, ("messages",), retries=2)
    runner = Runner(spark, job, pause=PAUSE)
    runner.start()
    with pytest.raises(QueryFailedError, match=r"started again, 2 times\): .*no answer") as caught:
        runner.follow()
    assert caught.value.tries == 2
    assert read_statuses(Notes(str(tmp_path / "lake")))[0].state == "failed"
