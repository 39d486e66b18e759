"""The load that ``benchmarks.hub`` puts on a broker: messages pipelined, and one message in flight."""

import multiprocessing
import selectors
import socket
import statistics
import threading
import time
from multiprocessing.synchronize import Event

from benchmarks.hub_peers import BODY, Peer, peer

TOPICS = [f"sensors/room{number:02}/temperature" for number in range(16)]
SUBSCRIBERS = 8
BLOCK_ROUNDS = 64
SECONDS = 90
SETTLE = 0.3
"""Seconds from a subscription at one node to a publication at another: nothing tells when the other knows."""

ACK = b"\x40\x02\x00\x00"
"""A PUBACK before its packet id is filled in."""


def counted(messages: int) -> int:
    """As many messages as whole blocks make, at least one block."""
    block = len(TOPICS) * BLOCK_ROUNDS
    return max(1, messages // block) * block


class Reading:
    """One subscriber's socket: what it has got, and what it owes."""

    def __init__(self, connection: socket.socket, clients: Peer) -> None:
        self.connection = connection
        self._clients = clients
        self._size = clients.received(TOPICS[0], BODY)
        self._rest = b""

    def count(self, data: memoryview) -> int:
        """How much these bytes count; where frames have packet ids, acknowledge them."""
        clients = self._clients
        if clients.mark:
            return bytes(data).count(clients.mark)
        if clients.number_at >= 0:
            self._acknowledge(data)
        return len(data)

    def _acknowledge(self, data: memoryview) -> None:
        """All frames are equally long, so slices with that step are the two bytes of their ids."""
        size, at = self._size, self._clients.number_at
        octets = self._rest + data
        frames = len(octets) // size
        end = frames * size
        self._rest = octets[end:]
        if frames:
            acks = bytearray(ACK * frames)
            acks[2::4] = octets[at:end:size]
            acks[3::4] = octets[at + 1 : end : size]
            self.connection.sendall(acks)


def read(name: str, port: int, messages: int, ready: Event, result: "multiprocessing.Queue[float]") -> None:
    """The reading process: eight subscribers that count."""
    clients = peer(name)
    wanted = sum(clients.received(topic, BODY) for topic in TOPICS) * (messages // len(TOPICS))
    selector = selectors.DefaultSelector()
    for number in range(SUBSCRIBERS):
        connection = clients.subscribe(port, TOPICS[number::SUBSCRIBERS])
        connection.settimeout(SECONDS)  # reads never wait, they follow a select
        selector.register(connection, selectors.EVENT_READ, Reading(connection, clients))
    buffer = bytearray(1 << 18)
    view = memoryview(buffer)
    ready.set()
    got = 0
    end = time.monotonic() + SECONDS
    while got < wanted and time.monotonic() < end:
        for key, _ in selector.select(1):
            count = key.data.connection.recv_into(buffer)
            if count == 0:
                selector.unregister(key.fileobj)
            got += key.data.count(view[:count])
    result.put(time.perf_counter() if got >= wanted else -got / wanted)


def throughput(publisher: str, subscriber: str, ports: tuple[int, int], messages: int) -> float:
    """Messages a second from the first write to the last byte read."""
    messages = counted(messages)
    context = multiprocessing.get_context("spawn")
    ready, result = context.Event(), context.Queue()
    reader = context.Process(target=read, args=(subscriber, ports[1], messages, ready, result), daemon=True)
    reader.start()
    if not ready.wait(60):
        raise RuntimeError(f"{subscriber}: the subscribers did not come up")
    clients = peer(publisher)
    with clients.publisher(ports[0]) as connection:
        connection.settimeout(SECONDS)
        time.sleep(SETTLE)
        writes = messages // (len(TOPICS) * BLOCK_ROUNDS)
        blocks = clients.blocks(TOPICS, BODY, BLOCK_ROUNDS, writes)
        if clients.numbered is not None:
            threading.Thread(target=drain, args=(connection,), daemon=True).start()
        started = time.perf_counter()
        for number in range(writes):
            connection.sendall(blocks[number % len(blocks)])
        ended = float(result.get(timeout=SECONDS + 30))
        connection.shutdown(socket.SHUT_RDWR)
    reader.join(10)
    if ended <= 0:
        raise RuntimeError(f"{publisher} to {subscriber}: only {-ended:.1%} of the messages arrived")
    return messages / (ended - started)


def drain(connection: socket.socket) -> None:
    """Read what a publisher is answered, and forget it."""
    buffer = bytearray(1 << 16)
    try:
        while connection.recv_into(buffer):
            pass
    except OSError:
        return


def latency(name: str, port: int, count: int, *, publish_at: int | None = None) -> tuple[float, float]:
    """p50 and p99, in µs, of one message there and back. ``publish_at`` is where it is published, if not there."""
    cuts = statistics.quantiles(round_trips(name, port, count, publish_at), n=100)
    return cuts[49], cuts[98]


def round_trips(name: str, port: int, count: int, publish_at: int | None = None) -> list[float]:
    """How long single messages take there and back, in µs; the first tenth of ``count`` is left out."""
    clients = peer(name)
    frame = clients.frame("latency/probe", BODY)
    size = clients.received("latency/probe", BODY)
    buffer = bytearray(1 << 16)
    times = []
    with (
        clients.subscribe(port, ["latency/probe"]) as subscriber,
        clients.publisher(port if publish_at is None else publish_at) as publisher,
    ):
        time.sleep(SETTLE)  # until the node that it is published at knows of the subscriber
        for _ in range(count):
            started = time.perf_counter()
            publisher.sendall(frame)
            got = 0
            while got < size:
                got += subscriber.recv_into(buffer)
            times.append((time.perf_counter() - started) * 1e6)
    return times[count // 10 :]
