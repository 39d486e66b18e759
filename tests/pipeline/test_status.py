from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from polywire.cli.pipeline import progress_of
from polywire.pipeline.errors import OptionError, PipelineError
from polywire.pipeline.journals import Journals
from polywire.pipeline.runner import check_passed, reason_of, trigger_interval
from polywire.pipeline.status import (
    Lag,
    Notes,
    lag_now,
    next_time,
    of_progress,
    read_statuses,
    step_of,
    within,
    write_status,
)
from polywire.pipeline.tables import TABLES
from tests.pipeline.traffic import START, messages, write_journal

PROGRESS = {
    "batchId": 4,
    "durationMs": {"triggerExecution": 1500},
    "sources": [
        {"endOffset": '{"$tick": 5, "journal": 60}', "latestOffset": '{"journal": 90}', "processedRowsPerSecond": 20.0}
    ],
}


def test_a_status_is_what_spark_tells(tmp_path: Path) -> None:
    status = of_progress("rows", ("messages",), ("/j",), PROGRESS, state="running", rows=60)
    assert (status.batch, status.batch_seconds, status.rows_per_second) == (4, 1.5, 20.0)
    assert status.place == {"journal": 60}
    assert status.lag == 30
    write_status(Notes(str(tmp_path)), status)
    assert read_statuses(Notes(str(tmp_path))) == [status]


def test_a_query_that_has_done_nothing_yet_has_a_status() -> None:
    status = of_progress("rows", ("messages",), ("/j",), None, state="running", rows=0)
    assert (status.batch, status.lag) == (-1, 0)


def test_progress_within_a_step_is_told_in_rows_with_the_time_that_is_left(tmp_path: Path) -> None:
    write_journal(tmp_path, messages(100))
    notes = Notes(str(tmp_path / "lake"))
    offsets = tmp_path / "lake" / "_pipeline" / "checkpoints" / "rows" / "offsets"
    offsets.mkdir(parents=True)
    for batch, end in enumerate((40, 80)):
        (offsets / str(batch)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{{"$tick": 5, "journal": {end}}}')
    found = notes.offsets("rows", 1)
    assert notes.last_batch("rows") == 1
    assert notes.offsets("rows", 2) is None
    assert found is not None
    step = step_of(found, Journals((str(tmp_path),), None), since=10.0)
    assert (step.rows, step.begin, step.end, step.latest) == (40, {"journal": 40}, {"journal": 80}, {"journal": 100})
    before = of_progress("rows", ("messages",), (str(tmp_path),), None, state="running", rows=0)
    status = within(before, step, share=0.5, now=12.0)
    assert (status.step_done, status.step_rows, status.rows_per_second, status.lag) == (20, 40, 10.0, 60)
    assert status.remaining == 4.0
    assert progress_of(status) == ("60 of 100 rows", "10 rows/s", "0:04 left")
    assert progress_of(replace(status, state="retrying", reason="no answer")) == ("no answer", "retrying", "")
    assert progress_of(before) == ("starting", "0 rows/s", "")


def test_the_lag_is_that_of_now(tmp_path: Path) -> None:
    write_journal(tmp_path, messages(100))
    status = of_progress("rows", ("messages",), (str(tmp_path),), PROGRESS, state="ended", rows=60)
    lag = lag_now(status)
    assert lag is not None
    assert lag.rows == 40
    assert next_time(status) == START + timedelta(milliseconds=60)
    assert lag.seconds > (datetime.now(UTC) - START).total_seconds() - 60
    write_journal(tmp_path / "short", messages(60))
    assert lag_now(of_progress("rows", (), (str(tmp_path / "short"),), PROGRESS, state="ended", rows=0)) == Lag(0, 0.0)


def test_the_lag_behind_a_journal_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    assert lag_now(of_progress("rows", (), (str(tmp_path / "no"),), PROGRESS, state="ended", rows=0)) is None


def test_only_days_that_are_passed_are_made_anew(tmp_path: Path) -> None:
    write_journal(tmp_path, messages(100))
    behind = of_progress("rows", ("messages",), (str(tmp_path),), PROGRESS, state="ended", rows=60)
    chosen = (TABLES["messages"],)
    check_passed(chosen, {"messages": behind}, START)
    with pytest.raises(PipelineError, match=r"'rows' is at 2026-01-31 12:00:00, which is before 2026-02-01 00:00:00"):
        check_passed(chosen, {"messages": behind}, datetime(2026, 2, 1, tzinfo=UTC))
    with pytest.raises(PipelineError, match="never written here"):
        check_passed(chosen, {}, START)


@pytest.mark.parametrize(
    ("text", "interval"),
    [("1s", "1 seconds"), ("500ms", "500 milliseconds"), ("2 minutes", "2 minutes"), (" 1 h ", "1 hours")],
)
def test_an_interval_is_read(text: str, interval: str) -> None:
    assert trigger_interval(text) == interval


def test_what_is_no_interval_is_told() -> None:
    with pytest.raises(OptionError, match="write 1s, 500ms"):
        trigger_interval("often")


def test_of_a_long_error_the_line_that_says_it_is_shown() -> None:
    error = "[X] It failed\nTraceback (most recent call last):\n  File x\nValueError: no channel\n SQLSTATE: 1"
    assert reason_of(error) == "ValueError: no channel"
    assert reason_of("first\nsecond") == "first"
