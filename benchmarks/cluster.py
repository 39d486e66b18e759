"""``make bench-cluster``: hubs that are one, against nats-server over a route, and against the goals for clusters.

Throughput: 16 topics over 8 subscribers, 64-byte bodies, pipelined; the publisher is on one node, the subscribers are
on another. nats-server does the same between two servers of a cluster, with one message per NATS message. Latency: one
message in flight from node to node, against the same on one hub. CPU is that of all hubs together.
Each figure is the median of several rounds, taking turns. Exits with 1 where a goal is missed.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.brokers import cluster, nats_cluster, nats_hubs, polywire, workers
from benchmarks.goals import Line, in_turns
from benchmarks.hub_load import SETTLE, counted, latency, throughput
from benchmarks.hub_peers import BODY, peer
from benchmarks.scenarios import Choice, run

ROUNDS = 5
MOST_CPU = 0.45
TICKS = os.sysconf("SC_CLK_TCK")
BOUND = {("mqtt_qos1", "mqtt_qos1"): "MQTT QoS 1", ("fmqp", "umq"): "FMQP to UMQ", ("mqtt", "sabc"): "MQTT to sABC"}
"""Loads that keep a hub's processor busy: publishers and subscribers."""

LISTENERS = {"mqtt_qos1": "mqtt"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    rounds: int = ROUNDS
    messages: int = 2_048_000
    in_flight: int = 5_000


def cpu_seconds(*pids: int) -> float:
    """The processor time that processes have used."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


class Costed:
    """A throughput, and what it costs the hubs."""

    def __init__(self, ends: tuple[int, int], names: tuple[str, str], messages: int, *pids: int) -> None:
        self._ends = ends
        self._names = names
        self._messages = messages
        self._pids = pids
        self.micros: list[float] = []

    def __call__(self) -> float:
        """Run it once. Messages a second."""
        before = cpu_seconds(*self._pids)
        found = throughput(*self._names, self._ends, self._messages)
        self.micros.append((cpu_seconds(*self._pids) - before) / counted(self._messages) * 1e6)
        return found

    def cost(self) -> float:
        """Microseconds of the hubs' processors for a message."""
        return median(self.micros)


def speed(sizes: Sizes) -> Iterator[Line]:
    """From worker to worker and from hub to hub, against nats-server over a route."""
    pair = ("fmqp", "fmqp")
    with workers(2) as (one, other), nats_cluster(2) as route:
        local = Costed((one["fmqp"], other["fmqp"]), pair, sizes.messages, *_pids(one["http"]))
        runs: dict[str, Callable[[], float]] = {
            "nats": functools.partial(throughput, "nats", "nats", (route[0], route[1]), sizes.messages),
            "workers": local,
        }
        found = in_turns(runs, sizes.rounds)
    shown = f"{found['workers'] / 1e6:.2f} M msg/s, nats {found['nats'] / 1e6:.2f}"
    yield Line("worker to worker, FMQP", shown, found["workers"] / found["nats"], least=1.5)
    yield Line("worker to worker, CPU of a message", "both hubs", local.cost(), most=MOST_CPU, unit="µs")


def nats(sizes: Sizes) -> Iterator[Line]:
    """From hub to hub over two NATS servers, against the servers alone."""
    pair = ("fmqp", "fmqp")
    with nats_cluster(2, _folder()) as servers, nats_hubs(2, servers) as ((one, first), (other, second)):
        distant = Costed((one["fmqp"], other["fmqp"]), pair, sizes.messages, first, second)
        runs: dict[str, Callable[[], float]] = {
            "nats": functools.partial(throughput, "nats", "nats", (servers[0], servers[1]), sizes.messages),
            "hubs": distant,
        }
        found = in_turns(runs, sizes.rounds)
    shown = f"{found['hubs'] / 1e6:.2f} M msg/s, nats {found['nats'] / 1e6:.2f}"
    yield Line("hub to hub over NATS, FMQP", shown, found["hubs"] / found["nats"], least=1.0)
    yield Line("hub to hub over NATS, CPU of a message", "both hubs", distant.cost(), most=MOST_CPU, unit="µs")


def delay(sizes: Sizes) -> Iterator[Line]:
    """One message in flight, from node to node and on one hub."""
    with (
        polywire() as (alone, _),
        workers(2) as (one, other),
        nats_cluster(2, _folder()) as servers,
        nats_hubs(2, servers) as ((near, _), (far, _)),
    ):
        tails: dict[str, list[float]] = {}

        def measure(name: str, subscriber: int, publisher: int) -> float:
            p50, p99 = latency("fmqp", subscriber, sizes.in_flight, publish_at=publisher)
            tails.setdefault(name, []).append(p99)
            return p50

        found = in_turns(
            {
                "one hub": functools.partial(measure, "one hub", alone["fmqp"], alone["fmqp"]),
                "workers": functools.partial(measure, "workers", other["fmqp"], one["fmqp"]),
                "NATS": functools.partial(measure, "NATS", far["fmqp"], near["fmqp"]),
            },
            sizes.rounds,
        )
    for name in ("workers", "NATS"):
        shown = f"{found[name]:.0f} µs, one hub {found['one hub']:.0f} µs"
        yield Line(f"one in flight, {name}, p50", shown, found[name] - found["one hub"], most=150, unit="µs more")
        tail, base = median(tails[name]), median(tails["one hub"])
        yield Line(
            f"one in flight, {name}, p99",
            f"{tail:.0f} µs, one hub {base:.0f} µs",
            tail - base,
            most=1000,
            unit="µs more",
        )


def silence(sizes: Sizes) -> Iterator[Line]:
    """What nobody on another node wants."""
    clients = peer("fmqp")
    with (
        workers(2) as (one, other),
        clients.subscribe(one["fmqp"], ["wanted/here", "last"]) as reader,
        clients.subscribe(other["fmqp"], ["wanted/there"]),
        clients.publisher(one["fmqp"]) as publisher,
    ):
        time.sleep(SETTLE)
        before = _bytes_sent(one["http"])
        count = sizes.messages // 100
        frame, last = clients.frame("wanted/here", BODY), clients.frame("last", BODY)
        publisher.sendall(frame * count + last)
        left = clients.received("wanted/here", BODY) * count + clients.received("last", BODY)
        while left > 0:
            left -= len(reader.recv(1 << 18))
        sent = _bytes_sent(one["http"]) - before
    yield Line("bytes on links for what only this node wants", f"{count:,} messages", sent, most=0, unit="bytes")


def scaling(sizes: Sizes) -> Iterator[Line]:
    """Two workers against one, with the load on the same processors. There is no goal: it is what it is."""
    messages = sizes.messages // 4
    with polywire() as (alone, pid), workers(2) as (one, other):
        runs: dict[tuple[str, str, str], Costed] = {}
        for pair in BOUND:
            keys = [LISTENERS.get(each, each) for each in pair]
            runs[(*pair, "one")] = Costed((alone[keys[0]], alone[keys[1]]), pair, messages, pid)
            # As the operating system deals connections out: some cross, some do not.
            shared = (int(one[keys[0]]), int(one[keys[1]]))
            runs[(*pair, "two")] = Costed(shared, pair, messages, *_pids(one["http"]))
        assert other
        found = in_turns(runs, sizes.rounds)
    for pair, what in BOUND.items():
        single, double = runs[(*pair, "one")], runs[(*pair, "two")]
        speeds = found[(*pair, "one")], found[(*pair, "two")]
        shown = f"{speeds[1] / 1e3:.0f} k msg/s, one {speeds[0] / 1e3:.0f}"
        yield Line(f"two workers, {what}, throughput", shown, speeds[1] / speeds[0], least=0)
        shown = f"{double.cost():.2f} µs, one {single.cost():.2f}"
        yield Line(f"two workers, {what}, CPU of a message", shown, double.cost() / (single.cost() or 1), least=0)


def _pids(port: int) -> list[int]:
    return [node["pid"] for node in cluster(port)["nodes"]]


def _bytes_sent(port: int) -> int:
    nodes = cluster(port)["nodes"]
    return sum(link["bytes_sent"] for node in nodes for link in node.get("links", {}).values())


@functools.cache
def _folder() -> Path:
    """Where NATS servers keep what they have; a new one for each run."""
    found = Path("build") / "bench-cluster" / str(os.getpid())
    found.mkdir(parents=True)
    return found.absolute()


SCENARIOS: dict[str, Callable[[Sizes], Iterator[Line]]] = {
    "speed": speed,
    "nats": nats,
    "delay": delay,
    "silence": silence,
    "scaling": scaling,
}


def main() -> int:
    choice = Choice("cluster", __doc__, SCENARIOS, ROUNDS)
    choice.parser.add_argument("--messages", type=int, default=2_048_000, help="messages a round (default: 2,048,000)")
    options = choice.read()
    return run(options.scenario, SCENARIOS, Sizes(rounds=options.rounds, messages=options.messages))


if __name__ == "__main__":
    sys.exit(main())
