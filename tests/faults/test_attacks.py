"""Every attack, beside well-behaved clients of every protocol. ``make faults`` shows how fast these are served."""

from pathlib import Path

import pytest

from faults.attacks import attacked
from tests.faults.attackers import ATTACKS

SECONDS = 1.0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("attack", [attack.__name__ for attack in ATTACKS])
def test_the_well_behaved_lose_nothing_and_the_hub_stays_small(attack: str, tmp_path: Path) -> None:
    assert attacked(attack, tmp_path, SECONDS, forked=True).problems == []
