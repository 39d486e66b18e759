"""Typing commands: in this process where that will do, in one of its own where signals, pipes or a terminal matter."""

import contextlib
import os
import pty
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

from typer.testing import CliRunner, Result

from polywire.cli import main
from tests.hub_process import HubProcess
from tests.nursery import COMMAND, Forked, nursery

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
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(data)
        for file in files:
            file.seek(0)
        started = {number: file.fileno() for number, file in enumerate(files)}
        process = nursery().start(COMMAND, ["polywire", *words], started)
        stack.callback(process.kill)
        code = process.wait(SECONDS)
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(list(words), code, files[1].read(), files[2].read())


class Running:
    """A command that goes on. ``lines`` has what it has printed; it is read here, so it can't block."""

    def __init__(self, process: Forked, output: IO[bytes]) -> None:
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
    environment = {**os.environ, "COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    places = {0: theirs, 1: theirs, 2: theirs} if terminal else {1: theirs, 2: theirs}
    process = nursery().start(COMMAND, ["polywire", *words], places, environment)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as output:
        running = Running(process, output)
        try:
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(SECONDS)
            running._reader.join(SECONDS)
