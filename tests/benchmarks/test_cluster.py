"""The cluster benchmark's scenarios run, with tiny numbers; how fast they run is not a test's business."""

import pytest
from benchmarks.cluster import SCENARIOS, Sizes

TINY = Sizes(rounds=1, messages=2048, in_flight=200)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_measures_something(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.chdir(str(tmp_path))
    lines = list(SCENARIOS[name](TINY))
    assert lines
    for line in lines:
        assert line.goal() in str(line)
        assert name != "silence" or line.met(), line
