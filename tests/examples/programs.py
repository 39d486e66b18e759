"""The programs of ``examples/`` in processes of their own, as a reader would start them."""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from tests.hub_process import HubProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 30.0

URLS: Mapping[str, tuple[str, str]] = {
    "umq": ("umq", "umq://127.0.0.1:{}"),
    "micromsg": ("micromsg", "micromsg://127.0.0.1:{}"),
    "fmqp": ("fmqp", "fmqp://127.0.0.1:{}"),
    "mqtt": ("mqtt", "mqtt://127.0.0.1:{}"),
    "mqttrpc": ("mqtt", "mqtt://127.0.0.1:{}"),
    "sabc": ("sabc", "sabc://127.0.0.1:{}"),
}
"""Each folder of examples, with the listener it needs and the form of its URL."""


def url(hub: HubProcess, folder: str) -> str:
    """Where the examples of a folder find the hub."""
    listener, form = URLS[folder]
    return form.format(hub.port(listener))


class Program:
    """A running example. It is killed where it takes too long or is left alone."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603 - our own examples
            [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._killer = threading.Timer(SECONDS, self._process.kill)
        self._killer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._killer.cancel()
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def line(self) -> str:
        """The next line it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.name} ended instead: {self.failure()}"
        return line.rstrip("\n")

    def output(self) -> list[str]:
        """What else it prints until it ends by itself, and well."""
        printed, complaints = self._process.communicate()
        assert (self._process.returncode, complaints) == (0, ""), f"{self.name}: {complaints}"
        return printed.splitlines()

    def failure(self) -> str:
        """What it complains of when it ends by itself, and badly."""
        _, complaints = self._process.communicate()
        assert self._process.returncode != 0
        return complaints

    def interrupt(self) -> list[str]:
        """Ctrl-C: what else it has printed."""
        self._process.send_signal(signal.SIGINT)
        return self.output()


@contextlib.contextmanager
def programs(*commands: tuple[str, ...]) -> Iterator[list[Program]]:
    """Several at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Program(*command)) for command in commands]
