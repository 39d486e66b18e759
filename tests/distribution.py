"""A pytest plugin: which tests go to which worker, and in which order.

The tests of a file go to the same worker, so that what they share (a hub, a site, a wheel) is started once. All tests
that share a Spark session are one unit. What takes long and shares nothing is a unit by itself. Units that take long
come first: one that came last would leave all other workers without anything to do.

There are three workers for two processors (``-n auto``), as tests wait much of their time: for a timeout, a
pause, a program that starts.

``--dist=loadgroup`` would do, but pytest-xdist 3.8 forgets the groups under pytest 9.2 without a word.
"""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SHARED = "tests/pipeline/"
"""Tests below this use one Spark session."""

ALONE = (
    "tests/demo/test_story.py",
    "tests/docs/test_walkthroughs.py",
    "tests/pipeline/test_cluster.py",
)
"""Files whose tests share nothing."""

PAGE_WITH_SPARK = "tests/docs/test_walkthroughs.py::test_a_page_that_starts_spark_works_as_it_is_written"

LONGEST = (
    "tests/faults/test_pipeline_killed.py",
    f"{PAGE_WITH_SPARK}[tutorials/data-engineer.md]",
    "tests/pipeline/test_cluster.py",
    "tests/pipeline/",
    "tests/demo/",
    PAGE_WITH_SPARK,
    "tests/faults/",
    "tests/fuzz/",
    "tests/docs/",
    "tests/interop/",
    "tests/journal/test_crash.py",
    "tests/test_",
    "tests/cli/",
    "tests/examples/",
    "tests/benchmarks/",
)
"""How tests begin that come first, the longest before the others; then comes the rest."""


def pytest_xdist_auto_num_workers() -> int:
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) * 3 // 2


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Units":
    return Units(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.nodeid))


def unit(test: str) -> str:
    """The name of the unit that a test belongs to."""
    file = test.partition("::")[0]
    if file in ALONE:
        return test
    return SHARED if file.startswith(SHARED) else file


def place(test: str) -> int:
    """Where a test comes, from 0."""
    return next((at for at, beginning in enumerate(LONGEST) if test.startswith(beginning)), len(LONGEST))


class Units(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Hands out units in the order in which they are collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
