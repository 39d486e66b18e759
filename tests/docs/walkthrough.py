"""A page that is typed as it stands: its files written, its commands run in order, its outputs compared.

What stands behind the three back quotes says what a block is:

    ```python file=sensor.py      a file to write; any language
    ```sh                         commands to type, in one go; exit=5 behind it where they shall fail so
    ```sh terminal=hub            a command in a terminal of its own, which goes on running
    ```text output                what the block before it prints: these lines, in this order, perhaps among others;
                                  … stands for anything. A terminal is read until they have come.
    ```text output=hub            the same for a terminal that was opened before
    <!-- stop: hub -->            Ctrl-C in that terminal

Default ports are replaced by free ones, in all of it, and back again in what is printed. What a page installs is
installed beside its files, without a network, and found there by what it runs.
"""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

SECONDS = 400.0
LISTEN = {
    "http": "http://127.0.0.1:7100",
    "umq": "ws://127.0.0.1:7101/umq",
    "mqtt_ws": "ws://127.0.0.1:7101/mqtt",
    "sabc_ws": "ws://127.0.0.1:7101/sabc",
    "micromsg": "tcp://127.0.0.1:7102",
    "fmqp": "tcp://127.0.0.1:7103",
    "mqtt": "tcp://127.0.0.1:1883",
    "sabc": "tcp://127.0.0.1:7105",
}
INSTALLED = ".installed"
INSTALL = f"python -m pip install --quiet --no-index --no-deps --no-build-isolation --target {INSTALLED}"
LINE_BY_LINE = ("stdbuf", "-oL") if shutil.which("stdbuf") else ()
"""So that what a terminal would show at once does not wait in a buffer."""
PORTS = ("7100", "7101", "7102", "7103", "7105", "7106", "1883", "1884", "8883")
_STEP = re.compile(
    r"^```(?P<language>[a-z]+)(?P<words>(?: [\w=./-]+)*)\n(?P<text>.*?)^```$|^<!-- stop: (?P<stop>\w+) -->$",
    re.MULTILINE | re.DOTALL,
)
_COUNTED = re.compile(r"polywire_subscriptions\b").match


@dataclass(frozen=True, slots=True)
class Step:
    """One block. ``what`` is file, command, terminal, output or stop; ``name`` that of the file or terminal."""

    what: str
    name: str
    text: str
    code: int = 0


def steps(page: Path) -> Iterator[Step]:
    """The blocks of a page that a reader types, or compares with what is printed."""
    for found in _STEP.finditer(page.read_text(encoding="utf-8")):
        if found["stop"]:
            yield Step("stop", found["stop"], "")
            continue
        words = dict(each.partition("=")[::2] for each in found["words"].split())
        if "file" in words:
            yield Step("file", words["file"], found["text"])
        elif "output" in words:
            yield Step("output", words["output"], found["text"])
        elif found["language"] == "sh":
            name = words.get("terminal", "")
            yield Step("terminal" if name else "command", name, found["text"], int(words.get("exit", 0)))


