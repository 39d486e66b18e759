"""A short run of ``python -m faults pipeline``: each row counts once in every table, whatever is killed."""

import collections
from pathlib import Path

import pytest

from faults import pipeline
from faults.pipeline import BUILT_IN, VICTIMS, FailureError, campaign, planned

SEED = 7
"""Kills an executor, the driver and the hub, each after a step."""


@pytest.mark.timeout(1500)
def test_every_row_counts_once_whatever_is_killed(tmp_path: Path) -> None:
    tally = campaign(SEED, 3, minutes=10, say=print, keep=tmp_path)
    assert sum(count for what, count in tally.items() if what.startswith("kills: ")) == 3
    assert all(tally[f"rows: {name}"] > 0 for name in BUILT_IN)
    assert tally["rows published back"] > 0


def test_a_plan_follows_from_its_seed_and_kills_everything_there_is() -> None:
    plan = planned(26, 50)
    assert plan == planned(26, 50) != planned(27, 50)
    assert collections.Counter(kill.victim for kill in plan) == VICTIMS


def test_a_row_that_is_lost_or_doubled_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"a": 1}, {"a": 2}]
    with pytest.raises(AssertionError, match=r"table calls: 1 rows are missing, 1 should not be there\n.*'a': 2"):
        pipeline.check_equal("calls", [{"a": 1}, {"a": 3}], rows)

    def broken(run: pipeline.Campaign, minutes: float) -> None:
        raise AssertionError(f"a row is lost within {minutes} min of {run}")

    monkeypatch.setattr(pipeline.Campaign, "run", broken)
    with pytest.raises(FailureError, match="a row is lost") as caught:
        campaign(7, 1, minutes=1, say=print, keep=tmp_path)
    assert caught.value.kept == tmp_path / "pipeline-7"
