"""Starts Spark's Python workers: Spark's own daemon, with everything that workers import already imported.

Spark forks a worker from a daemon, and every new worker then loads pyspark (from a zip, compiling it again), Arrow and
pandas: a second or more of a core each, ten times before the first row is read. Here the daemon does that once.

Run by Spark itself (the setting ``spark.python.daemon.module``).
"""

import importlib
import sys
from importlib.util import find_spec
from typing import Final

NEEDED: Final = ("pandas", "pyarrow.compute", "polywire.pipeline.source", "polywire.pipeline.tables")
"""Modules that our workers need. A machine without one of them fails where it is used."""


def installed_first() -> None:
    """Prefer the installed pyspark to the zip in its directory, which is the same, but has to be compiled each time."""
    rest = [path for path in sys.path if not path.endswith(".zip")]
    before, sys.path[:] = list(sys.path), rest
    importlib.invalidate_caches()
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = before


def main() -> None:
    """Import them, then run as Spark's daemon."""
    installed_first()
    daemon = importlib.import_module("pyspark.daemon")
    for name in (*sys.argv[1:], *NEEDED):  # Spark names the module its workers run
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    daemon.manager()


if __name__ == "__main__":
    main()
