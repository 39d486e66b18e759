"""MQTT's raw-socket clients, with QoS 0."""

import socket
from collections.abc import Sequence

from benchmarks.hub_peers import Peer, connect, read_exactly
from polywire.protocols.mqtt import Connect, Publish, Subscribe, encode


def publisher(port: int) -> socket.socket:
    connection = connect(port)
    connection.sendall(encode(Connect("")))
    assert read_exactly(connection, 4) == b"\x20\x02\x00\x00"
    return connection


def subscribe(port: int, topics: Sequence[str]) -> socket.socket:
    return subscribe_with(port, topics, 0)


def subscribe_with(port: int, topics: Sequence[str], qos: int) -> socket.socket:
    connection = publisher(port)
    connection.sendall(encode(Subscribe(1, tuple((topic, qos) for topic in topics))))
    answer = read_exactly(connection, 4 + len(topics))
    assert answer[4:] == bytes([qos]) * len(topics), answer
    return connection


def frame(topic: str, body: bytes) -> bytes:
    return encode(Publish(topic, body))


PEER = Peer("mqtt", subscribe, publisher, frame, lambda topic, body: len(frame(topic, body)))
