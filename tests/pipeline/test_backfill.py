"""Days that are made again from the journal are what the stream made of them, to the last row."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polywire.journal.kinds import LAST_FLAG
from polywire.pipeline.query import Questions
from polywire.pipeline.runner import Job, Runner, backfill
from polywire.pipeline.tables import TABLES
from tests.pipeline.traffic import Row, write_journal

pytestmark = pytest.mark.timeout(400)

DAY = date(2026, 1, 31)


def calls(first: int, count: int, at: datetime, *, answered: bool) -> list[Row]:
    found: list[Row] = []
    for number in range(first, first + count):
        more = {"channel": "oven/Heat", "correlation": f"c{number}", "ts": at, "protocol": "umq"}
        found.append({**more, "kind": "request", "flags": LAST_FLAG})
        if answered:
            found.append({**more, "kind": "reply", "flags": LAST_FLAG, "ts": at + timedelta(milliseconds=5)})
    return found


def test_a_backfilled_day_keeps_its_timeouts_and_what_is_made_of_them(spark: SparkSession, tmp_path: Path) -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    rows = [*calls(0, 20, noon, answered=True), *calls(20, 7, noon + timedelta(seconds=1), answered=False)]
    write_journal(tmp_path / "journal", rows)
    job = Job(str(tmp_path / "journal"), str(tmp_path / "lake"), TABLES, ("calls",), once=True)
    runner = Runner(spark, job)
    runner.start()
    runner.follow()
    asked = (
        "SELECT outcome, count(*) FROM calls GROUP BY outcome ORDER BY outcome",
        "SELECT calls, timeouts FROM latency",
    )
    wanted = [[("ok", 20), ("timeout", 7)], [(27, 7)]]

    def found() -> list[list[tuple[object, ...]]]:
        questions = Questions(job.lake)
        answers = [questions.ask(sql).rows for sql in asked]
        questions.close()
        return answers

    assert found() == wanted
    assert list(backfill(spark, job, DAY, DAY)) == ["calls", "latency"]
    assert found() == wanted
