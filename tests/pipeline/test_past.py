"""What a lake still has of the past: versions to query, what made them, and days that are deleted for their age."""

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from polywire.cli import main
from polywire.pipeline.errors import OptionError
from polywire.pipeline.runner import days_kept
from tests.pipeline.traffic import Row, messages, write_journal

pytestmark = pytest.mark.timeout(400)

NOW = datetime.now(UTC)
OLD, RECENT = NOW - timedelta(days=100), NOW - timedelta(days=50)


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session that commands use, as one runs; they take signals that belong to pytest."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield spark
    for number, handler in before.items():
        signal.signal(number, handler)


class Pipeline:
    """The command, at work on a lake."""

    def __init__(self, folder: Path) -> None:
        self.journal, self.lake = folder / "journal", folder / "lake"

    def __call__(self, *words: str) -> str:
        result = CliRunner().invoke(main.app, ["pipeline", *words, "--lake", str(self.lake)])
        assert result.exit_code == 0, result.output
        return result.stdout

    def run(self, rows: list[Row], *words: str) -> None:
        """Write rows, and let the pipeline catch up."""
        write_journal(self.journal, rows)
        self("run", "--once", "--journal", str(self.journal), *words)

    def query(self, sql: str, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("query", sql, "-o", "json", *words).splitlines()]

    def counted(self, table: str, *words: str) -> int:
        (row,) = self.query(f"SELECT count(*) AS n FROM {table}", *words)  # noqa: S608 - our own
        return int(row["n"])

    def history(self, table: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("history", table, "-o", "json").splitlines()]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def days(pipeline: Pipeline, table: str) -> list[str]:
    return [row["day"] for row in pipeline.query(f"SELECT DISTINCT day FROM {table} ORDER BY day")]  # noqa: S608 - as above


def test_days_older_than_what_is_kept_are_deleted_and_stay_so(pipeline: Pipeline) -> None:
    rows = [row for moment in (OLD, RECENT, NOW) for row in messages(10, ts=moment)]
    words = ("--tables", "messages,traffic,demand", "--keep", "90d,demand=30d")
    pipeline.run(rows, *words)
    today, recent, old = (moment.date().isoformat() for moment in (NOW, RECENT, OLD))
    assert days(pipeline, "messages") == [recent, today]
    assert days(pipeline, "traffic") == [recent, today]
    assert days(pipeline, "demand") == [today]
    pipeline.run(messages(5, ts=NOW), *words)
    assert days(pipeline, "traffic") == [recent, today]
    assert pipeline.counted("messages") == 25
    assert [one["what"] for one in pipeline.history("messages")].count("rows older than 90 days deleted") == 1
    version = next(one["version"] for one in pipeline.history("messages") if one["what"].startswith("batch"))
    assert version > 0
    assert pipeline.counted("messages", "--version", "0") == 30  # what was deleted can be asked for a day more
    assert old in [row["day"] for row in pipeline.query("SELECT DISTINCT day FROM messages", "--version", "0")]
    assert "✗" not in pipeline("doctor")


def test_every_version_of_a_run_can_be_asked_for(pipeline: Pipeline) -> None:
    moments = []
    for number in range(3):
        pipeline.run(messages(10, channel=f"c/{number}"), "--tables", "messages,traffic")
        moments.append(datetime.now(UTC).isoformat())
    told = pipeline.history("messages")
    assert [(one["version"], one["what"]) for one in told] == [(n, f"batch {n} of rows") for n in (2, 1, 0)]
    assert [one["time"] for one in told] == sorted((one["time"] for one in told), reverse=True)
    for number in range(3):
        assert pipeline.counted("messages", "--version", str(number)) == 10 * (number + 1)
        assert pipeline.counted("messages", "--at", moments[number]) == 10 * (number + 1)
        assert pipeline.counted("traffic", "--at", moments[number]) == number + 1
    assert pipeline.counted("messages", "--at", moments[1], "--engine", "spark") == 20
    result = CliRunner().invoke(
        main.app, ["pipeline", "query", "SELECT 1 FROM messages", "--version", "9", "--lake", str(pipeline.lake)]
    )
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (None, {}),
        ("90d", {"a": 90, "b": 90}),
        ("7", {"a": 7, "b": 7}),
        ("b=365d, 90 days", {"a": 90, "b": 365}),
        ("90d,b=365d", {"a": 90, "b": 365}),
        ("a=30d", {"a": 30}),
    ],
)
def test_what_is_kept_is_told_for_all_tables_or_for_some(text: str | None, kept: dict[str, int]) -> None:
    assert days_kept(text, ["a", "b"]) == kept


@pytest.mark.parametrize(
    ("text", "words"), [("soon", "write 90d"), ("c=9d", "no table 'c'; there is a, b"), ("0", "'0'")]
)
def test_what_can_not_be_kept_is_an_error(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        days_kept(text, ["a", "b"])
