"""The home of the Spark that tests start, which has all that starting it can share: ``python -m tests.spark_home``.

- An archive of the classes that Spark loads. Loading and verifying them is most of what its JVM does when it starts.
  Java ignores an archive that is not there, or that another Java or another Spark has written.
- No zip of pyspark beside the jars. Spark's Python processes would load that instead of the installed package, which
  is the same, and compile it each time.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HOME = Path(sys.prefix) / ".spark"
SHARED = ("bin", "jars", "sbin")
ARCHIVE = HOME / "classes"
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVMs of tests live for seconds: compiling their code for the long run would take longer than it saves."""

OPTIONS = f"{BRIEF} {shlex.quote(f'-XX:SharedArchiveFile={ARCHIVE}')} -Xlog:disable"
"""What the JVMs of tests are started with. Without ``-Xlog`` they print that an archive does not fit."""

ROWS = 500
"""Enough for every table to have some."""


def environment() -> dict[str, str]:
    """What makes a process start Spark from here, if that has been made."""
    home = {"SPARK_HOME": str(HOME)} if ARCHIVE.exists() else {}
    return {**home, "SPARK_SUBMIT_OPTS": OPTIONS}


def make() -> None:
    """Make it. The archive is the last thing that a run of the pipeline over all tables writes."""
    from tests.pipeline.traffic import messages, write_journal  # noqa: PLC0415 - no other test needs Arrow for its options

    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    HOME.mkdir(exist_ok=True)
    for name in SHARED:
        link = HOME / name
        link.unlink(missing_ok=True)
        link.symlink_to(Path(spark.origin).parent / name)
    fresh = ARCHIVE.with_suffix(".part")
    options = f"{BRIEF} {shlex.quote(f'-XX:ArchiveClassesAtExit={fresh}')} -Xlog:disable"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_journal(place / "journal", messages(ROWS))
        command = ["pipeline", "run", "--once", "--journal", str(place / "journal"), "--lake", str(place / "lake")]
        # The JVM outlives the command: it has ended when nobody can write to the pipe any more.
        subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", "polywire", *command],
            env={**os.environ, "SPARK_HOME": str(HOME), "SPARK_SUBMIT_OPTS": options},
            stdout=subprocess.PIPE,
            check=True,
        )
    if fresh.exists():
        fresh.replace(ARCHIVE)
    else:
        ARCHIVE.touch()  # a Java that writes none is not asked again


if __name__ == "__main__":
    make()
