import pytest

from polywire.journal.storage import JournalAwayError
from polywire.pipeline.errors import DataLossError
from polywire.pipeline.runner import QueryFailedError, failure_of


@pytest.mark.parametrize(
    "words",
    [
        "org.apache.spark.SparkException: Python worker failed to connect back.",
        "Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "Traceback (most recent call last):\n  File x\nConnectionRefusedError: [Errno 111] Connection refused",
        f"Traceback (most recent call last):\n  File x\n{JournalAwayError.__name__}: http://hub: no answer",
        "Caused by: java.net.ConnectException: Connection refused",
    ],
)
def test_what_may_pass_is_told_from_what_will_not(words: str) -> None:
    assert failure_of(words).passing


@pytest.mark.parametrize(
    "error", [ValueError("no such thing"), DataLossError("journal", 3, 7), "[UNRESOLVED_COLUMN] no column 'chanel'"]
)
def test_what_will_be_the_same_next_time_does_not_pass(error: object) -> None:
    assert not failure_of(error).passing


def test_an_error_says_how_often_it_was_tried() -> None:
    assert str(QueryFailedError("rows", "no answer")) == "the query 'rows' failed: no answer"
    error = QueryFailedError("rows", "no answer", 8)
    assert str(error) == "the query 'rows' failed (also after 8 restarts): no answer"
    assert (error.query, error.reason, error.tries) == ("rows", "no answer", 8)
