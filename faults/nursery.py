"""Hubs that start in a moment: a process that has imported everything forks one whenever it is asked.

Importing takes most of a hub's start, and a thousand kills are a thousand starts. A forked hub is the real one, run by
``polywire serve`` with its arguments, but for what the driver has to see and do: its time of day is moved by a number
in a shared file, and each ``fsync`` leaves a line that says how much of which file is safe, which is what a power cut
would have to leave. Its snapshots and compactions are forked too, and at the priority of everyone else: on a busy
machine they would hardly ever get as far as being killed.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from tests.hub_process import LISTEN, HubProcess

SECONDS = 60.0
IMPORT_SECONDS = 180.0
"""How long the first start may take, on a machine that does a lot besides."""

SHARED, SYNCED = "shared", "synced"
WARM = (
    *("polywire.cli.main", "polywire.server.run", "polywire.server.restoration", "polywire.server.ingest"),
    *("polywire.journal.snapshots", "polywire.journal.compaction", "uvloop"),
)
"""What a hub and its workers import."""

STATUS = 90
"""The descriptor on which a worker reports its process id and its exit code."""


class StartError(Exception):
    """A hub that did not start: its exit code and what it printed to standard error."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"the hub did not start, exit code {code}: {said.strip()}")
        self.code, self.said = code, said


class Nursery:
    """Starts hubs, one at a time. ``folder`` is for the two shared files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / SHARED).write_bytes(bytes(16))
        (folder / SYNCED).touch()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(SECONDS)
        self._line = ours
        command = [sys.executable, "-m", "faults.nursery", str(theirs.fileno()), str(folder)]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # noqa: S603 - our own module
        theirs.close()
        self.hub: HubProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.hub is not None:
            self.hub.process.kill()
        self._line.close()
        self._process.wait(SECONDS)

    def set_clock(self, seconds: int) -> None:
        """Move the hub's time of day so far away from the real one."""
        self._share(0, seconds * 10**9)

    def slow_down(self, seconds: float) -> None:
        """Let each ``fsync`` of the hub take so much longer."""
        self._share(8, int(seconds * 1e9))

    def _share(self, place: int, number: int) -> None:
        with (self._folder / SHARED).open("r+b") as file:
            file.seek(place)
            file.write(struct.pack("<q", number))

    def synced(self) -> dict[int, int]:
        """How much of each file is safe on the disk, by inode."""
        found: dict[int, int] = {}
        for line in (self._folder / SYNCED).read_text(encoding="ascii").splitlines():
            inode, size = line.split()
            found[int(inode)] = int(size)
        return found

    def start(self, journal: Path, *sets: str) -> HubProcess:
        """A hub that is ready. ``StartError`` where it refuses."""
        words = ["polywire", "serve"]
        for each in (*(f"listen.{key}={at}" for key, at in LISTEN.items()), f"journal.path={journal}", *sets):
            words += ["--set", each]
        output, theirs_out = os.pipe()
        errors, theirs_err = os.pipe()
        socket.send_fds(self._line, [json.dumps(words).encode()], [theirs_out, theirs_err])
        os.close(theirs_out)
        os.close(theirs_err)
        self._line.settimeout(IMPORT_SECONDS)
        forked = _Forked(int(self._line.recv(100)), self._line)
        hub = self.hub = HubProcess(forked, {})
        reader = threading.Thread(target=_collect, args=(errors, hub), daemon=True)
        reader.start()
        killer = threading.Timer(SECONDS, forked.kill)
        killer.start()
        with os.fdopen(output, encoding="utf-8") as stream:
            line = stream.readline()
        killer.cancel()
        if not line.startswith("ready "):
            code = forked.wait(SECONDS)
            reader.join(5)
            raise StartError(code, "".join(hub.errors))
        hub.addresses = json.loads(line.removeprefix("ready "))
        return hub


