"""Tests are handed out so that what they share is started once, and that no worker waits for another at the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distribution import LONGEST, PAGE_WITH_SPARK, place, unit
from tests.docs import test_walkthroughs

ROOT = Path(__file__).parent.parent
FILE = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{__file__} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


def test_the_tests_of_a_file_run_in_one_worker(tmp_path: Path) -> None:
    files = [tmp_path / f"test_{name}.py" for name in "abcd"]
    for file in files:
        file.write_text(FILE)
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "2", *files],
        cwd=ROOT,
        env={**os.environ, "NOTES": str(tmp_path / "notes")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert len(ran) == 24
    assert len({tuple(each) for each in ran}) == 4
    assert len({worker for _, worker in ran}) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("tests/hub/test_hub.py::test_a", "tests/hub/test_hub.py::test_b[1]", True),
        ("tests/hub/test_hub.py::test_a", "tests/hub/test_work.py::test_a", False),
        ("tests/pipeline/test_sink.py::test_a", "tests/pipeline/tables/test_golden.py::test_b", True),
        ("tests/pipeline/test_sink.py::test_a", "tests/pipeline/test_cluster.py::test_b", False),
        ("tests/docs/test_walkthroughs.py::test_a[a.md]", "tests/docs/test_walkthroughs.py::test_a[b.md]", False),
    ],
)
def test_what_shares_something_is_one_unit(one: str, other: str, same: bool) -> None:
    assert (unit(one) == unit(other)) == same


def test_what_takes_long_comes_first_and_is_there() -> None:
    assert [place(each) for each in LONGEST] == list(range(len(LONGEST)))
    assert place("tests/hub/test_hub.py::test_a") == len(LONGEST)
    assert all(list(ROOT.glob(f"{each.partition('::')[0]}*")) for each in LONGEST)
    assert hasattr(test_walkthroughs, PAGE_WITH_SPARK.partition("::")[2])
