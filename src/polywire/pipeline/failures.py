"""What made a streaming query fail: in one line, and whether it may pass by itself.

``running`` starts a query again that failed for a passing reason. Which those are is read from Spark's words: what
happened in a worker or in Spark itself comes as text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from polywire.pipeline.errors import PipelineError

TRACEBACK: Final = "Traceback (most recent call last)"
LONGEST_REASON: Final = 500
"""Characters of an error that are shown."""

LONGEST_PAUSE: Final = 30.0
"""Seconds between two tries, at most."""

PASSING: Final = (
    r"\bJournalAwayError\b",  # a hub that starts again
    r"Python worker failed to connect back",  # a machine that is too busy
    r"Python worker exited unexpectedly",
    r"ExecutorLostFailure",
    r"\b(Connection(Refused|Reset|Aborted)?|BrokenPipe|Timeout)Error\b",
    r"java\.net\.(Connect|SocketTimeout|NoRouteToHost)Exception",
    r"AWS Error (NETWORK_CONNECTION|SERVICE_UNAVAILABLE|SLOW_DOWN|REQUEST_TIMEOUT|INTERNAL_FAILURE)",
)
"""Words of failures that have nothing to do with the rows or the tables."""


class QueryFailedError(PipelineError):
    """A streaming query ended with an error. ``query`` is its name, ``reason`` what Spark tells, short.

    ``tries`` is how often it was started again before that without getting anything done.
    """

    def __init__(self, query: str, reason: str, tries: int = 0) -> None:
        often = f" (and so it did when started again, {tries} times)" if tries else ""
        super().__init__(f"the query {query!r} failed{often}: {reason}")
        self.query = query
        self.reason = reason
        self.tries = tries


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended, in one line. ``passing``: the same may go well later."""

    reason: str
    passing: bool


def failure_of(error: Any) -> Failure:
    """What an error means."""
    return Failure(reason_of(error), any(re.search(words, str(error)) for words in PASSING))


def pause_before(attempt: int, first: float) -> float:
    """Seconds to wait before a try, the first one being number 1: twice as long each time."""
    return min(first * 2.0 ** min(attempt - 1, 16), LONGEST_PAUSE)


def told(write: Callable[[DataFrame, int], None], failures: list[Failure]) -> Callable[[DataFrame, int], None]:
    """The same, with an error remembered here and told to Spark in one line.

    Spark searches what it is told with a regular expression that overflows the stack on a long text, and the query then
    ends without an error to be seen.
    """

    def written(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            failures.append(failure_of(error))
            raise PipelineError(failures[-1].reason) from None

    return written


def reason_of(error: Any) -> str:
    """The line of an error that says what is the matter: the one that ends a Python traceback, else the first."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = lines[0].strip() if lines else type(error).__name__
    inside = False
    for line in lines:
        if TRACEBACK in line:
            inside = True
        elif inside and not line[0].isspace():
            found, inside = line, False
    return found[:LONGEST_REASON]
