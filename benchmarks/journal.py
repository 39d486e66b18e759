"""``make bench-journal``: what the journal costs, against the hub without it, nats-server and Mosquitto, side by side.

The hub writes to a folder beside the checkout, so the disk is the one the project is on. Each figure is the median of
several rounds, taken in turns. Exits with 1 where a goal is missed.
"""

import contextlib
import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from benchmarks.brokers import mosquitto, nats_server, polywire
from benchmarks.goals import Line, in_turns
from benchmarks.hub_load import throughput
from benchmarks.journal_compaction import compaction, write_segments
from benchmarks.mqtt_windows import acknowledged_rate
from benchmarks.scenarios import Choice, run

ROUNDS = 5
MESSAGES = 2_048_000
PUBLISHERS = 100
WINDOW = 20
ROWS = 10_000_000


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder on the project's disk, gone afterwards."""
    build = Path.cwd() / "build"
    build.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-journal-", dir=build))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def speed(rounds: int) -> Iterator[Line]:
    """Journal on against journal off, and against nats-server, which keeps nothing."""
    with (
        folder() as path,
        polywire() as (off, _),
        polywire("journal.enabled=true", f"journal.path={path / 'journal'}") as (on, _),
        nats_server() as (nats, _),
    ):
        runs = {("nats", ""): functools.partial(throughput, "nats", "nats", (nats, nats), MESSAGES)}
        for name in ("fmqp", "mqtt"):
            for how, ports in (("off", off), ("on", on)):
                ends = (ports[name], ports[name])
                runs[name, how] = functools.partial(throughput, name, name, ends, MESSAGES)
        found = in_turns(runs, rounds)
    base = found["nats", ""]
    for name in ("fmqp", "mqtt"):
        on_, off_ = found[name, "on"], found[name, "off"]
        shown = f"{on_ / 1e6:.2f} M msg/s, off {off_ / 1e6:.2f}"
        yield Line(f"{name.upper()}, journal on against off", shown, on_ / off_, least=0.6)
        shown = f"{on_ / 1e6:.2f} M msg/s, nats {base / 1e6:.2f}"
        yield Line(f"{name.upper()}, journal on against nats-server", shown, on_ / base, least=1.0)


def acknowledged(rounds: int) -> Iterator[Line]:
    """QoS 1 that waits for the disk, against Mosquitto with its persistence."""
    messages = 200_000
    with (
        folder() as path,
        polywire("journal.enabled=true", f"journal.path={path / 'journal'}") as (ports, _),
        mosquitto(path / "mosquitto") as port,
    ):
        runs = {
            name: functools.partial(acknowledged_rate, where, PUBLISHERS, WINDOW, messages)
            for name, where in (("hub", ports["mqtt"]), ("mosquitto", port))
        }
        found = in_turns(runs, rounds)
    shown = f"{found['hub'] / 1e3:.0f} k msg/s, Mosquitto {found['mosquitto'] / 1e3:.0f} k"
    yield Line("MQTT QoS 1, fsynced", shown, found["hub"] / found["mosquitto"], least=3.0)


def start(rounds: int) -> Iterator[Line]:
    """How long a hub takes to be ready with many rows in its journal."""
    times = []
    with folder() as path:
        write_segments(path, 10, ROWS // 10 // 16_384 + 1)
        for _ in range(rounds):
            began = time.perf_counter()
            with polywire("journal.enabled=true", f"journal.path={path}", "journal.compact=false"):
                times.append(time.perf_counter() - began)
    seconds = median(times)
    yield Line(f"start with {ROWS / 1e6:g} M rows", f"{seconds:.2f} s", seconds, most=3.0, unit="s")


def compacting(rounds: int) -> Iterator[Line]:
    """Compaction, and what the hub feels of it."""
    return compaction(rounds)


SCENARIOS: dict[str, Callable[[int], Iterator[Line]]] = {
    "speed": speed,
    "acknowledged": acknowledged,
    "start": start,
    "compaction": compacting,
}


def main() -> int:
    options = Choice("journal", __doc__, SCENARIOS, ROUNDS).read()
    return run(options.scenario, SCENARIOS, options.rounds)


if __name__ == "__main__":
    sys.exit(main())
