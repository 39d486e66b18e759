"""FMQP's raw-socket clients."""

import socket
from collections.abc import Sequence

from benchmarks.hub_peers import Peer, connect
from polywire.protocols.fmqp import Publication, Subscription, encode


def subscribe(port: int, topics: Sequence[str]) -> socket.socket:
    connection = connect(port)
    # FMQP confirms nothing; a message to itself shows that everything before it was handled.
    marker = f"marker/{connection.getsockname()[1]}"
    connection.sendall(b"".join(encode(Subscription(topic)) for topic in [*topics, marker]))
    echo = encode(Publication(marker, b"!"))
    connection.sendall(echo)
    assert connection.recv(len(echo), socket.MSG_WAITALL) == echo
    return connection


def frame(topic: str, body: bytes) -> bytes:
    return encode(Publication(topic, body))


PEER = Peer("fmqp", subscribe, connect, frame, lambda topic, body: len(frame(topic, body)))
