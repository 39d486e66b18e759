"""What many subscriptions cost, those that are there, a new one among them, and changes all the time; and many topics.

The cost of publishing is the processor time the hub takes for a message: it does not depend on who else is busy on the
machine.
"""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.brokers import polywire
from benchmarks.goals import Line, in_turns
from benchmarks.hub_load import SECONDS, counted, throughput
from benchmarks.hub_peers import BODY, connect, read_exactly
from polywire.protocols.fmqp import Publication, Subscription, Unsubscription, encode

BATCH = 1000
BATCHES = 5
CHANGES = 1000
STEP = 0.01
"""Seconds between two batches of changes."""


class Crowd:
    """A connection that subscribes to many topics nobody publishes to."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._name = f"crowd{self.connection.getsockname()[1]}"
        self._echo = encode(Publication(f"{self._name}/marker", b"!"))
        self.connection.sendall(encode(Subscription(f"{self._name}/marker")))
        self.size = 0

    def batch(self, count: int) -> float:
        """Subscribe to so many more. Returns the seconds it took until the hub was done with them."""
        frames = [encode(Subscription(f"{self._name}/{self.size + number:08}/state")) for number in range(count)]
        octets = b"".join(frames) + self._echo
        started = time.perf_counter()
        self.connection.sendall(octets)
        assert read_exactly(self.connection, len(self._echo)) == self._echo
        self.size += count
        return time.perf_counter() - started

    def grow(self, size: int) -> None:
        """Have ``size`` subscriptions."""
        while self.size < size:
            self.batch(min(BATCH, size - self.size))


def processor_seconds(pid: int) -> float:
    """The processor time a process has taken so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def publish_cost(port: int, pid: int, messages: int) -> float:
    """Seconds of the hub's processor time for one message of FMQP, 16 topics over 8 subscribers."""
    before = processor_seconds(pid)
    throughput("fmqp", "fmqp", (port, port), messages)
    return (processor_seconds(pid) - before) / counted(messages)


@contextlib.contextmanager
def changes(port: int, each_second: int) -> Iterator[None]:
    """Subscriptions that come and go meanwhile: mostly topics, some patterns."""
    with connect(port) as connection:
        ended = threading.Event()
        changing = threading.Thread(target=_change, args=(connection, each_second, ended), daemon=True)
        changing.start()
        try:
            yield
        finally:
            ended.set()
            changing.join(10)


def _change(connection: socket.socket, each_second: int, ended: threading.Event) -> None:
    numbers = itertools.count()
    started = time.monotonic()
    done = 0
    while not ended.wait(STEP):
        due = int((time.monotonic() - started) * each_second)
        frames = []
        while done < due:
            number = next(numbers)
            topic = f"crowd/*/{number}" if number % 10 == 0 else f"crowd/{number:08}/change"
            frames += [encode(Subscription(topic)), encode(Unsubscription(topic))]
            done += 2
        connection.sendall(b"".join(frames))


def subscriptions(few: int, many: int, messages: int, rounds: int) -> Iterator[Line]:
    """The goals about subscriptions; ``few`` and ``many`` are how many there are."""
    settings = (f"limits.subscriptions={2 * many + 10}", "limits.names_size=4 GiB", "limits.names_size_total=8 GiB")
    # Two hubs, so that few and many can take turns.
    with contextlib.ExitStack() as stack:
        small, small_pid = stack.enter_context(polywire(*settings))
        large, large_pid = stack.enter_context(polywire(*settings))
        batch = min(BATCH, few)
        with connect(small["fmqp"]) as connection:
            start = Crowd(connection)
            first = median(start.batch(batch) for _ in range(BATCHES))
        crowds = [stack.enter_context(connect(port)) for port in (small["fmqp"], large["fmqp"])]
        Crowd(crowds[0]).grow(few)
        crowd = Crowd(crowds[1])
        crowd.grow(many - BATCHES * batch)
        last = median(crowd.batch(batch) for _ in range(BATCHES))
        shown = f"{first / batch * 1e6:.1f} µs, then {last / batch * 1e6:.1f} µs"
        yield Line(f"subscription {many:,} against {few:,}", shown, last / first, most=3)
        costs = in_turns(
            {
                "few": lambda: publish_cost(small["fmqp"], small_pid, messages),
                "many": lambda: publish_cost(large["fmqp"], large_pid, messages),
                "changes": lambda: _with_changes(large["fmqp"], large_pid, messages),
            },
            rounds,
        )
        shown = f"{costs['few'] * 1e9:.0f} ns, then {costs['many'] * 1e9:.0f} ns"
        yield Line(f"publishing, {many:,} subscriptions or {few:,}", shown, costs["many"] / costs["few"], most=1.2)
        shown = f"{costs['many'] * 1e9:.0f} ns, then {costs['changes'] * 1e9:.0f} ns"
        yield Line(
            f"publishing during {CHANGES:,} changes a second", shown, costs["changes"] / costs["many"], most=1.15
        )


def topics(few: int, many: int, rounds: int) -> Iterator[Line]:
    """The goal about topics: one subscriber with a pattern, and as many messages to ``few`` topics as to ``many``."""
    with polywire() as (ports, pid):
        port = ports["fmqp"]
        costs = in_turns(
            {
                "few": lambda: topics_cost(port, pid, few, many),
                "many": lambda: topics_cost(port, pid, many, many),
            },
            rounds,
        )
    shown = f"{costs['few'] * 1e9:.0f} ns, then {costs['many'] * 1e9:.0f} ns"
    yield Line(f"publishing to {many:,} topics or {few:,}", shown, costs["many"] / costs["few"], most=2)


def topics_cost(port: int, pid: int, count: int, messages: int) -> float:
    """Seconds of the hub's processor time for one message, each to the next of ``count`` topics."""
    batch = min(BATCH, count)
    messages -= messages % batch
    frames = [encode(Publication(f"plant/{number:07}/state", BODY)) for number in range(count)]
    blocks = [b"".join(frames[start : start + batch]) for start in range(0, count - batch + 1, batch)]
    with connect(port) as reading, connect(port) as writing:
        reading.sendall(encode(Subscription("plant/*/state")) + encode(Subscription("plant/ready")))
        ready = encode(Publication("plant/ready", b"!"))
        reading.sendall(ready)
        assert read_exactly(reading, len(ready)) == ready
        before = processor_seconds(pid)
        reader = threading.Thread(target=_read, args=(reading, len(frames[0]) * messages), daemon=True)
        reader.start()
        for number in range(messages // batch):
            writing.sendall(blocks[number % len(blocks)])
        reader.join(SECONDS)
        assert not reader.is_alive(), "the messages did not arrive"
        return (processor_seconds(pid) - before) / messages


def _read(connection: socket.socket, octets: int) -> None:
    buffer = bytearray(1 << 18)
    while octets > 0:
        octets -= connection.recv_into(buffer)


def _with_changes(port: int, pid: int, messages: int) -> float:
    with changes(port, CHANGES):
        return publish_cost(port, pid, messages)
