"""A few rounds of ``python -m faults kills``: nothing acknowledged is lost, whatever happens to the hub."""

import subprocess
import sys
from pathlib import Path

import pytest

from faults import kills
from faults.checks import Load
from faults.kills import FAULTS, campaign

SEED = 20


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_the_hub_is_killed_twenty_times(tmp_path: Path) -> None:
    tally = campaign(SEED, 20, only=frozenset(FAULTS), minutes=None, say=print, keep=tmp_path)
    assert tally.counts["kills"] == 20
    assert tally.counts["messages acknowledged"] > 100


@pytest.mark.timeout(300)
def test_a_broken_promise_is_found_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Load.join

    def join_and_lie(load: Load) -> None:
        """Pretend that something was acknowledged which never was."""
        honest(load)
        numbers = load.publishers[0].queued
        numbers.safe.add(numbers.following())

    monkeypatch.setattr(Load, "join", join_and_lie)
    with pytest.raises(kills.FailureError, match=r"queue/umq lost \[\d+\]") as caught:
        campaign(7, 1, only=frozenset(), minutes=None, say=print, keep=tmp_path)
    assert caught.value.seed == 7
    assert list(caught.value.kept.glob("*.arrow"))


def test_the_help_shows_examples_and_a_wrong_fault_is_refused() -> None:
    command = [sys.executable, "-m", "faults"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)  # noqa: S603 - our own
    assert "python -m faults kills --kills 50 --seed 7" in shown.stdout
    wrong = subprocess.run([*command, "kills", "--only", "fire"], capture_output=True, text=True, check=False)  # noqa: S603
    assert wrong.returncode == 2
    assert "no fault fire; there are housekeeping, clock" in wrong.stderr
