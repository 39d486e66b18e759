"""``make bench-hub``: the hub against nats-server, both in the same run, side by side, and against its own goals.

Throughput: 16 topics spread over 8 subscribers, 64-byte bodies, pipelined; one process publishes, one reads, so broker
and load share the machine's cores the same way for everybody. Latency: one message in flight, there and back.
Each figure is the median of several rounds, brokers taking turns. Exits with 1 where a goal is missed.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.brokers import nats_server, polywire
from benchmarks.goals import Line, in_turns
from benchmarks.hub_growth import subscriptions, topics
from benchmarks.hub_load import latency, throughput
from benchmarks.hub_memory import idle, not_reading
from benchmarks.scenarios import Choice, run

ROUNDS = 5
TURNS = 4
"""In how many parts a round of single messages is cut: a busy moment of the machine then spoils one of them only."""
SAME = 1.5
BRIDGED = 0.3

PAIRS = {
    ("fmqp", "fmqp"): ("FMQP", SAME),
    ("mqtt", "mqtt"): ("MQTT, QoS 0", SAME),
    ("fmqp", "umq"): ("FMQP to UMQ", BRIDGED),
    ("mqtt", "sabc"): ("MQTT to sABC", BRIDGED),
    ("mqtt_qos1", "mqtt_qos1"): ("MQTT, QoS 1", BRIDGED),
}
"""Publishers and subscribers, and how many times nats-server's throughput they are to reach."""

LISTENERS = {"mqtt_qos1": "mqtt"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    rounds: int = ROUNDS
    messages: int = 2_048_000
    in_flight: int = 20_000
    few: int = 1_000
    many: int = 1_000_000
    idle: int = 10_000
    octets: int = 1_000_000_000


def speed(sizes: Sizes) -> Iterator[Line]:
    """Messages pipelined."""
    with polywire() as (ports, _), nats_server() as (nats, _):
        runs: dict[tuple[str, str], Callable[[], float]] = {
            ("nats", "nats"): functools.partial(throughput, "nats", "nats", (nats, nats), sizes.messages)
        }
        for pair, (_, goal) in PAIRS.items():
            ends = (ports[LISTENERS.get(pair[0], pair[0])], ports[LISTENERS.get(pair[1], pair[1])])
            messages = sizes.messages if goal >= 1 else sizes.messages // 4
            runs[pair] = functools.partial(throughput, *pair, ends, messages)
        found = in_turns(runs, sizes.rounds)
    base = found["nats", "nats"]
    for pair, (what, goal) in PAIRS.items():
        shown = f"{found[pair] / 1e6:.2f} M msg/s, nats {base / 1e6:.2f}"
        yield Line(f"{what}, throughput", shown, found[pair] / base, least=goal)


def delay(sizes: Sizes) -> Iterator[Line]:
    """One message in flight."""
    with polywire() as (ports, _), nats_server() as (nats, _):
        measured: dict[str, list[float]] = {}

        def run(name: str, port: int) -> float:
            p50, p99 = latency(name, port, sizes.in_flight // TURNS)
            measured.setdefault(name, []).append(p99)
            return p50

        runs = {"nats": functools.partial(run, "nats", nats)}
        runs.update({name: functools.partial(run, name, ports[name]) for name in ("fmqp", "mqtt")})
        p50 = in_turns(runs, sizes.rounds * TURNS)
    p99 = {name: median(measured[name]) for name in runs}
    for name in ("fmqp", "mqtt"):
        for what, found in (("p50", p50), ("p99", p99)):
            shown = f"{found[name]:.0f} µs, nats {found['nats']:.0f} µs"
            yield Line(f"{name.upper()}, one in flight, {what}", shown, found[name] / found["nats"], most=1.2)


def growth(sizes: Sizes) -> Iterator[Line]:
    """Many subscriptions."""
    return subscriptions(sizes.few, sizes.many, sizes.messages, sizes.rounds)


def names(sizes: Sizes) -> Iterator[Line]:
    """Many topics."""
    return topics(sizes.few, sizes.many, sizes.rounds)


def connections(sizes: Sizes) -> Iterator[Line]:
    """Many connections."""
    return idle(sizes.idle)


def readers(sizes: Sizes) -> Iterator[Line]:
    """Those who never read."""
    yield from not_reading("fmqp", sizes.octets)
    yield from not_reading("mqtt", sizes.octets)


SCENARIOS: dict[str, Callable[[Sizes], Iterator[Line]]] = {
    "speed": speed,
    "delay": delay,
    "growth": growth,
    "topics": names,
    "connections": connections,
    "readers": readers,
}


def main() -> int:
    choice = Choice("hub", __doc__, SCENARIOS, ROUNDS)
    choice.parser.add_argument("--messages", type=int, default=2_048_000, help="messages a round (default: 2,048,000)")
    options = choice.read()
    return run(options.scenario, SCENARIOS, Sizes(rounds=options.rounds, messages=options.messages))


if __name__ == "__main__":
    sys.exit(main())
