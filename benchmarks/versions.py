"""``python -m benchmarks.versions --other CHECKOUT``: this version against another checkout's, measured in turns.

Compile the other checkout's hot modules first (``make build`` there). The load of hubs, and the interpreter, are this
one's; the loads of codecs and clients are each checkout's own. Exits with 1 where something has become slower.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean, median
from typing import TypeVar

from benchmarks.brokers import polywire
from benchmarks.clients import HERE, OURS, SECONDS, call_server, publish, rate
from benchmarks.clients import IN_FLIGHT as CALLS_IN_FLIGHT
from benchmarks.goals import Line
from benchmarks.hub import LISTENERS, PAIRS
from benchmarks.hub_load import latency, throughput
from benchmarks.journal import PUBLISHERS, WINDOW, folder
from benchmarks.mqtt_windows import acknowledged_rate
from benchmarks.scenarios import Choice, run
from polywire.registry import built_in

ROUNDS = 9
LEAST = 0.95
"""How fast this version is to be at least, where the other is 1."""

TURNS = (0, 1, 1, 0)
"""Which hub is measured when in a round: this version's (0) or the other's."""

MESSAGES = 1_024_000
MESSAGES_JOURNALED = 6 * MESSAGES
"""So many that what still waits for the disk at the end, which is not measured, is a small part of them."""

ACKNOWLEDGED = 100_000
IN_FLIGHT = 2_500
PUBLISHED = 200_000
CALLS = 10_000


Ports = dict[str, int]
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The other checkout, and how often each is measured."""

    other: Path
    rounds: int


@contextlib.contextmanager
def hubs(sizes: Sizes, *, journal: bool = False) -> Iterator[tuple[Ports, Ports]]:
    """This version's hub and the other's."""
    with folder() as path, contextlib.ExitStack() as stack:

        def hub(name: str, source: Path | None) -> Ports:
            kept = ("journal.enabled=true", f"journal.path={path / name}") if journal else ()
            return stack.enter_context(polywire(*kept, source=source))[0]

        yield hub("now", None), hub("before", sizes.other / "src")


def compared(
    sizes: Sizes,
    opened: Callable[[], contextlib.AbstractContextManager[tuple[Subject, Subject]]],
    measures: Mapping[str, Callable[[Subject], float]],
    *,
    unit: str,
) -> Iterator[Line]:
    """A line for each measurement of what ``opened`` gives: this version's and the other's.

    The speed of a machine changes from second to second, and two processes of one version differ by a tenth for as long
    as they run. So each round has processes of its own, measures them in short turns and gives a ratio. The median
    counts.
    """
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in measures}
    for _ in range(sizes.rounds):
        with opened() as subjects:
            for what, measure in measures.items():
                for subject in subjects:
                    measure(subject)  # to warm up
                rates: tuple[list[float], list[float]] = ([], [])
                for which in TURNS:
                    rates[which].append(measure(subjects[which]))
                found[what].append((harmonic_mean(rates[0]), harmonic_mean(rates[1])))
    for what, rounds in found.items():
        ratio = median(one / other for one, other in rounds)
        now, before = (median(each[index] for each in rounds) for index in (0, 1))
        yield Line(what, f"{now:.3g} {unit}, before {before:.3g}", ratio, least=LEAST)


def pair(publisher: str, subscriber: str, messages: int, ports: Ports) -> float:
    """Million messages per second."""
    ends = (ports[LISTENERS.get(publisher, publisher)], ports[LISTENERS.get(subscriber, subscriber)])
    return throughput(publisher, subscriber, ends, messages) / 1e6