class _Forked:
    """A process that the nursery is the parent of, with the face of ``subprocess.Popen``."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._line = line

    def send_signal(self, signal_number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal_number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self._line.send(b"wait")
                self.returncode = int(self._line.recv(100))
            except TimeoutError:
                raise subprocess.TimeoutExpired("polywire", timeout or 0) from None
            finally:
                self._line.settimeout(SECONDS)
        return self.returncode


def _collect(descriptor: int, hub: HubProcess) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            hub.errors.append(line)
            hub.lines.put(line)


def _watch(folder: Path) -> None:
    """Let the driver move the clock, slow down the disk, and know what is safe."""
    with (folder / SHARED).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 16, access=mmap.ACCESS_READ)
    lines = os.open(folder / SYNCED, os.O_WRONLY | os.O_APPEND)
    real_time, real_fsync, real_fdatasync = time.time_ns, os.fsync, os.fdatasync

    def time_ns() -> int:
        return real_time() + int(struct.unpack_from("<q", shared)[0])

    def sync(descriptor: Any, real: Callable[[int], None]) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        about = os.fstat(number)  # what is written during the call may not be included
        time.sleep(struct.unpack_from("<q", shared, 8)[0] / 1e9)
        real(number)
        os.write(lines, b"%d %d\n" % (about.st_ino, about.st_size))

    hooks: dict[str, Any] = {"time_ns": time_ns, "time": lambda: time_ns() / 1e9}
    vars(time).update(hooks)
    hooks = {
        "fsync": lambda descriptor: sync(descriptor, real_fsync),
        "fdatasync": lambda descriptor: sync(descriptor, real_fdatasync),
    }
    vars(os).update(hooks)


class _Apart:
    """A process of housekeeping, forked by the nursery, with the face of ``subprocess.Popen``."""

    line: socket.socket

    def __init__(self, command: list[str], *, stdin: int, **_: object) -> None:
        (self._output, output), (self._errors, errors), (self._status, status) = os.pipe(), os.pipe(), os.pipe()
        words = command[3:]  # after the interpreter, -c and what it runs
        socket.send_fds(self.line, [json.dumps(words).encode()], [stdin, output, errors, status])
        for each in (output, errors, status):
            os.close(each)
        self.pid = int.from_bytes(os.read(self._status, 4), "big")
        self.returncode = -signal.SIGKILL
        self._open = [self._output, self._errors]
        self._said = {self._output: b"", self._errors: b""}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._open:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(self._open, [], [], left)
            if not ready:
                raise subprocess.TimeoutExpired("polywire", timeout or 0)
            for descriptor in ready:
                if data := os.read(descriptor, 65536):
                    self._said[descriptor] += data
                else:
                    os.close(descriptor)
                    self._open.remove(descriptor)
        if code := os.read(self._status, 1):
            self.returncode = code[0]
        os.close(self._status)
        return self._said[self._output].decode(), self._said[self._errors].decode()


class _Forks:
    """The nursery's own process: it forks hubs for the driver, and workers for the hubs."""

    def __init__(self, driver: socket.socket) -> None:
        self._driver = driver
        self._hubs, _Apart.line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._hub = 0
        self._wanted = False
        self._ended: dict[int, int] = {}

    def run(self) -> None:
        """Until the driver has gone."""
        while True:
            ready, _, _ = select.select([self._driver, self._hubs], [], [], 0.005 if self._wanted else None)
            if self._driver in ready and not self._for_driver():
                return
            if self._hubs in ready:
                self._for_hub()
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    self._ended[ended[0]] = os.waitstatus_to_exitcode(ended[1])
            if self._wanted and self._hub in self._ended:
                self._wanted = False
                self._driver.send(str(self._ended.pop(self._hub)).encode())

    def _for_driver(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._driver, 65536, 2)
        if data == b"wait":
            self._wanted = True
        elif data:
            self._hub = self._fork(descriptors, (1, 2), lambda: _serve(json.loads(data)))
            self._driver.send(str(self._hub).encode())
        return bool(data)

    def _for_hub(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._hubs, 65536, 4)
        self._fork(descriptors, (0, 1, 2, STATUS), lambda: _work(json.loads(data)))

    def _fork(self, descriptors: list[int], places: tuple[int, ...], run: Callable[[], int]) -> int:
        child = os.fork()
        if child:
            for descriptor in descriptors:
                os.close(descriptor)
            return child
        self._driver.close()
        self._hubs.close()
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in descriptors]
        for descriptor, place in zip(moved, places, strict=True):
            os.dup2(descriptor, place)
        for descriptor in (*moved, *(each for each in descriptors if each not in places)):
            os.close(descriptor)
        code = 1
        try:
            code = run()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _serve(words: list[str]) -> int:
    """Be ``polywire`` with these words."""
    main = importlib.import_module("polywire.cli.main").main
    return _until_exit(words, main)


def _work(words: list[str]) -> int:
    """Be a module that works for the hub, and report the exit code to it."""
    os.write(STATUS, os.getpid().to_bytes(4, "big"))
    code = _until_exit(words, lambda: sys.exit(importlib.import_module(words[0]).main()))
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(STATUS, bytes([code]))
    return code


def _until_exit(words: list[str], run: Callable[[], object]) -> int:
    try:
        sys.argv = words
        run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does at its end
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def main() -> None:
    """Be the nursery."""
    line = socket.socket(fileno=int(sys.argv[1]))
    _watch(Path(sys.argv[2]))
    for name in WARM:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    housekeeping = importlib.import_module("polywire.journal.housekeeping")
    vars(housekeeping)["subprocess"] = SimpleNamespace(
        PIPE=subprocess.PIPE, Popen=_Apart, TimeoutExpired=subprocess.TimeoutExpired
    )
    vars(importlib.import_module("polywire.journal.compaction"))["_be_modest"] = lambda: None
    gc.collect()
    gc.freeze()
    _Forks(line).run()


if __name__ == "__main__":
    main()
