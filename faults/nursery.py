"""Hubs to be killed: forked (``tests/nursery.py``), as a thousand kills are a thousand starts.

They are real but for what the driver has to see and do: the time of day is moved by a number in a shared file, and each
``fsync`` leaves a line that says how much of which file is safe, which is what a power cut would have to leave.
Snapshots and compactions have the priority of everyone else: on a busy machine they would hardly ever get far enough to
be killed.
"""

import importlib
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.hub_process import LISTEN, HubProcess
from tests.nursery import COMMAND, Forks, Nursery
from tests.nursery import prepare as prepare_hubs

SHARED, SYNCED = "shared", "synced"


class Hubs:
    """Starts hubs, one at a time. ``folder`` is for the two shared files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / SHARED).write_bytes(bytes(16))
        (folder / SYNCED).touch()
        self._nursery = Nursery(__name__, str(folder))
        self.hub: HubProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()

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
        output, errors = os.pipe(), os.pipe()
        hub = self.hub = HubProcess(self._nursery.start(COMMAND, words, {1: output[1], 2: errors[1]}), {})
        os.close(output[1])
        os.close(errors[1])
        hub.wait_until_ready(output[0], errors[0])
        return hub


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


def prepare(line: socket.socket, words: Sequence[str]) -> Forks:
    """Hubs whose clock and disk are watched."""
    _watch(Path(words[0]))
    forks = prepare_hubs(line, ())
    vars(importlib.import_module("polywire.journal.compaction"))["_be_modest"] = lambda: None
    return forks
