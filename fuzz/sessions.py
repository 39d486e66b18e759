"""Fuzzing of whole sessions, ``python -m fuzz --sessions``: inputs from ``scripts.py``, a hub in this process.

A finding is a traceback or an error in the hub's log, a journal that can't be written, a hub that no longer serves a
client that behaves well, or a connection or task that is left when all clients have gone. Inputs follow from the seed
and their number; a finding prints both, and the input.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fuzz.scripts import SESSION, Input, Script, make_input, scripts
from polywire.server.config import load
from polywire.server.server import Server
from tests.faults.friends import FRIENDS, SECONDS, HungUpError, SabcFriend, friend, line, reach
from tests.hub_process import LISTEN, HubProcess, NoProcess

BATCH = 40
"""Inputs between two looks at the hub."""

LISTEN_SECONDS = 0.02
SETTLE_SECONDS = 20.0
SETS = (
    "limits.handshake_time=2",
    "limits.call_time=0.2",
    "limits.message_size=1 MiB",
    "limits.outbox=256 KiB",
    "journal.fsync=os",
    "journal.compact=false",
)


class FindingError(Exception):
    """Something is wrong with the hub. The argument says what."""


class InnerHub(logging.Handler):
    """A hub in a thread of this process; it is the handler of its own log."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self.wrong: list[str] = []
        self._folder = folder
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._server: Server | None = None
        self._tasks = 0
        self.hub = HubProcess(NoProcess(), {})
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self._thread.start()
        if not self._ready.wait(SECONDS) or self._server is None:
            raise FindingError("the hub did not start")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what should not happen."""
        if record.levelno >= logging.ERROR or record.exc_info:
            self.wrong.append(self.format(record))

    def check(self) -> None:
        """Raise a ``FindingError`` where something is wrong, now that all clients have gone."""
        assert self._server is not None
        end = time.monotonic() + SETTLE_SECONDS
        while self._server.gate.connections or self._server.hub.clients or self._count_tasks() > self._tasks:
            if time.monotonic() > end:
                left = [*self._server.gate.connections, *self._server.hub.clients.values()]
                raise FindingError(f"left behind: {left}, {self._count_tasks()} tasks where there were {self._tasks}")
            time.sleep(0.01)
        for key in FRIENDS:
            try:
                one, other = friend(self.hub, key), friend(self.hub, key)
                with contextlib.closing(one), contextlib.closing(other):
                    one.subscribe("friends")
                    other.publish("friends", b"hello")
                    if one.hear() != b"hello":
                        raise FindingError(f"{key}: a client that behaves well hears something else")
            except (OSError, HungUpError, AssertionError) as error:
                raise FindingError(f"{key}: a client that behaves well is not served: {error!r}") from error
        status, page = self.hub.get("/metrics")
        if status != 200 or "internal-error" in page:
            raise FindingError(f"/metrics answers {status}, or tells of an internal error")
        if self.wrong:
            raise FindingError("in the log: " + "\n".join(self.wrong))

    def wait_for_clients(self, count: int) -> None:
        """Until so many are connected."""
        assert self._server is not None
        end = time.monotonic() + SECONDS
        while len(self._server.hub.clients) < count:
            assert time.monotonic() < end
            time.sleep(0.001)

    def end(self) -> None:
        """Drain, and end."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SETTLE_SECONDS)

    def _count_tasks(self) -> int:
        return len(asyncio.all_tasks(self._loop))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda _, context: self.wrong.append(repr(context)))
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _serve(self) -> None:
        sets = [*(f"listen.{key}={at}" for key, at in LISTEN.items()), f"journal.path={self._folder}", *SETS]
        server = Server(load(None, sets))
        await server.start()
        self._server = server
        self.hub.addresses = server.ready()
        self._tasks = self._count_tasks()
        self._ready.set()
        await self._stop.wait()
        await server.drain()


@contextlib.contextmanager
def inner_hub() -> Iterator[InnerHub]:
    """A hub in this process, with a journal of its own."""
    log = logging.getLogger()
    before = log.level
    with tempfile.TemporaryDirectory(prefix="polywire-fuzz-") as folder:
        hub = InnerHub(Path(folder))
        log.addHandler(hub)
        log.setLevel(logging.INFO)
        try:
            yield hub
        finally:
            hub.end()
            log.removeHandler(hub)
            log.setLevel(before)


def send(hub: HubProcess, given: Input) -> None:
    """Be the client of an input. Refusals of any kind are fine."""
    session = b"none"
    with contextlib.suppress(OSError, HungUpError, AssertionError):
        if given.logs_in and given.listener in FRIENDS:
            client = friend(hub, given.listener)
            wire = client.line.socket
            if isinstance(client, SabcFriend):
                session = client.session.encode()
        elif given.listener in FRIENDS:
            wire = line(hub, given.listener).socket
        else:
            wire = reach(hub, given.listener)
        with wire:
            wire.settimeout(LISTEN_SECONDS)
            for piece in given.pieces:
                wire.sendall(piece.replace(SESSION, session))
            with contextlib.suppress(TimeoutError):
                while wire.recv(65536):
                    pass
            if given.resets:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def run_numbers(seed: int, script: Script, numbers: list[int], hub: InnerHub) -> None:
    """Send these inputs, and look at the hub."""
    others = list(scripts().values())
    for number in numbers:
        send(hub.hub, make_input(seed, number, script, others))
    hub.check()


def find_one(seed: int, script: Script, numbers: list[int]) -> list[int]:
    """The one of these inputs that is enough, each with a hub of its own; all where no single one is."""
    for number in numbers:
        try:
            with inner_hub() as hub:
                run_numbers(seed, script, [number], hub)
        except FindingError:
            return [number]
    return numbers


def fuzz_sessions(target: str, seconds: float, seed: int, first: int, last: int | None, notes: Path | None) -> int:
    """Fuzz one listener for so long, or with these inputs only. Returns the exit code."""
    faulthandler.enable()
    script = scripts()[target]
    end = time.monotonic() + seconds
    number = first
    with inner_hub() as hub:
        gc.collect()
        while time.monotonic() < end and (last is None or number <= last):
            count = BATCH if last is None else min(BATCH, last - number + 1)
            numbers = list(range(number, number + count))
            if notes is not None:
                notes.write_text(f"{numbers[0]}..{numbers[-1]}", encoding="ascii")
            try:
                run_numbers(seed, script, numbers, hub)
            except FindingError as error:
                print(f"FOUND by {target}: {error}", flush=True)
                break
            number += count
        else:
            print(f"number_of_executed_units: {number - first}", flush=True)
            return 0
    guilty = find_one(seed, script, numbers) if len(numbers) > 1 else numbers
    for each in guilty if len(guilty) == 1 else []:
        print(make_input(seed, each, script, list(scripts().values())), flush=True)
    words = f"{guilty[0]}" if len(guilty) == 1 else f"{guilty[0]}..{guilty[-1]}"
    print(f"to repeat it: python -m fuzz --sessions --seed {seed} --inputs {words} {target}", flush=True)
    return 1


def main() -> int:
    """One process: ``python -m fuzz.sessions TARGET SECONDS SEED FIRST LAST NOTES``. Started by ``fuzz.__main__``."""
    target, seconds, seed, first, last, notes = sys.argv[1:]
    return fuzz_sessions(target, float(seconds), int(seed), int(first), int(last) if last else None, Path(notes))


if __name__ == "__main__":
    sys.exit(main())
