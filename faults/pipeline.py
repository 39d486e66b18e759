"""The pipeline, with all of its parts killed again and again in the middle of traffic on all protocols.

Clients publish, put into queues, call and break rules. ``polywire pipeline run`` turns the journal into tables on a
small Spark cluster of this machine (``faults/driver.py``); what is published under ``in/`` is published back into a
second hub. At the end the tables must equal, row by row, what the documentation says of the journal's rows
(``tests/pipeline/tables/reference.py``), and every row that was to be published back must be in the second hub's
journal once. Journal and tables are read with pyarrow alone.

What is killed, and when, follows from the seed.
"""

import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import ipc

from tests.hub_process import HubProcess, StartError, running_hub
from tests.interop.speaker import FailureError as Refusal
from tests.interop.speaker import HungUpError, RefusedError, Speaker, StreamWire
from tests.interop.speakers import PROTOCOLS, speak
from tests.pipeline.tables import reference
from tests.pipeline.tables.rows import ordered

MASTER = "local-cluster[2,1,1024]"
"""Two executors in processes of their own."""

VICTIMS = {
    "executor": 12,
    "hub": 11,
    "Python worker": 9,
    "driver": 7,
    "JVM": 5,
    "receiving hub": 4,
    "whole process group": 2,
}
"""What is killed, and how often of 50 times, about."""

EARLY = 0.25
"""How often it is killed at once, and not after a step that was done."""

LONGEST = 3.0
"""Seconds after that step in which it is killed."""

START_SECONDS = 600.0
STEP_SECONDS = 600.0
CATCH_UP_SECONDS = 900.0
TRIES = 4
"""How often the driver may fail at the end, when nothing is killed any more."""

PAUSE = 0.1
"""Seconds between two rounds of traffic."""

BUILT_IN = ("messages", "calls", "sessions", "faults", "traffic", "latency", "demand")
LOST = (OSError, HungUpError, RefusedError, TimeoutError, AssertionError)
"""What clients run into when their hub is killed."""


class FailureError(Exception):
    """Rows are missing or there twice, or the pipeline does not get on. ``kept`` is where everything is."""

    def __init__(self, reason: str, kept: Path) -> None:
        super().__init__(reason)
        self.reason, self.kept = reason, kept


@dataclass(frozen=True)
class Kill:
    """What is killed; ``early`` without waiting for a step, and so many seconds later."""

    victim: str
    early: bool
    delay: float


