"""Raw-socket clients of the brokers that ``benchmarks.hub`` measures, one module per protocol.

They do as little as possible, so that the broker is what is measured: a publisher writes blocks of ready-made frames,
a subscriber counts octets.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BODY = b"x" * 64


@dataclass(frozen=True, slots=True)
class Peer:
    """How to talk to a broker. ``frame`` is a publication as sent, ``received`` how many octets arrive for it."""

    name: str
    subscribe: Callable[[int, Sequence[str]], socket.socket]
    publisher: Callable[[int], socket.socket]
    frame: Callable[[str, bytes], bytes]
    received: Callable[[str, bytes], int]


def connect(port: int) -> socket.socket:
    """A connection to the broker."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """So many octets."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker hung up")
        data += more
    return data
