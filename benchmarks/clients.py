"""``make bench-clients``: our clients against aiomqtt, nats-py and grpc.aio, all in the same run, side by side.

Publishing: one client, bodies of 64 bytes, each publish awaited, QoS 0 where there is one. aiomqtt and ours talk to
the same hub, nats-py to nats-server. Calls: one connection to a server in Python, 64 in flight and one in flight, the
same body there and back. Import: a new interpreter. Each figure is the median of several rounds, taken in turns.
Exits with 1 where a goal is missed.
"""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import nats_server, polywire
from benchmarks.goals import Line, in_turns
from benchmarks.scenarios import Choice, run

ROUNDS = 5
SECONDS = 120
IN_FLIGHT = 64
BEFORE_AIOMQTT = 3.0
BEFORE_NATS = 1.5
BEFORE_GRPC = 2.0
NO_SLOWER = 1.2
IMPORT_MS = 150.0
HERE = Path(__file__).parents[1]

OURS = {"fmqp": "FMQP", "mqtt": "MQTT, QoS 0", "bus": "FMQP over polywire.connect"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    rounds: int = ROUNDS
    messages: int = 200_000
    few: int = 20_000
    calls: int = 20_000
    single: int = 5_000


def publishing(sizes: Sizes) -> Iterator[Line]:
    """One client that publishes."""
    with polywire() as (ports, _), nats_server() as (nats, _):
        at = {"fmqp": ports["fmqp"], "mqtt": ports["mqtt"], "bus": ports["fmqp"]}
        runs = {name: functools.partial(publish, name, port, sizes.messages) for name, port in at.items()}
        runs["nats"] = functools.partial(publish, "nats", nats, sizes.messages)
        runs["aiomqtt"] = functools.partial(publish, "aiomqtt", ports["mqtt"], sizes.few)
        found = in_turns(runs, sizes.rounds)
    for name, what in OURS.items():
        for other, goal in (("aiomqtt", BEFORE_AIOMQTT), ("nats", BEFORE_NATS)):
            words = {"nats": "nats-py"}.get(other, other)
            shown = f"{found[name] / 1e3:.0f} k msg/s, {words} {found[other] / 1e3:.0f}"
            yield Line(f"{what}, publishing", shown, found[name] / found[other], least=goal)


def calling(sizes: Sizes) -> Iterator[Line]:
    """Calls on one connection."""
    with call_server("umq") as umq, call_server("grpc") as grpc:
        ports = {"umq": umq, "grpc": grpc}
        rates = in_turns(
            {name: functools.partial(rate, name, port, sizes.calls) for name, port in ports.items()}, sizes.rounds
        )
        delays = in_turns(
            {name: functools.partial(delay, name, port, sizes.single) for name, port in ports.items()}, sizes.rounds
        )
    shown = f"{rates['umq'] / 1e3:.1f} k calls/s, grpc.aio {rates['grpc'] / 1e3:.1f}"
    yield Line(f"UMQ, {IN_FLIGHT} calls in flight", shown, rates["umq"] / rates["grpc"], least=BEFORE_GRPC)
    shown = f"{delays['umq']:.0f} µs, grpc.aio {delays['grpc']:.0f} µs"
    yield Line("UMQ, one call in flight, p50", shown, delays["umq"] / delays["grpc"], most=NO_SLOWER)


def importing(sizes: Sizes) -> Iterator[Line]:
    """How long ``import polywire`` takes, in a new interpreter."""
    found = in_turns({"polywire": imported}, sizes.rounds * 2)
    yield Line("import polywire", "", found["polywire"], most=IMPORT_MS, unit="ms")


def publish(name: str, port: int, messages: int, checkout: Path = HERE) -> float:
    """Messages a second of one client, in a process of its own."""
    return float(output("client_loads.publishing", name, str(port), str(messages), checkout=checkout))


def rate(name: str, port: int, calls: int, in_flight: int = IN_FLIGHT, checkout: Path = HERE) -> float:
    """Calls a second, many in flight."""
    words = (name, str(port), str(in_flight), str(calls))
    return float(output("client_loads.calling", *words, checkout=checkout).split()[0])


def delay(name: str, port: int, calls: int) -> float:
    """Microseconds a call takes, one in flight; half of them take longer."""
    return float(output("client_loads.calling", name, str(port), "1", str(calls)).split()[1])


def output(module: str, *words: str, checkout: Path = HERE) -> str:
    """What a module of a checkout's benchmarks prints, in a process of its own."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS, cwd=checkout, env=sources(checkout)
    ).stdout


def sources(checkout: Path) -> dict[str, str]:
    """The environment in which a checkout's own modules are imported."""
    return {**os.environ, "PYTHONPATH": str(checkout / "src")}


@contextlib.contextmanager
def call_server(name: str, checkout: Path = HERE) -> Iterator[int]:
    """A server that answers calls, in a process of its own; its port."""
    command = [sys.executable, "-m", "benchmarks.client_loads.calling", name, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=checkout, env=sources(checkout)) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def imported() -> float:
    """Milliseconds."""
    code = "import time; begun = time.perf_counter(); import polywire; print(time.perf_counter() - begun)"
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS).stdout) * 1e3


SCENARIOS: dict[str, Callable[[Sizes], Iterator[Line]]] = {
    "publishing": publishing,
    "calling": calling,
    "importing": importing,
}


def main() -> int:
    options = Choice("clients", __doc__, SCENARIOS, ROUNDS).read()
    return run(options.scenario, SCENARIOS, Sizes(rounds=options.rounds))


if __name__ == "__main__":
    sys.exit(main())
