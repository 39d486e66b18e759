"""Programs that start in a moment: a process that has imported everything forks one whenever it is asked.

Importing takes most of the start of a hub or a command, and tests start hundreds of them. A forked one is the real
program: its own ``main`` with its arguments, in a process of its own. So are the processes that a hub leaves snapshots
and compactions to. Tests of the start itself run Python instead.
"""

import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

from polywire.process import leave_out_pandas

IMPORT_SECONDS = 180.0
"""How long the first start may take, on a machine that does a lot besides."""

COMMAND = "polywire.cli.main"
WARM = (COMMAND, "polywire.server.server", "polywire.server.ingest", "polywire.server.restoration", "uvloop")
"""What a hub and a command import."""

HOUSEKEEPING = ("polywire.journal.snapshots", "polywire.journal.compaction")
"""What does the work that hubs leave to processes of their own."""

KILLED = -signal.SIGKILL
"""The exit code of a program whose nursery has gone."""


def readable(descriptors: Sequence[int], seconds: float | None) -> list[int]:
    """Those that can be read or have ended, after so many seconds at most."""
    poll = select.poll()  # ``select`` knows no descriptors above 1023
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return [each for each, _ in poll.poll(None if seconds is None else seconds * 1000)]


class Forked:
    """A program that a nursery is the parent of, with the face of ``subprocess.Popen``.

    ``status`` is where its process id is read, and later its exit code.
    """

    def __init__(self, status: int) -> None:
        self._status = status
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = int.from_bytes(os.read(status, 4), "big") if readable([status], IMPORT_SECONDS) else 0
        if not self.pid:
            raise ChildProcessError("the nursery has started nothing")

    def send_signal(self, signal_number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, signal_number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("polywire", timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and readable([self._status], seconds):
                data = os.read(self._status, 4)
                self.returncode = int.from_bytes(data, "big", signed=True) if data else KILLED
                os.close(self._status)
            return self.returncode


class Nursery:
    """Forks programs. ``prepare`` names the module whose function of that name makes it ready."""

    def __init__(self, prepare: str = __name__, *words: str) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), prepare, *words]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # noqa: S603 - our own module
        theirs.close()

    def start(
        self, module: str, words: Sequence[str], descriptors: dict[int, int], environment: dict[str, str] | None = None
    ) -> Forked:
        """Run a module's ``main``. ``descriptors`` are what its own, 0 to 2 mostly, are to be."""
        return ask(self._line, module, words, descriptors, environment)

    def close(self) -> None:
        """End it, and what it has forked."""
        self._line.close()
        self._process.wait(IMPORT_SECONDS)


def ask(
    line: socket.socket,
    module: str,
    words: Sequence[str],
    descriptors: dict[int, int],
    environment: dict[str, str] | None = None,
) -> Forked:
    """Ask the nursery at the other end of a line for a program."""
    request = {
        "module": module,
        "words": list(words),
        "places": list(descriptors),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ) if environment is None else environment,
    }
    status, theirs = os.pipe()
    socket.send_fds(line, [json.dumps(request).encode()], [theirs, *descriptors.values()])
    os.close(theirs)
    return Forked(status)


