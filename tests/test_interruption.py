"""A run of the tests that is interrupted: it leaves no process behind, and reports no rule as missing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HANGING = """
import os, subprocess, sys

def test_hangs():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["CHILD"], "w") as fifo:
        fifo.write(str(child.pid))
    child.wait()
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_run_leaves_nothing_behind_and_misses_no_rule(tmp_path: Path, workers: int) -> None:
    hanging, fifo = tmp_path / "test_hanging.py", tmp_path / "child"
    hanging.write_text(HANGING)
    os.mkfifo(fifo)
    options = ["-p", "tests.conftest", "--conformance", "-n", str(workers)]
    # Ignored, as for what a shell starts in the background.
    with subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-m", "pytest", *options, str(hanging)],
        cwd=ROOT,
        env={**os.environ, "CHILD": str(fifo)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509 - it takes no lock
    ) as run:
        child = int(fifo.read_text())
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=40)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert "the run was interrupted" in said
    assert "missing:" not in said