def planned(seed: int, kills: int) -> list[Kill]:
    """The kills of a seed: each victim as often as it should, in any order."""
    chance = random.Random(seed)  # noqa: S311 - a plan, no secret
    whole = sum(VICTIMS.values())
    victims = [name for name, often in VICTIMS.items() for _ in range(often * kills // whole)]
    victims += chance.choices(list(VICTIMS), list(VICTIMS.values()), k=kills - len(victims))
    chance.shuffle(victims)
    return [Kill(victim, chance.random() < EARLY, chance.uniform(0, LONGEST)) for victim in victims]


@dataclass
class Hub:
    """A hub that can be killed and started again at the same HTTP address."""

    folder: Path
    process: HubProcess | None = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    http: str = "http://127.0.0.1:0"

    def start(self) -> None:
        sets = (f"listen.http={self.http}", "journal.segment_size=1 MiB")
        self.process = self.stack.enter_context(running_hub(*sets, journal=self.folder))
        self.http = self.process.addresses["http"]

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.process.send_signal(how)
            self.process.process.wait(60)
            self.process = None
        self.stack.close()


class Traffic(threading.Thread):
    """Clients of all protocols at work, connected again whenever their hub has been."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(daemon=True)
        self._hub = hub
        self._over = threading.Event()
        self._number = 0

    def close(self) -> None:
        """Come to the end of a round, and stop."""
        self._over.set()
        self.join(60)

    def run(self) -> None:
        while not self._over.is_set():
            process = self._hub.process
            if process is not None:
                with contextlib.suppress(*LOST), contextlib.ExitStack() as stack:
                    self._work(stack, process)
            self._over.wait(PAUSE)

    def _work(self, stack: contextlib.ExitStack, hub: HubProcess) -> None:
        def connected(name: str) -> Speaker:
            return stack.enter_context(speak(name, hub.addresses))

        speakers = {name: connected(name) for name in PROTOCOLS}
        providers = {"turner": connected("umq"), "miller": connected("mqtt"), "mute": connected("sabc")}
        for service, provider in providers.items():
            provider.serve(service)
        speakers["mqtt"].subscribe("in/fmqp")
        speakers["umq"].begin_call("mute", "Say", b"?")
        while not self._over.is_set():
            self._number += 1
            self._round(speakers, providers, hub)
            self._over.wait(PAUSE)

    def _round(self, speakers: dict[str, Speaker], providers: dict[str, Speaker], hub: HubProcess) -> None:
        """One of everything."""
        number = self._number
        for name, speaker in speakers.items():
            speaker.publish(f"in/{name}", f"{name} {number}".encode())
        speakers["mqtt"].receive()
        speakers["micromsg"].publish("queue/work", str(number).encode())
        for name, service in (("umq", "turner"), ("sabc", "turner"), ("mqtt", "miller")):
            ticket = speakers[name].begin_call(service, "polywire/Turn", str(number).encode())
            providers[service].answer(_turned)
            with contextlib.suppress(RefusedError):
                speakers[name].end_call(ticket)
        if number % 7 == 0:
            with speak("mqtt", hub.addresses) as guest:
                guest.subscribe(f"in/{PROTOCOLS[number % len(PROTOCOLS)]}")
        if number % 5 == 0:
            wire = StreamWire(hub.addresses["sabc"])
            wire.send(f"nonsense {number}\n\n\0")
            wire.close()


def _turned(_method: str, body: bytes) -> bytes:
    if body.endswith(b"3"):
        raise Refusal(422, "three", "no threes")
    return body[::-1]


@dataclass(frozen=True)
class Process:
    """A process as the system lists it."""

    pid: int
    parent: int
    command: str


def processes(session: int) -> list[Process]:
    """All living processes of a session."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, _, its = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its) == session and state not in {"Z", "X"}:
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(Process(int(place.name), int(parent), command))
    return found


class Driver:
    """The driver with everything it has started: a session of processes."""

    def __init__(self, place: Path, hub: str, *more: str) -> None:
        words = [str(place / "journal"), str(place / "lake"), hub, MASTER, *more]
        self._log = (place / "driver.log").open("a", encoding="utf-8")
        self.process = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", "faults.driver", *words],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parent.parent,
        )
        self.started = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.strip() == "started":
                    self.started.set()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def find(self, victim: str) -> list[int]:
        """The processes that are a victim."""
        own = processes(self.process.pid)
        java = [one for one in own if "/bin/java" in one.command]
        executors = [one.pid for one in java if "CoarseGrainedExecutorBackend" in one.command]
        if victim == "driver":
            return [self.process.pid]
        if victim == "JVM":
            return [one.pid for one in java if "SparkSubmit" in one.command]
        if victim == "executor":
            return executors
        if victim == "Python worker":
            return [one.pid for one in own if one not in java and one.pid != self.process.pid]
        return [one.pid for one in own]

    def close(self) -> None:
        """End what is left of it."""
        limit = time.monotonic() + 30
        while (left := processes(self.process.pid)) and time.monotonic() < limit:
            for one in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        self.process.wait(30)
        self._listener.join(30)
        self._log.close()


class Campaign:
    """Kills on one journal and one lake."""

    def __init__(self, plan: Sequence[Kill], place: Path, seed: int, say: Callable[[str], None]) -> None:
        self._plan, self._place, self._say = plan, place, say
        self._chance = random.Random(seed + 1)  # noqa: S311 - as above
        self.tally: collections.Counter[str] = collections.Counter()
        self._source, self._receiver = Hub(place / "journal"), Hub(place / "received")
        self._drivers: list[Driver] = []

    def run(self, minutes: float) -> None:
        """Kill, catch up and compare."""
        limit = time.monotonic() + minutes * 60
        with contextlib.ExitStack() as stack:
            for hub in (self._source, self._receiver):
                stack.callback(hub.stop, signal.SIGKILL)
                hub.start()
            stack.callback(self._end)
            traffic = Traffic(self._source)
            traffic.start()
            stack.callback(traffic.close)
            for kill in self._plan:
                if time.monotonic() > limit:
                    break
                self._carry_out(kill)
            traffic.close()
            self._await_step(self._driver())
            self._end()
            self._source.stop()
            rows, now = self._catch_up()
            self._receiver.stop()
        self._compare(rows, now)

    def _carry_out(self, kill: Kill) -> None:
        driver = self._driver()
        if not kill.early:
            self._await_step(driver)
        time.sleep(kill.delay)  # the moment of the kill is the point
        if kill.victim in {"hub", "receiving hub"}:
            hub = self._source if kill.victim == "hub" else self._receiver
            hub.stop(signal.SIGKILL)
            hub.start()
        else:
            self._kill(kill.victim)
        self.tally[f"kills: {kill.victim}"] += 1
        done = sum(count for what, count in self.tally.items() if what.startswith("kills: "))
        when = "early" if kill.early else f"{kill.delay:.1f} s after a step"
        self._say(f"{done:4} of {len(self._plan)}: {kill.victim}, {when}; {self._steps():,} transactions so far")

    def _kill(self, victim: str) -> None:
        limit = time.monotonic() + START_SECONDS
        while not (found := self._driver().find(victim)):
            if time.monotonic() > limit:
                raise AssertionError(f"there is no {victim} to kill after {START_SECONDS:.0f} s")
            time.sleep(PAUSE)
        chosen = found if victim == "whole process group" else [self._chance.choice(sorted(found))]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victim == "driver":
            self._drivers[-1].process.wait(30)

    def _driver(self) -> Driver:
        """The driver that runs, or a new one."""
        if self._drivers and not self._drivers[-1].ended:
            return self._drivers[-1]
        if self._drivers and (self._drivers[-1].process.returncode or 0) > 0:
            self.tally["drivers that gave up"] += 1
        self._drivers.append(Driver(self._place, self._receiver.http))
        self.tally["drivers"] += 1
        return self._drivers[-1]

    def _await_step(self, driver: Driver) -> None:
        """Wait until something has been written, by this driver or one that is started in its place."""
        before = self._steps()
        limit = time.monotonic() + STEP_SECONDS
        while self._steps() == before:
            if time.monotonic() > limit:
                raise AssertionError(f"the pipeline has not done a step for {STEP_SECONDS:.0f} s")
            time.sleep(PAUSE)
            if driver.ended:
                driver = self._driver()

    def _steps(self) -> int:
        """How many transactions all tables together have had."""
        return sum(1 for _ in (self._place / "lake").rglob("_delta_log/*.json"))

    def _catch_up(self) -> tuple[list[dict[str, Any]], datetime]:
        """Run the pipeline to the end of the journal. Returns its rows, and when it was read to the end."""
        rows = journal_rows(self._place / "journal")
        while True:
            before = datetime.now(UTC)
            self._run_once()
            after = datetime.now(UTC)
            if reference.calls(rows, before) == reference.calls(rows, after):
                return rows, after
            self.tally["runs during which a call timed out"] += 1

    def _run_once(self) -> None:
        for attempt in range(TRIES):
            driver = Driver(self._place, self._receiver.http, "--once")
            self._drivers.append(driver)
            try:
                if driver.process.wait(CATCH_UP_SECONDS) == 0:
                    return
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the pipeline has not caught up within {CATCH_UP_SECONDS:.0f} s") from None
            finally:
                self._end()
            self.tally["attempts to catch up that failed"] = attempt + 1
        raise AssertionError(f"the pipeline has not caught up in {TRIES} attempts")

    def _end(self) -> None:
        for driver in self._drivers:
            driver.close()
        self._drivers.clear()

    def _compare(self, rows: list[dict[str, Any]], now: datetime) -> None:
        wanted = reference.tables(rows, now)
        for name in BUILT_IN:
            found = DeltaTable(str(self._place / "lake" / name)).to_pyarrow_table().to_pylist()
            check_equal(name, ordered(found), ordered(wanted[name]))
            self.tally[f"rows: {name}"] = len(found)
        sent = [(f"out/{one['channel']}", one["body"]) for one in rows if _is_sent(one)]
        got = [
            (one["channel"], one["body"]) for one in journal_rows(self._place / "received") if one["kind"] == "publish"
        ]
        missing, more = collections.Counter(sent) - collections.Counter(got), collections.Counter(got)
        more.subtract(sent)
        assert not missing, f"{missing.total()} rows were not published back, such as {next(iter(missing))}"
        twice = {what: count for what, count in more.items() if count > 0}
        assert not twice, f"{len(twice)} rows were published back too often, such as {next(iter(twice))}"
        self.tally["rows published back"] = len(got)


def _is_sent(one: dict[str, Any]) -> bool:
    return one["kind"] == "publish" and str(one["channel"]).startswith("in/")


def check_equal(name: str, found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    if found == wanted:
        return
    texts = collections.Counter(map(repr, found)), collections.Counter(map(repr, wanted))
    more, missing = texts[0] - texts[1], texts[1] - texts[0]
    raise AssertionError(
        f"table {name}: {missing.total()} rows are missing, {more.total()} should not be there\n"
        + "\n".join(f"  missing: {text}" for text in list(missing)[:3])
        + "\n".join(f"\n  there:   {text}" for text in list(more)[:3])
    )


def journal_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of a journal, with pyarrow alone."""
    rows: list[dict[str, Any]] = []
    for segment in sorted({path.stem for path in folder.glob("[0-9]*") if path.suffix in {".arrow", ".parquet"}}):
        compacted = folder / f"{segment}.parquet"
        if compacted.exists():
            rows += pq.read_table(compacted).to_pylist()
        else:
            with pa.memory_map(str(folder / f"{segment}.arrow")) as data, ipc.open_stream(data) as stream:
                rows += stream.read_all().to_pylist()
    offsets = [one["offset"] for one in rows]
    assert offsets == list(range(len(rows))), "the journal's rows are not numbered one after the other"
    return rows


def campaign(seed: int, kills: int, *, minutes: float, say: Callable[[str], None], keep: Path) -> dict[str, int]:
    """Kill so many times; what happened how often. ``FailureError`` where a row is lost or doubled."""
    with tempfile.TemporaryDirectory(prefix="polywire-faults-") as folder:
        run = Campaign(planned(seed, kills), Path(folder), seed, say)
        try:
            run.run(minutes)
        except (AssertionError, OSError, StartError) as error:
            kept = keep / f"pipeline-{seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            raise FailureError(str(error), kept) from error
        return dict(run.tally)
