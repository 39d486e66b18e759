"""Raw-socket clients of the brokers that ``benchmarks.hub`` measures, one module per protocol.

They do as little as possible, so that the broker is what is measured: a publisher writes blocks of ready-made frames,
a subscriber counts bytes (or, where frames differ in size, the byte that ends each).
"""

import importlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.brokers import WorkerPort
from tests.doors import dial_worker

BODY = b"x" * 64
MARKER = "marker/of/subscribers"


@dataclass(frozen=True, slots=True)
class Peer:
    """How to talk to a broker. ``frame`` is a publication as sent, ``received`` how many bytes arrive for it.

    ``mark``: a byte that each message has once, counted in place of bytes. ``number_at``: where a received frame
    has the packet id to be acknowledged, -1 where nothing is. ``numbered`` gives a frame the packet id of a number;
    publishers of such frames are answered.
    """

    name: str
    subscribe: Callable[[int, Sequence[str]], socket.socket]
    publisher: Callable[[int], socket.socket]
    frame: Callable[[str, bytes], bytes]
    received: Callable[[str, bytes], int]
    mark: bytes = b""
    number_at: int = -1
    numbered: Callable[[bytes, int], bytes] | None = None

    def blocks(self, topics: Sequence[str], body: bytes, rounds: int, most: int) -> list[bytes]:
        """What a publisher writes over and over, each block ``rounds`` times all topics; ``most`` blocks suffice."""
        frames = [self.frame(topic, body) for topic in topics]
        numbered = self.numbered
        if numbered is None:
            return [b"".join(frames) * rounds]
        ids = 0xFFFF // (len(frames) * rounds)
        every = frames * rounds
        return [
            b"".join(numbered(frame, block * len(every) + at + 1) for at, frame in enumerate(every))
            for block in range(min(ids, most))
        ]


def peer(name: str) -> Peer:
    """The clients for a broker or protocol."""
    found: Peer = importlib.import_module(f"benchmarks.hub_peers.{name}").PEER
    return found


def connect(port: int) -> socket.socket:
    """A connection to the broker, or to the worker that a port names."""
    if isinstance(port, WorkerPort):
        connection = dial_worker(port, port.pid)
    else:
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker hung up")
        data += more
    return data


def read_until(connection: socket.socket, words: bytes, times: int = 1) -> bytes:
    """Everything up to the words, which are the last thing the broker says for now."""
    data = b""
    while data.count(words) < times:
        more = connection.recv(65536)
        if not more:
            raise ConnectionError(f"the broker hung up after {data!r}")
        data += more
    return data