class Forks:
    """The nursery's own process: it forks programs for those at the other ends of its lines."""

    def __init__(self, *lines: socket.socket) -> None:
        self._lines = lines
        self._running: dict[int, int] = {}
        self._woken, self._waker = socket.socketpair()
        self._waker.settimeout(0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Until a line is closed; what still runs then is killed."""
        while True:
            ready, _, _ = select.select([*self._lines, self._woken], [], [])
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            for line in self._lines:
                if line in ready and not self._answer(line):
                    for each in self._running:
                        os.kill(each, signal.SIGKILL)
                    return

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = self._running.pop(ended[0])
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, os.waitstatus_to_exitcode(ended[1]).to_bytes(4, "big", signed=True))
                os.close(status)

    def _answer(self, line: socket.socket) -> bool:
        data, descriptors, _, _ = socket.recv_fds(line, 1 << 20, 16)
        if not data:
            return False
        status, *others = descriptors
        request = json.loads(data)
        child = os.fork()
        if child == 0:
            self._be(request, dict(zip(request["places"], others, strict=True)), status)
        for each in others:
            os.close(each)
        self._running[child] = status
        with contextlib.suppress(BrokenPipeError):  # a hub that was killed after it asked
            os.write(status, child.to_bytes(4, "big"))
        return True

    def _be(self, request: dict[str, object], descriptors: dict[int, int], status: int) -> None:
        """The forked process: run the module, and end."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for end in (*self._lines, self._woken, self._waker):
            end.close()
        for number in (status, *self._running.values()):
            os.close(number)
        put(descriptors)
        code = 1
        try:
            code = run(request)
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def put(descriptors: dict[int, int]) -> None:
    """Put descriptors in their places, and the standard streams on them."""
    moved = {place: fcntl.fcntl(each, fcntl.F_DUPFD, 100) for place, each in descriptors.items()}
    for each in descriptors.values():
        os.close(each)
    for place, each in moved.items():
        os.dup2(each, place)
        os.close(each)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", buffering=1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, errors="backslashreplace", closefd=False)


def run(request: dict[str, object]) -> int:
    """Run what was asked for as the interpreter would. Returns the exit code."""
    try:
        os.chdir(str(request["folder"]))
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload] # it comes from ``ask``
        sys.argv = request["words"]  # type: ignore[assignment] # as above
        code = importlib.import_module(str(request["module"])).main()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does at its end
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return code if isinstance(code, int) else int(code is not None)


def warm(modules: Sequence[str]) -> None:
    """Import what programs need, as a hub does, and keep that out of their garbage collections."""
    leave_out_pandas()
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


class Apart:
    """A process of housekeeping, forked by the nursery, with the face of ``subprocess.Popen``."""

    line: socket.socket

    def __init__(self, command: list[str], *, stdin: int, **_: object) -> None:
        output, errors = os.pipe(), os.pipe()
        words = command[3:]  # after the interpreter, -c and what it runs
        self._process = ask(self.line, words[0], words, {0: stdin, 1: output[1], 2: errors[1]})
        os.close(output[1])
        os.close(errors[1])
        self.pid = self._process.pid
        self.returncode: int | None = None
        self._open = [output[0], errors[0]]
        self._said = dict.fromkeys(self._open, b"")

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._open:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = readable(self._open, left)
            if not ready:
                raise subprocess.TimeoutExpired("polywire", timeout or 0)
            for descriptor in ready:
                if data := os.read(descriptor, 65536):
                    self._said[descriptor] += data
                else:
                    os.close(descriptor)
                    self._open.remove(descriptor)
        self.returncode = self._process.wait(timeout)
        output, errors = self._said.values()
        return output.decode(), errors.decode()


def prepare(line: socket.socket, _: Sequence[str]) -> Forks:
    """For hubs and commands. Their housekeeping asks for processes itself."""
    warm((*WARM, *HOUSEKEEPING))
    hubs, Apart.line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    housekeeping = importlib.import_module("polywire.journal.housekeeping")
    vars(housekeeping)["subprocess"] = SimpleNamespace(
        PIPE=subprocess.PIPE, Popen=Apart, TimeoutExpired=subprocess.TimeoutExpired
    )
    return Forks(line, hubs)


@functools.cache
def nursery() -> Nursery:
    """The nursery of this process; it ends with it."""
    return Nursery()


def main() -> None:
    """Be a nursery."""
    line = socket.socket(fileno=int(sys.argv[1]))
    make: Callable[[socket.socket, Sequence[str]], Forks] = importlib.import_module(sys.argv[2]).prepare
    make(line, sys.argv[3:]).run()


if __name__ == "__main__":
    main()
