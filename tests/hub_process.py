"""A real hub in a process of its own, on ports of its own choice, for tests that need sockets."""

import base64
import contextlib
import json
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
from typing import IO, Protocol

START_SECONDS = 30.0
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

    def metric(self, line: str) -> float:
        """The value of one metric, by its name and labels."""
        for each in self.get("/metrics")[1].splitlines():
            if each.startswith(line + " "):
                return float(each.rpartition(" ")[2])
        raise AssertionError(f"no metric {line}")

    def wait_for_log(self, words: str, seconds: float = 20.0) -> str:
        """Wait until a line of the log holds these words."""
        for line in self.errors:
            if words in line:
                return line
        while True:
            line = self.lines.get(timeout=seconds)
            if words in line:
                return line

    def stop(self, how: signal.Signals = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Tell the hub to end, and wait for it. Returns its exit code."""
        self.process.send_signal(how)
        return self.process.wait(seconds)


def _collect(stream: IO[str], hub: HubProcess) -> None:
    for line in stream:
        hub.errors.append(line)
        hub.lines.put(line)


@contextlib.contextmanager
def running_hub(
    *sets: str,
    config: Path | None = None,
    journal: Path | None = None,
    arguments: tuple[str, ...] = (),
    descriptors: int | None = None,
    program: tuple[str, ...] = ("-m", "polywire"),
) -> Iterator[HubProcess]:
    """A hub that is ready. Without ``config`` it listens everywhere, on loopback; ``sets`` go on top.

    It has a journal only where ``journal`` says in which folder.
    ``descriptors`` is how many file descriptors it may have, where that is fewer than this process may; ``program``
    is what Python runs.
    """
    command = [sys.executable, *program, "serve", *arguments]
    if config is not None:
        command += ["--config", str(config)]
    else:
        sets = (*(f"listen.{key}={address}" for key, address in LISTEN.items()), *sets)
    for each in ("journal.enabled=false" if journal is None else f"journal.path={journal}", *sets):
        command += ["--set", each]

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit if descriptors is not None else None,  # noqa: PLW1509 - it takes no lock
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        hub = HubProcess(process, {})
        reader = threading.Thread(target=_collect, args=(process.stderr, hub), daemon=True)
        reader.start()
        killer = threading.Timer(START_SECONDS, process.kill)
        killer.start()
        try:
            line = process.stdout.readline()
            killer.cancel()
            if not line.startswith("ready "):
                process.wait(10)
                reader.join(5)
                raise RuntimeError(f"the hub did not start: {line}{''.join(hub.errors)}")
            hub.addresses = json.loads(line.removeprefix("ready "))
            yield hub
        finally:
            killer.cancel()
            if process.poll() is None:
                process.kill()
            process.wait(10)
            reader.join(5)
