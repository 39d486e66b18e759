"""Raw-socket clients of nats-server, in its text protocol."""

import socket
from collections.abc import Sequence

from benchmarks.hub_peers import Peer, connect, read_until


def _open(port: int) -> socket.socket:
    connection = connect(port)
    connection.recv(65536)
    connection.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
    read_until(connection, b"PONG\r\n")
    return connection


def _subject(topic: str) -> bytes:
    return topic.replace("/", ".").encode()


def subscribe(port: int, topics: Sequence[str]) -> socket.socket:
    connection = _open(port)
    wanted = [b"SUB %s %d\r\n" % (_subject(topic), number) for number, topic in enumerate(topics, 1)]
    assert len(wanted) < 10  # `received` counts on numbers of one digit
    connection.sendall(b"".join(wanted) + b"PING\r\n")
    read_until(connection, b"PONG\r\n")
    return connection


def frame(topic: str, body: bytes) -> bytes:
    return b"PUB %s %d\r\n%s\r\n" % (_subject(topic), len(body), body)


def received(topic: str, body: bytes) -> int:
    return len(b"MSG %s 1 %d\r\n%s\r\n" % (_subject(topic), len(body), body))


PEER = Peer("nats", subscribe, _open, frame, received)
