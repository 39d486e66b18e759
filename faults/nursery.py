"""Hubs that start in a moment: a process that has imported everything forks one whenever it is asked.

Importing takes most of a hub's start, and a thousand kills are a thousand starts. A forked hub is the real one, run by
``polywire serve`` with its arguments, but for two things it lets the driver see and do: its time of day is moved by a
number in a shared file, and each ``fsync`` leaves a line that says how much of which file is safe. That is what a power
cut would have to leave.
"""

import contextlib
import gc
import json
import mmap
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hub_process import LISTEN, HubProcess

SECONDS = 30.0
CLOCK, SYNCED = "clock", "synced"
WARM = ("polywire.cli.main", "polywire.server.run", "polywire.server.journal_keeper", "polywire.server.ingest", "uvloop")


class StartError(Exception):
    """A hub that did not start: its exit code and what it printed to standard error."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"the hub did not start, exit code {code}: {said.strip()}")
        self.code, self.said = code, said


class Nursery:
    """Starts hubs, one at a time. ``folder`` is for the two shared files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / CLOCK).write_bytes(bytes(8))
        (folder / SYNCED).touch()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(SECONDS)
        self._line = ours
        command = [sys.executable, "-m", "faults.nursery", str(theirs.fileno()), str(folder)]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # noqa: S603 - our own module
        theirs.close()
        self.hub: HubProcess | None = None

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        if self.hub is not None:
            self.hub.process.kill()
        self._line.close()
        self._process.wait(SECONDS)

    def set_clock(self, seconds: int) -> None:
        """Move the hub's time of day so far away from the real one."""
        with (self._folder / CLOCK).open("r+b") as file:
            file.write(struct.pack("<q", seconds * 10**9))

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
    """Let the driver move the clock, and know what is safe."""
    with (folder / CLOCK).open("r+b") as file:
        moved = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    lines = os.open(folder / SYNCED, os.O_WRONLY | os.O_APPEND)
    real_time, real_fsync, real_fdatasync = time.time_ns, os.fsync, os.fdatasync

    def time_ns() -> int:
        return real_time() + int(struct.unpack("<q", moved)[0])

    def note(descriptor: int, size: int) -> None:
        os.write(lines, b"%d %d\n" % (os.fstat(descriptor).st_ino, size))

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        size = os.fstat(number).st_size  # what is written during the call may not be included
        real_fsync(number)
        note(number, size)

    def fdatasync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        size = os.fstat(number).st_size
        real_fdatasync(number)
        note(number, size)

    hooks: dict[str, Any] = {"time_ns": time_ns, "time": lambda: time_ns() / 1e9}
    vars(time).update(hooks)
    hooks = {"fsync": fsync, "fdatasync": fdatasync}
    vars(os).update(hooks)


def _requests(line: socket.socket) -> Iterator[tuple[bytes, list[int]]]:
    while True:
        data, descriptors, _, _ = socket.recv_fds(line, 65536, 2)
        if not data:
            return
        yield data, descriptors


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    _watch(Path(sys.argv[2]))
    for name in WARM:
        with contextlib.suppress(ModuleNotFoundError):
            __import__(name)
    gc.collect()
    gc.freeze()
    child = 0
    for data, descriptors in _requests(line):
        if data == b"wait":
            line.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
            continue
        child = os.fork()
        if child == 0:
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            line.close()
            _serve(json.loads(data))
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(str(child).encode())


def _serve(words: list[str]) -> None:
    """Be ``polywire`` with these words."""
    from polywire.cli.main import main as polywire  # noqa: PLC0415 - imported before, under the watch

    code = 1
    try:
        sys.argv = words
        polywire()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter does at its end
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
