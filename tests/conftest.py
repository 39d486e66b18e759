"""What all tests share."""

import importlib.util
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from polywire.compilation import HOT_MODULES, pure_wanted

pytest_plugins = ["tests.conformance.report"]

# A loaded machine may be slow; the time limit on each test is what bounds it.
settings.register_profile("polywire", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("polywire")

# The JVMs of tests live for seconds: compiling their code for the long run would take longer than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


def pytest_sessionstart() -> None:
    """Refuse to test compiled modules that are older than their sources."""
    if pure_wanted():
        return
    for name in HOT_MODULES:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin) if spec is not None and spec.origin else None
        if origin is None or not origin.name.endswith(tuple(EXTENSION_SUFFIXES)):
            continue
        source = origin.with_name(name.rpartition(".")[2] + ".py")
        if source.stat().st_mtime > origin.stat().st_mtime:
            pytest.exit(f"{source} is newer than its compiled module: run 'make build' first", returncode=2)
