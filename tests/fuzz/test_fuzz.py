"""A few seconds of coverage-guided fuzzing per codec."""

import importlib
import subprocess
import sys

import pytest

from polywire.protocols import PROTOCOLS

SECONDS = 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_seed_holds_the_contract(protocol: str) -> None:
    target = importlib.import_module(f"fuzz.targets.{protocol}")
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_few_seconds_of_fuzzing_find_nothing(protocol: str) -> None:
    command = [sys.executable, "-m", "fuzz", "--seconds", str(SECONDS), protocol]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout
