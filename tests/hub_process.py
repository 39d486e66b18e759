"""A real hub in a process of its own, on ports of its own choice, for tests that need sockets."""

import base64
import contextlib
import json
import os
import queue
import resource
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.nursery import COMMAND, nursery

START_SECONDS = 60.0
PROGRAM = ("-m", "polywire")
"""What Python runs to be a hub that is measured."""

LISTEN = {
    "http": "http://127.0.0.1:0",
    "umq": "ws://127.0.0.1:0/umq",
    "micromsg": "tcp://127.0.0.1:0",
    "fmqp": "tcp://127.0.0.1:0",
    "mqtt": "tcp://127.0.0.1:0",
    "mqtt_ws": "ws://127.0.0.1:0/mqtt",
    "sabc": "tcp://127.0.0.1:0",
    "sabc_ws": "ws://127.0.0.1:0/sabc",
}


class Process(Protocol):
    """What is needed of a ``subprocess.Popen``."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def send_signal(self, signal_number: int, /) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class NoProcess:
    """In the place of a hub's process where that belongs to somebody else."""

    pid = 0

    def poll(self) -> int | None:
        return None

    def kill(self) -> None:
        return None

    def send_signal(self, signal_number: int, /) -> None:
        raise ProcessLookupError(signal_number)

    def wait(self, timeout: float | None = None) -> int:
        raise ProcessLookupError(timeout)


class StartError(RuntimeError):
    """A hub that did not start: its exit code and what it printed to standard error."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"the hub did not start, exit code {code}: {said}")
        self.code, self.said = code, said


@dataclass
class HubProcess:
    """A running hub. ``addresses`` are those of its ``ready`` line.

    ``login`` is who asks for pages where the hub wants to know, ``user:password`` or a token. ``trust`` is for HTTPS.
    """

    process: Process
    addresses: dict[str, str]
    errors: list[str] = field(default_factory=list)
    lines: "queue.Queue[str]" = field(default_factory=queue.Queue)
    login: str = ""
    trust: ssl.SSLContext | None = None
    log: threading.Thread | None = None

    def port(self, listener: str) -> int:
        """The port of a listener."""
        return int(self.addresses[listener].split(":")[2].partition("/")[0])

    def get(self, path: str) -> tuple[int, str]:
        """A page of the HTTP listener."""
        request = urllib.request.Request(self.addresses["http"] + path)  # noqa: S310 - loopback
        if self.login:
            basic = "Basic " + base64.b64encode(self.login.encode()).decode()
            request.add_header("Authorization", basic if ":" in self.login else f"Bearer {self.login}")
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.trust) as answer:  # noqa: S310 - as above
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path: str) -> tuple[int, str]:
        """A request without a body that changes something."""
        request = urllib.request.Request(self.addresses["http"] + path, method="POST")  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.trust) as answer:  # noqa: S310 - as above
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, line: str) -> float:
        """The value of one metric, by its name and labels."""
        for each in self.get("/metrics")[1].splitlines():
            if each.startswith(line + " "):
                return float(each.rpartition(" ")[2])
        raise AssertionError(f"no metric {line}")

    def cluster(self) -> dict[str, Any]:
        """What ``/v1/cluster`` says."""
        status, text = self.get("/v1/cluster")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def workers(self) -> dict[str, int]:
        """The workers by name, with their process ids."""
        return {each["node"]: each["pid"] for each in self.cluster()["nodes"]}

    def wait_for_log(self, words: str, seconds: float = 20.0) -> str:
        """Wait until a line of the log holds these words."""
        for line in self.errors:
            if words in line:
                return line
        while True:
            line = self.lines.get(timeout=seconds)
            if words in line:
                return line

    def wait_until_ready(self, output: int, errors: int) -> None:
        """Read the ``ready`` line, and from then on the log. ``StartError`` where there is none."""
        self.log = threading.Thread(target=self._collect, args=(errors,), daemon=True)
        self.log.start()
        killer = threading.Timer(START_SECONDS, self.process.kill)
        killer.start()
        with os.fdopen(output, encoding="utf-8") as stream:
            line = stream.readline()
        killer.cancel()
        if not line.startswith("ready "):
            code = self.process.wait(10)
            self.wait_for_the_log()
            raise StartError(code, "".join(self.errors))
        self.addresses = json.loads(line.removeprefix("ready "))

    def wait_for_the_log(self) -> None:
        """Wait until everything that was logged has been read, once the hub has ended."""
        if self.log is not None:
            self.log.join(5)

    def _collect(self, errors: int) -> None:
        with os.fdopen(errors, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                self.errors.append(line)
                self.lines.put(line)

    def stop(self, how: signal.Signals = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Tell the hub to end, and wait for it. Returns its exit code."""
        self.process.send_signal(how)
        return self.process.wait(seconds)


@contextlib.contextmanager
def running_hub(
    *sets: str,
    config: Path | None = None,
    journal: Path | None = None,
    arguments: tuple[str, ...] = (),
    descriptors: int | None = None,
    program: tuple[str, ...] = (),
    workers: int = 1,
) -> Iterator[HubProcess]:
    """A hub that is ready. Without ``config`` it listens everywhere, on loopback; ``sets`` go on top.

    It has a journal only where ``journal`` says in which folder. ``program`` is what Python runs; by default the hub is
    forked, which is faster. ``descriptors`` is how many file descriptors it may have, where that is fewer than this
    process may. Several ``workers`` are one hub; their supervisor is its process.
    """
    words = ["serve", *arguments, *(("--workers", str(workers)) if workers > 1 else ())]
    if config is not None:
        words += ["--config", str(config)]
    else:
        sets = (*(f"listen.{key}={address}" for key, address in LISTEN.items()), *sets)
    for each in ("journal.enabled=false" if journal is None else f"journal.path={journal}", *sets):
        words += ["--set", each]
    output, errors = os.pipe(), os.pipe()
    try:
        process = _started(program, words, output[1], errors[1], descriptors)
    finally:
        os.close(output[1])
        os.close(errors[1])
    hub = HubProcess(process, {})
    try:
        hub.wait_until_ready(output[0], errors[0])
        yield hub
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        hub.wait_for_the_log()


def _started(program: tuple[str, ...], words: list[str], output: int, errors: int, descriptors: int | None) -> Process:
    if not program and descriptors is None:
        return nursery().start(COMMAND, ["polywire", *words], {1: output, 2: errors})

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, *(program or PROGRAM), *words],
        stdout=output,
        stderr=errors,
        preexec_fn=limit if descriptors is not None else None,  # noqa: PLW1509 - it takes no lock
    )
