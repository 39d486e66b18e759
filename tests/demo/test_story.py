"""The demo as somebody new runs it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)


def test_every_part_does_its_part_and_the_tables_tell_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "greenhouse"
    told = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "polywire", "demo", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert len(re.findall(r"^   ✓", told.stdout, re.MULTILINE)) == 6
    for words in ("the worker did all 40 jobs", "20 litres are left", "fmqp", "irrigation"):
        assert words in told.stdout
    assert "<svg" in (folder / "report.html").read_text(encoding="utf-8")


def test_run_starts_hub_and_pipeline_and_ends_both_when_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polywire", "demo", "--run", "--no-tables", "--folder", str(tmp_path)]
    settings = tmp_path / "polywire.toml"
    listen = "\n".join(
        f'{key} = "{address}"'
        for key, address in {
            "http": "http://127.0.0.1:0",
            "umq": "ws://127.0.0.1:0/umq",
            "mqtt_ws": "off",
            "sabc_ws": "off",
            "micromsg": "off",
            "fmqp": "tcp://127.0.0.1:0",
            "mqtt": "off",
            "sabc": "off",
        }.items()
    )
    settings.write_text(f"[listen]\n{listen}\n")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert (tmp_path / "journal").is_dir()
