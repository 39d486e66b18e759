"""``make bench-hub``: the hub against nats-server, both in the same run, side by side.

Throughput: 16 topics spread over 8 subscribers, 64-byte bodies, pipelined; one process publishes, one reads, so broker
and load share the machine's cores the same way for everybody. Latency: one message in flight, there and back.
Each figure is the median of several rounds, brokers taking turns.
"""

import argparse
import importlib
import multiprocessing
import selectors
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event

from benchmarks.brokers import nats_server, polywire
from benchmarks.hub_peers import BODY, Peer

TOPICS = [f"sensors/room{number:02}/temperature" for number in range(16)]
SUBSCRIBERS = 8
BLOCK_ROUNDS = 64
ROUNDS = 3
SECONDS = 90


def peer(name: str) -> Peer:
    """The clients for a broker or protocol."""
    found: Peer = importlib.import_module(f"benchmarks.hub_peers.{name}").PEER
    return found


def read(name: str, port: int, messages: int, ready: Event, result: "multiprocessing.Queue[float]") -> None:
    """The reading process: eight subscribers that count octets."""
    clients = peer(name)
    sockets = [clients.subscribe(port, TOPICS[number::SUBSCRIBERS]) for number in range(SUBSCRIBERS)]
    wanted = sum(clients.received(topic, BODY) for topic in TOPICS) * (messages // len(TOPICS))
    selector = selectors.DefaultSelector()
    for each in sockets:
        each.setblocking(False)
        selector.register(each, selectors.EVENT_READ)
    buffer = bytearray(1 << 18)
    ready.set()
    got = 0
    end = time.monotonic() + SECONDS
    while got < wanted and time.monotonic() < end:
        for key, _ in selector.select(1):
            count = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
            if count == 0:
                selector.unregister(key.fileobj)
            got += count
    result.put(time.perf_counter() if got >= wanted else -got / wanted)


def throughput(publisher: str, subscriber: str, ports: tuple[int, int], messages: int) -> float:
    """Messages a second from the first write to the last octet read."""
    context = multiprocessing.get_context("spawn")
    ready, result = context.Event(), context.Queue()
    reader = context.Process(target=read, args=(subscriber, ports[1], messages, ready, result), daemon=True)
    reader.start()
    if not ready.wait(60):
        raise RuntimeError(f"{subscriber}: the subscribers did not come up")
    clients = peer(publisher)
    connection = clients.publisher(ports[0])
    connection.settimeout(SECONDS)
    block = b"".join(clients.frame(topic, BODY) for topic in TOPICS) * BLOCK_ROUNDS
    started = time.perf_counter()
    for _ in range(messages // (len(TOPICS) * BLOCK_ROUNDS)):
        connection.sendall(block)
    ended = float(result.get(timeout=SECONDS + 30))
    connection.close()
    reader.join(10)
    if ended <= 0:
        raise RuntimeError(f"{publisher} to {subscriber}: only {-ended:.1%} of the octets arrived")
    return messages / (ended - started)


def latency(name: str, port: int, count: int) -> tuple[float, float]:
    """p50 and p99, in µs, of one message there and back."""
    clients = peer(name)
    subscriber = clients.subscribe(port, ["latency/probe"])
    publisher = clients.publisher(port)
    frame = clients.frame("latency/probe", BODY)
    size = clients.received("latency/probe", BODY)
    buffer = bytearray(1 << 16)
    times = []
    for _ in range(count):
        started = time.perf_counter()
        publisher.sendall(frame)
        got = 0
        while got < size:
            got += subscriber.recv_into(buffer)
        times.append((time.perf_counter() - started) * 1e6)
    subscriber.close()
    publisher.close()
    cuts = statistics.quantiles(times[count // 10 :], n=100)
    return cuts[49], cuts[98]


def compare(rows: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each row, measured in turns."""
    results: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, run in rows.items():
            results[name].append(run())
    return {name: statistics.median(values) for name, values in results.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hub", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each measurement (default: {ROUNDS})")
    parser.add_argument("--messages", type=int, default=2_048_000, help="messages a round (default: 2,048,000)")
    options = parser.parse_args()
    with polywire() as (ports, _), nats_server() as (nats, _):
        found = compare(
            {
                "nats": lambda: throughput("nats", "nats", (nats, nats), options.messages),
                "fmqp": lambda: throughput("fmqp", "fmqp", (ports["fmqp"], ports["fmqp"]), options.messages),
            },
            options.rounds,
        )
        for name, rate in found.items():
            print(f"{name:<16} {rate / 1e6:>7.2f} M msg/s  {rate / found['nats']:>6.2f} x nats-server", flush=True)
        for name, port in (("nats", nats), ("fmqp", ports["fmqp"])):
            p50, p99 = latency(name, port, 20_000)
            print(f"{name:<16} one in flight: p50 {p50:.0f} µs, p99 {p99:.0f} µs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
