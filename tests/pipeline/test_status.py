from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from polywire.pipeline.errors import OptionError, PipelineError
from polywire.pipeline.runner import check_passed, reason_of, trigger_interval
from polywire.pipeline.status import Lag, Notes, lag_now, next_time, of_progress, read_statuses, write_status
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