def _started(command: str, folder: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    """A shell with the command, in a group of processes of its own."""
    return subprocess.Popen(  # noqa: S603 - our own documentation
        [*LINE_BY_LINE, "/bin/sh", "-eu", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


class Terminal:
    """A command that goes on running, and what it has printed so far."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self.process = _started(command, folder, environment)
        self.printed = ""
        self._ended = False
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: re.Pattern[str], ports: dict[str, str]) -> None:
        """Wait until it has printed that. What has ended, or takes too long, will not."""

        def came() -> bool:
            return pattern.search(back(self.printed, ports)) is not None

        with self._more:
            self._more.wait_for(lambda: came() or self._ended, SECONDS)
            assert came(), f"did not come: {pattern.pattern}\nprinted was: {back(self.printed, ports)}"

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ctrl-C, for the command and what it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        try:
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
            self._reader.join(5)
            assert self.process.stdout is not None
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.printed += line
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()


def _free_ports() -> Iterator[str]:
    """Ports nobody listens on, below those that the system gives to outgoing connections meanwhile."""
    for port in random.sample(range(20000, 32000), 12000):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        yield str(port)


def expected(text: str) -> re.Pattern[str]:
    """These lines in this order, perhaps with others between them."""
    lines = [re.escape(line.strip()).replace("…", ".*") for line in text.splitlines() if line.strip()]
    return re.compile(r"^\s*" + r"\s*$(?:\n.*)*?\n\s*".join(lines) + r"\s*$", re.MULTILINE)


def back(text: str, ports: dict[str, str]) -> str:
    """What was printed, with the ports of the page."""
    for port, free in ports.items():
        text = re.sub(rf"\b{free}\b", port, text)
    return text


@dataclass
class Walk:
    """Somebody who types a page in an empty folder."""

    folder: Path
    ports: dict[str, str] = field(default_factory=dict)
    terminals: dict[str, Terminal] = field(default_factory=dict)
    last: str | Terminal = ""

    def __enter__(self) -> Self:
        self.ports = dict(zip(PORTS, _free_ports(), strict=False))
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in reversed(self.terminals.values()):
            terminal.stop(signal.SIGKILL)

    def type(self, step: Step) -> None:
        """Do what one block says."""
        text = self._with_free_ports(step.text)
        if step.what == "file":
            path = self.folder / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif step.what == "command":
            code, printed = self._run(self._on_free_ports(text))
            assert code == step.code, f"{step.text}{printed}"
            self.last = printed
        elif step.what == "terminal":
            before = self._subscriptions()
            self.last = Terminal(f"exec {self._on_free_ports(text)}", self.folder, self._environment())
            self.terminals[step.name] = self.last
            # It prints nothing before the first message, which a person would not be fast enough to miss.
            while step.text.startswith("polywire sub") and self._subscriptions() <= before:
                assert self.last.process.poll() is None, f"{step.text}{self.last.printed}"
                time.sleep(0.02)
        elif step.what == "stop":
            terminal = self.terminals.pop(step.name)
            terminal.stop()
            assert "Traceback" not in terminal.printed, terminal.printed
        else:
            self._compare(self.terminals[step.name] if step.name else self.last, step.text)

    def _run(self, command: str) -> tuple[int, str]:
        """Wait for a command. Where it takes too long, what it has started ends with it."""
        with _started(command, self.folder, self._environment()) as process:
            try:
                printed, _ = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                printed, _ = process.communicate()
                raise AssertionError(f"took longer than {SECONDS} s: {command}{printed}") from None
        return process.returncode, printed

    def _compare(self, printing: str | Terminal, text: str) -> None:
        if isinstance(printing, Terminal):
            printing.wait_for(expected(text), self.ports)
        else:
            printed = back(printing, self.ports)
            assert expected(text).search(printed), f"not printed: {text}\nbut: {printed}"

    def _subscriptions(self) -> float:
        """How many the hub has now; none while there is no hub."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['7100']}/metrics", timeout=10) as answer:
                return sum(float(line.split()[1]) for line in answer.read().decode().splitlines() if _COUNTED(line))
        except OSError:
            return 0.0

    def _with_free_ports(self, text: str) -> str:
        return re.sub(r"(?<=[:\s])(\d{4})\b", lambda found: self.ports.get(found[1], found[1]), text)

    def _on_free_ports(self, command: str) -> str:
        """A hub that is started gets free ports for the listeners its configuration does not name."""
        config = self.folder / "polywire.toml"
        named = tomllib.loads(config.read_text(encoding="utf-8")).get("listen", {}) if config.exists() else {}
        sets = [f"--set listen.{name}={url}" for name, url in LISTEN.items() if name not in named]
        command = re.sub(r"^pip install\b", INSTALL, command, flags=re.MULTILINE)
        return re.sub(r"\bpolywire serve\b(?!-)", self._with_free_ports(" ".join(["polywire serve", *sets])), command)

    def _environment(self) -> dict[str, str]:
        programs = str(Path(sys.executable).parent)
        sources = [str(self.folder / INSTALLED), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("POLYWIRE_")},
            **{name: os.environ[name] for name in ("POLYWIRE_PURE",) if name in os.environ},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sources),
            "POLYWIRE_URL": f"umq://127.0.0.1:{self.ports['7101']}",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
        }
