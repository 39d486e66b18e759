"""Everything is killed in the middle of traffic on all protocols, and every row counts once in every table."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from polywire import journal
from polywire.pipeline.lake import Lake
from polywire.pipeline.tables import TABLES
from tests.hub_process import HubProcess, running_hub
from tests.interop.speaker import Speaker
from tests.interop.speakers import PROTOCOLS, speak
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import collected, ordered

T = TypeVar("T")

pytestmark = pytest.mark.timeout(1500)

LIVES = 3
LONGEST_LIFE = 6.0
TRIES = 3
PAUSE = 0.1
"""Seconds between two rounds of traffic, so that there is some all the time and never too much to check."""


@dataclass
class Hub:
    """A hub with a journal that can be killed and started again at the same HTTP address."""

    folder: Path
    process: HubProcess | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    http: str = "http://127.0.0.1:0"

    def start(self) -> None:
        sets = ("journal.enabled=true", f"journal.path={self.folder}", f"listen.http={self.http}")
        self.process = patiently(lambda: self.stack.enter_context(running_hub(*sets)))
        self.http = self.process.addresses["http"]

    def kill(self) -> None:
        assert self.process is not None
        self.process.stop(signal.SIGKILL)
        self.stack.close()


class Traffic:
    """Clients of all protocols, which publish, put into queues, call and break rules."""

    def __init__(self, hub: Hub) -> None:
        assert hub.process is not None
        self._stack = ExitStack()
        self._speakers = {name: self._stack.enter_context(speak(name, hub.process.addresses)) for name in PROTOCOLS}
        self._provider: Speaker = self._stack.enter_context(speak("umq", hub.process.addresses))
        self._provider.serve("turner")
        self._speakers["mqtt"].subscribe("in/fmqp")

    def round(self, number: int) -> None:
        """One of everything."""
        for name, speaker in self._speakers.items():
            speaker.publish(f"in/{name}", f"{name} {number}".encode())
        self._speakers["micromsg"].publish("queue/work", str(number).encode())
        for name in ("umq", "sabc"):
            ticket = self._speakers[name].begin_call("turner", "Turn", str(number).encode())
            self._provider.answer(lambda _, body: body[::-1])
            self._speakers[name].end_call(ticket)

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def driver(place: Path, hub: str, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """A driver whose queries run, in a group of processes of its own."""
    command = [sys.executable, "-m", "tests.pipeline.driver", str(place / "journal"), str(place / "lake"), hub, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            yield process
        finally:
            # One that has ended by itself has taken Spark along, and its number may be somebody else's by now.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def steps_done(place: Path) -> int:
    """How many micro-batches all queries together have finished."""
    return len(list((place / "lake" / "_pipeline" / "checkpoints").glob("*/commits/[0-9]*")))


def catch_up(place: Path, hub: str) -> None:
    """Run the driver until all is done."""
    with driver(place, hub, "--once") as process:
        if process.wait(600) != 0:
            raise RuntimeError("the driver failed")


def patiently(start: Callable[[], T]) -> T:
    """Try again what a machine under load may not do in time."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(RuntimeError):
            return start()
    return start()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for batch in journal.open(folder).scan() for row in batch.to_pylist()]


def test_every_row_counts_once_whoever_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311 - not for secrets
    source, receiver = Hub(tmp_path / "journal"), Hub(tmp_path / "received")
    tick = threading.Event()
    number = 0
    with ExitStack() as stack:
        for hub in (source, receiver):
            stack.callback(hub.stack.close)
            hub.start()
        traffic = Traffic(source)
        for life in range(LIVES):
            with driver(tmp_path, receiver.http) as process:
                assert process.stdout is not None
                started = threading.Thread(target=process.stdout.readline)
                started.start()
                before, left = steps_done(tmp_path), chance.uniform(0, LONGEST_LIFE)
                while left > 0:
                    traffic.round(number)
                    number += 1
                    tick.wait(PAUSE)
                    # Every other life is one that gets something done first, unless it ends by itself.
                    begun = not started.is_alive() if life % 2 else steps_done(tmp_path) > before
                    if begun or process.poll() is not None:
                        left -= PAUSE
                if life == 1:
                    source.kill()
                    traffic.close()
                    source.start()
                    traffic = Traffic(source)
                if life == 2:
                    receiver.kill()
                    receiver.start()
        traffic.close()
        assert steps_done(tmp_path) >= (LIVES + 1) // 2
        patiently(lambda: catch_up(tmp_path, receiver.http))
        for hub in (source, receiver):
            assert hub.process is not None
            hub.process.stop()
    rows = rows_of(tmp_path / "journal")
    wanted = tables(rows)
    lake = Lake(tmp_path / "lake")
    for name in TABLES:
        assert collected(lake.read(name, spark)) == ordered(wanted[name]), name
    sent = Counter((f"out/{row['channel']}", row["body"]) for row in rows if _is_sent(row))
    got = Counter((row["channel"], row["body"]) for row in rows_of(tmp_path / "received") if row["kind"] == "publish")
    assert set(sent.values()) == {1}
    assert got == sent
    assert len(sent) == number * len(PROTOCOLS)


def _is_sent(row: dict[str, Any]) -> bool:
    return row["kind"] == "publish" and str(row["channel"]).startswith("in/")
