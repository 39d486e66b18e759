"""The allocator's settings, and a process without pandas."""

import subprocess
import sys

from polywire.process import tune_allocator


def test_glibc_takes_the_settings() -> None:
    assert tune_allocator() is sys.platform.startswith("linux")


def test_arrow_works_without_pandas_once_that_is_left_out() -> None:
    code = """
import sys
from polywire.process import leave_out_pandas
leave_out_pandas()
leave_out_pandas()
import pyarrow as pa
assert pa.array(["a", None], pa.utf8()).to_pylist() == ["a", None]
assert "pandas" not in sys.modules
assert sum("NoPandas" in type(finder).__name__ for finder in sys.meta_path) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - ours
