"""Typing commands: in this process where that will do, in one of its own where signals, pipes or a terminal matter."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO

from typer.testing import CliRunner, Result

from polywire.cli import main
from tests.hub_process import HubProcess

EVERY = ("umq", "micromsg", "fmqp", "mqtt", "sabc")
SECONDS = 40.0


def url(hub: HubProcess, protocol: str) -> str:
    """The address of a hub's listener, for a protocol."""
    return f"{protocol}://127.0.0.1:{hub.port(protocol)}"


def run(*words: str) -> Result:
    """A command to its end, in this process."""
    return CliRunner().invoke(main.app, list(words))


def good(*words: str) -> str:
    """What a command prints that leaves with 0."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def fed(data: bytes, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """A command to its end, with this on its standard input."""
    return subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-m", "polywire", *words], input=data, capture_output=True, timeout=SECONDS, check=False
    )


class Running:
    """A command that goes on. ``lines`` has what it has printed; it is read here, so it can't block."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: IO[bytes]) -> None:
        self.process = process
        self._output = output
        self._arrived = threading.Condition()
        self._ended = False
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # A terminal whose other side is gone is an error to Linux.
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._output.fileno(), 65536):
                with self._arrived:
                    self.text += data.decode(errors="replace")
                    self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def wait_for(self, words: str) -> None:
        """Wait until it has printed these words."""
        with self._arrived:
            found = self._arrived.wait_for(lambda: words in self.text or self._ended, SECONDS)
        assert found, f"{words!r} did not come: {self.text}"
        assert words in self.text

    def interrupt(self) -> int:
        """Ctrl-C, and with what it left."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Wait for its end, and with what it left."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code


@contextlib.contextmanager
def going_on(*words: str, terminal: bool = False) -> Iterator[Running]:
    """A command in a process of its own, at a terminal of 100 x 30 or with its output in a pipe."""
    command = [sys.executable, "-m", "polywire", *words]
    environment = {**os.environ, "COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}
    if terminal:
        master, slave = pty.openpty()
        output: IO[bytes] = os.fdopen(master, "rb", buffering=0)
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)  # noqa: S603 - ours
        os.close(slave)
    else:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)  # noqa: S603 - ours
        assert process.stdout is not None
        output = process.stdout
    with process, output:
        running = Running(process, output)
        try:
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(SECONDS)
            running._reader.join(SECONDS)
