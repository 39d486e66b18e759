"""A Mosquitto broker in a process of its own, where the Debian package is installed."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
MISSING = "mosquitto is not installed; tools/debian-packages installs it where that can be done"
START_SECONDS = 15.0


@contextlib.contextmanager
def running_mosquitto(folder: Path, *lines: str) -> Iterator[int]:
    """The port of a broker that listens on loopback and lets everybody in. ``lines`` go into its configuration."""
    assert PROGRAM is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    config = folder / "mosquitto.conf"
    wanted = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false", *lines]
    config.write_text("\n".join([*wanted, ""]), encoding="utf-8")
    with subprocess.Popen(  # noqa: S603 - a program of the system
        [PROGRAM, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait(port)
            yield port
        finally:
            process.terminate()
            process.wait(10)


def _wait(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
