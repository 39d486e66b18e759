"""Journals of nodes are closed when their test is over: a worker that runs all tests may only have so many files open."""

from collections.abc import Iterator

import pytest

from tests.fabric.nodes import Disk


@pytest.fixture(autouse=True)
def journals_are_closed() -> Iterator[None]:
    yield
    while Disk.opened:
        Disk.opened.pop().log.close()
