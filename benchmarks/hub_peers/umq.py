"""UMQ's raw-socket subscribers. Nothing is published with UMQ here: each message would be a call."""

import base64
import json
import os
import socket
from collections.abc import Sequence

from benchmarks.hub_peers import Peer, connect, read_until

UPGRADE = (
    "GET /umq HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: umq\r\nSec-WebSocket-Key: {key}\r\n\r\n"
)


def _text(words: str) -> bytes:
    """A client's text message; the mask is zero, so the words stand as they are."""
    payload = words.encode()
    assert len(payload) < 126
    return bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload


def subscribe(port: int, topics: Sequence[str]) -> socket.socket:
    assert len(topics) < 10  # `received` counts on ids of one digit
    connection = connect(port)
    connection.sendall(UPGRADE.format(key=base64.b64encode(os.urandom(16)).decode()).encode())
    read_until(connection, b"\r\n\r\n")
    connection.sendall(_text("H1:"))
    read_until(connection, b"W1:")
    for number, topic in enumerate(topics, 1):
        connection.sendall(_text(f"C{number}:{json.dumps(['subscribe', topic, number])}"))
        read_until(connection, f"R{number}:".encode())
    return connection


def frame(topic: str, body: bytes) -> bytes:
    raise NotImplementedError


def received(topic: str, body: bytes) -> int:  # noqa: ARG001 - an update does not name its topic
    assert len(body) < 120
    return 2 + len(b"T1:") + len(body)


PEER = Peer("umq", subscribe, connect, frame, received)
