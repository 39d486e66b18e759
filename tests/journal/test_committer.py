"""The thread that writes: in order, everything, however often it takes."""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polywire.journal import open as open_journal
from polywire.journal.columns import Columns
from polywire.journal.committer import Committer
from polywire.journal.format import values
from polywire.journal.kinds import PUBLISH
from tests.journal.failing_log import SECONDS, FailingLog

RETRY = 0.01


class Office:
    """A committer, and the thread it tells things."""

    def __init__(self, path: Path) -> None:
        self.log = FailingLog(path)
        self.told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.heard: list[str] = []
        self.committer = Committer(
            self.log, self.told.put, self.hear("failed"), self.hear("recovered"), retry_seconds=RETRY
        )
        self._next = 0

    def hear(self, words: str) -> Callable[[], None]:
        """A function that is told something."""
        return lambda: self.heard.append(words)

    def columns(self, count: int) -> Columns:
        """So many rows."""
        made = Columns(self._next)
        for number in range(count):
            made.append(PUBLISH, 2, 0, 1, 1_000_000, "me", "a", b"%d" % (self._next + number))
        made.close()
        self._next += count
        return made

    def submit(self, words: str, *counts: int) -> None:
        """Give it a group to write."""
        self.committer.submit([self.columns(count) for count in counts], self.hear(words))

    def listen(self, words: str) -> None:
        """Do as told until these words are heard."""
        while words not in self.heard:
            self.told.get(timeout=SECONDS)()

    def listen_to_the_rest(self) -> list[str]:
        """Do everything that was told; what was heard in all."""
        while not self.told.empty():
            self.told.get()()
        return self.heard

    def bodies(self) -> list[int]:
        """What is in the journal."""
        batches = open_journal(self.log.path).scan(columns=["body"])
        return [int(body) for batch in batches for body in values(batch.column("body"))]


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.log.go.set()
    made.committer.stop()
    made.log.close()


def test_groups_are_written_in_order_and_each_is_told_when_it_is_safe(office: Office) -> None:
    office.submit("first", 2, 3)
    office.submit("second", 1)
    assert office.committer.stop()
    assert office.listen_to_the_rest() == ["first", "second"]
    assert office.log.batches == [2, 3, 1]
    assert office.bodies() == list(range(6))


def test_a_batch_that_can_t_be_written_is_tried_until_it_can(office: Office) -> None:
    office.log.break_down()
    office.submit("first", 2)
    office.submit("second", 1)
    office.listen("failed")
    while office.log.tries < 3:
        office.log.tried.clear()
        assert office.log.tried.wait(SECONDS)
    assert office.listen_to_the_rest() == ["failed"]
    office.log.mend()
    office.listen("second")
    assert office.heard == ["failed", "recovered", "first", "second"]
    assert office.bodies() == [0, 1, 2]


def test_a_failure_is_told_each_time_it_begins(office: Office) -> None:
    for _ in range(2):
        office.log.break_down()
        office.submit("written", 1)
        office.listen("failed")
        office.log.mend()
        office.listen("written")
        assert office.heard == ["failed", "recovered", "written"]
        office.heard.clear()


def test_a_failure_within_a_group_tells_nothing_of_the_group(office: Office) -> None:
    office.log.go.clear()
    office.submit("first", 1, 1)
    assert office.log.tried.wait(SECONDS)
    office.log.break_down()
    office.log.go.set()
    office.listen("failed")
    office.log.mend()
    office.listen("first")
    assert office.heard == ["failed", "recovered", "first"]
    assert office.bodies() == [0, 1]


def test_what_can_t_be_made_into_a_batch_is_a_failure_like_any_other(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Columns) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(office.committer._maker, "make", broken)
        office.submit("first", 1)
        office.listen("failed")
    office.listen("first")
    assert office.bodies() == [0]


def test_stopping_writes_what_was_submitted(office: Office) -> None:
    office.log.go.clear()
    office.submit("first", 1)
    office.submit("second", 1)
    office.log.go.set()
    assert office.committer.stop()
    assert office.bodies() == [0, 1]


def test_stopping_does_not_wait_for_a_disk_that_fails(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    office.log.break_down()
    office.submit("first", 1)
    office.listen("failed")
    assert not office.committer.stop()
    assert office.listen_to_the_rest() == ["failed"]
    assert "the disk fails; nothing is acknowledged until it can" in caplog.text
