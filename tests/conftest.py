"""What all tests share."""

import contextlib
import ctypes
import gc
import importlib.util
import os
import signal
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from polywire.process import hot_modules, pure_wanted
from tests import spark_home

pytest_plugins = ["tests.conformance.report", "tests.distribution"]

# A loaded machine may be slow; the time limit on each test is what bounds it.
settings.register_profile("polywire", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("polywire")

for name, value in spark_home.environment().items():
    os.environ.setdefault(name, value)


def pytest_sessionstart() -> None:
    """Refuse to test compiled modules that are older than their sources."""
    if pure_wanted():
        return
    for name in hot_modules():
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin) if spec is not None and spec.origin else None
        if origin is None or not origin.name.endswith(tuple(EXTENSION_SUFFIXES)):
            continue
        source = origin.with_name(name.rpartition(".")[2] + ".py")
        if source.stat().st_mtime > origin.stat().st_mtime:
            pytest.exit(f"{source} is newer than its compiled module: run 'make build' first", returncode=2)


PR_SET_CHILD_SUBREAPER = 36


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the programs under test, and adopt what an interrupted worker leaves behind."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As under nohup, and in some CI systems. Programs would inherit it, and tests that interrupt them would hang.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput") and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of the garbage collections that tests ask for."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End hubs and JVMs whose test was interrupted."""
    gc.unfreeze()  # otherwise DuckDB reports all it has as leaked when the process ends
    if not hasattr(config, "workerinput") and sys.platform == "linux":
        while left := _children():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process, 0)


def _children() -> list[int]:
    """The ids of this process's children, adopted ones included."""
    return [int(each) for task in Path("/proc/self/task").iterdir() for each in (task / "children").read_text().split()]