def speed(sizes: Sizes) -> Iterator[Line]:
    """Messages pipelined, without a journal."""
    measures = {
        f"{what}, throughput": functools.partial(pair, *ends, MESSAGES if goal >= 1 else MESSAGES // 4)
        for ends, (what, goal) in PAIRS.items()
    }
    return compared(sizes, functools.partial(hubs, sizes), measures, unit="M msg/s")


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and those it starts, on one core: waking another one can take longer than all the rest."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def delay(sizes: Sizes) -> Iterator[Line]:
    """One message in flight: how many there are in a second, by the median."""

    def rate(name: str, ports: Ports) -> float:
        return 1e6 / latency(name, ports[name], IN_FLIGHT)[0]

    measures = {f"{name.upper()}, one in flight": functools.partial(rate, name) for name in ("fmqp", "mqtt")}
    with one_core():
        yield from compared(sizes, functools.partial(hubs, sizes), measures, unit="msg/s")


def journal(sizes: Sizes) -> Iterator[Line]:
    """Messages pipelined, and those whose publishers wait for the disk."""
    measures: dict[str, Callable[[Ports], float]] = {
        f"{name.upper()}, journaled": functools.partial(pair, name, name, MESSAGES_JOURNALED)
        for name in ("fmqp", "mqtt")
    }

    def fsynced(ports: Ports) -> float:
        return acknowledged_rate(ports["mqtt"], PUBLISHERS, WINDOW, ACKNOWLEDGED) / 1e6

    measures["MQTT QoS 1, fsynced"] = fsynced
    return compared(sizes, functools.partial(hubs, sizes, journal=True), measures, unit="M msg/s")


def wire(sizes: Sizes) -> Iterator[Line]:
    """Nanoseconds a frame, of each case that both versions have."""
    for protocol in (each.name for each in built_in()):
        found: dict[str, tuple[list[float], list[float]]] = {}
        for _ in range(sizes.rounds):
            for which in TURNS:
                for what, ns in timings((HERE, sizes.other)[which], protocol):
                    found.setdefault(f"{protocol}, {what}", ([], []))[which].append(ns)
        for what, (now, before) in found.items():
            if now and before:
                # What disturbs a loop makes it slower, never faster.
                shown = f"{min(now):.3g} ns, before {min(before):.3g}"
                yield Line(what, shown, min(before) / min(now), least=LEAST)


def timings(checkout: Path, protocol: str) -> list[tuple[str, float]]:
    """The cases of a checkout's codec with their nanoseconds a frame, from a process of its own."""
    command = [sys.executable, str(HERE / "benchmarks" / "wire_timing.py"), str(checkout), protocol]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS, cwd=checkout)
    rows: list[tuple[str, float]] = json.loads(done.stdout)
    return rows


def publishing(sizes: Sizes) -> Iterator[Line]:
    """Clients that publish to the same hub, this version's."""

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[tuple[Path, Ports], tuple[Path, Ports]]]:
        with polywire() as (ports, _):
            yield (HERE, ports), (sizes.other, ports)

    def rate_of(name: str, subject: tuple[Path, Ports]) -> float:
        checkout, ports = subject
        return publish(name, ports["fmqp" if name == "bus" else name], PUBLISHED, checkout) / 1e3

    measures = {f"{OURS[name]}, publishing": functools.partial(rate_of, name) for name in ("fmqp", "mqtt", "bus")}
    return compared(sizes, opened, measures, unit="k msg/s")


def calls(sizes: Sizes, in_flight: int) -> Iterator[Line]:
    """Calls between two peers of one version."""

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[tuple[Path, int], tuple[Path, int]]]:
        with call_server("umq") as now, call_server("umq", sizes.other) as before:
            yield (HERE, now), (sizes.other, before)

    def rate_of(subject: tuple[Path, int]) -> float:
        checkout, port = subject
        return rate("umq", port, CALLS, in_flight, checkout) / 1e3

    return compared(sizes, opened, {f"UMQ, calls, {in_flight} in flight": rate_of}, unit="k calls/s")


def clients(sizes: Sizes) -> Iterator[Line]:
    """Clients that publish, and those that call."""
    yield from publishing(sizes)
    yield from calls(sizes, CALLS_IN_FLIGHT)
    with one_core():
        yield from calls(sizes, 1)


SCENARIOS: dict[str, Callable[[Sizes], Iterator[Line]]] = {
    "speed": speed,
    "delay": delay,
    "journal": journal,
    "wire": wire,
    "clients": clients,
}


def main() -> int:
    choice = Choice("versions", __doc__, SCENARIOS, ROUNDS)
    choice.parser.add_argument("--other", type=Path, required=True, help="the other checkout")
    options = choice.read()
    return run(options.scenario, SCENARIOS, Sizes(options.other.absolute(), options.rounds))


if __name__ == "__main__":
    sys.exit(main())
