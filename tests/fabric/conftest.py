"""Closes the journals of nodes when their test is over: a worker that runs all tests may open only so many files."""

from collections.abc import Iterator

import pytest

from tests.fabric.nodes import Disk


@pytest.fixture(autouse=True)
def journals_are_closed() -> Iterator[None]:
    yield
    while Disk.opened:
        Disk.opened.pop().log.close()
