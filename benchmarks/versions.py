"""``python -m benchmarks.versions --other CHECKOUT``: this version against another checkout's, measured in turns.

Compile the other checkout's hot modules first (``make build`` there). The load of hubs, and the interpreter, are this
one's; codecs and clients are measured by each checkout's own ``bench-wire`` and ``bench-clients``. Exits with 1 where
something has become slower.
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean, median

from benchmarks.brokers import polywire
from benchmarks.clients import HERE, OURS, call_server, output, publish, rate
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """The other checkout, and how often each is measured."""

    other: Path
    rounds: int


def compared(
    sizes: Sizes, measures: Mapping[str, Callable[[dict[str, int]], float]], *, journal: bool, unit: str
) -> Iterator[Line]:
    """A line for each measurement of a hub, given by its ports.

    The speed of a machine changes from second to second, and two processes of one version differ by a tenth for as long
    as they run. So each round has hubs of its own, measures them in short turns and gives a ratio. The median counts.
    """
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in measures}
    for _ in range(sizes.rounds):
        with folder() as path, contextlib.ExitStack() as stack:
            hubs: list[dict[str, int]] = []
            for source in (None, sizes.other / "src"):
                kept = ("journal.enabled=true", f"journal.path={path / str(len(hubs))}") if journal else ()
                hubs.append(stack.enter_context(polywire(*kept, source=source))[0])
            for what, measure in measures.items():
                for ports in hubs:
                    measure(ports)  # to warm up
                rates: tuple[list[float], list[float]] = ([], [])
                for which in TURNS:
                    rates[which].append(measure(hubs[which]))
                found[what].append((harmonic_mean(rates[0]), harmonic_mean(rates[1])))
    for what, rounds in found.items():
        ratio = median(one / other for one, other in rounds)
        now, before = (median(each[index] for each in rounds) for index in (0, 1))
        yield Line(what, f"{now:.3g} {unit}, before {before:.3g}", ratio, least=LEAST)


def pair(publisher: str, subscriber: str, messages: int, ports: dict[str, int]) -> float:
    """Million messages per second."""
    ends = (ports[LISTENERS.get(publisher, publisher)], ports[LISTENERS.get(subscriber, subscriber)])
    return throughput(publisher, subscriber, ends, messages) / 1e6


def speed(sizes: Sizes) -> Iterator[Line]:
    """Messages pipelined, without a journal."""
    measures = {
        f"{what}, throughput": functools.partial(pair, *ends, MESSAGES if goal >= 1 else MESSAGES // 4)
        for ends, (what, goal) in PAIRS.items()
    }
    return compared(sizes, measures, journal=False, unit="M msg/s")


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

    def rate(name: str, ports: dict[str, int]) -> float:
        return 1e6 / latency(name, ports[name], IN_FLIGHT)[0]

    measures = {f"{name.upper()}, one in flight": functools.partial(rate, name) for name in ("fmqp", "mqtt")}
    with one_core():
        yield from compared(sizes, measures, journal=False, unit="msg/s")


def journal(sizes: Sizes) -> Iterator[Line]:
    """Messages pipelined, and those whose publishers wait for the disk."""
    measures: dict[str, Callable[[dict[str, int]], float]] = {
        f"{name.upper()}, journaled": functools.partial(pair, name, name, MESSAGES_JOURNALED)
        for name in ("fmqp", "mqtt")
    }

    def fsynced(ports: dict[str, int]) -> float:
        return acknowledged_rate(ports["mqtt"], PUBLISHERS, WINDOW, ACKNOWLEDGED) / 1e6

    measures["MQTT QoS 1, fsynced"] = fsynced
    return compared(sizes, measures, journal=True, unit="M msg/s")


def wire(sizes: Sizes) -> Iterator[Line]:
    """Nanoseconds a frame, of each case that both versions have."""
    for protocol in (each.name for each in built_in()):
        found: dict[str, tuple[list[float], list[float]]] = {}
        for _ in range(sizes.rounds):
            for which in TURNS:
                rows = json.loads(output("wire", "--measure", protocol, checkout=(HERE, sizes.other)[which]))
                for row in rows:
                    what = f"{protocol}, {row['what']}, {row['size']}"
                    found.setdefault(what, ([], []))[which].append(row["ns"])
        for what, (now, before) in found.items():
            if now and before:
                # What disturbs a loop makes it slower, never faster.
                shown = f"{min(now):.3g} ns, before {min(before):.3g}"
                yield Line(what, shown, min(before) / min(now), least=LEAST)


def clients(sizes: Sizes) -> Iterator[Line]:
    """Clients that publish to the same hub, and calls between two of one version."""
    measures: dict[str, Callable[[Path], float]] = {}
    with polywire() as (ports, _), contextlib.ExitStack() as stack:

        def publishing(name: str, port: int, checkout: Path) -> float:
            return publish(name, port, PUBLISHED, checkout) / 1e3

        servers = {each: stack.enter_context(call_server("umq", each)) for each in (HERE, sizes.other)}

        def calling(in_flight: int, checkout: Path) -> float:
            return rate("umq", servers[checkout], CALLS, in_flight, checkout) / 1e3

        for name, listener in {"fmqp": "fmqp", "mqtt": "mqtt", "bus": "fmqp"}.items():
            measures[f"{OURS[name]}, publishing"] = functools.partial(publishing, name, ports[listener])
        for in_flight in (CALLS_IN_FLIGHT, 1):
            measures[f"UMQ, calls, {in_flight} in flight"] = functools.partial(calling, in_flight)
        for what, measure in measures.items():
            rates: tuple[list[float], list[float]] = ([], [])
            for _ in range(sizes.rounds):
                for which in TURNS:
                    rates[which].append(measure((HERE, sizes.other)[which]))
            now, before = median(rates[0]), median(rates[1])
            yield Line(what, f"{now:.3g} k/s, before {before:.3g}", now / before, least=LEAST)


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
