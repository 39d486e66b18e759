"""A hub for all commands that talk to one."""

from collections.abc import Iterator

import pytest

from tests.hub_process import HubProcess, running_hub


@pytest.fixture(scope="package")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process
