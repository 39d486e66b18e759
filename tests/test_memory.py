"""The allocator's settings."""

import sys

from polywire.memory import tune_allocator


def test_glibc_takes_the_settings() -> None:
    assert tune_allocator() is sys.platform.startswith("linux")
