"""One real hub for all tests of this folder that change nothing in it, and names nobody else uses."""

import itertools
from collections.abc import Iterator

import pytest

from tests.hub_process import HubProcess, running_hub

_NAMES = itertools.count()


@pytest.fixture(scope="session")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process
        assert process.stop() == 0


@pytest.fixture
def name() -> str:
    """A channel, or a service, of this test's own."""
    return f"n{next(_NAMES)}"
