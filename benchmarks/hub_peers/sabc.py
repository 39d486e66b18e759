"""sABC's raw-socket subscribers. Each pushed frame has one NUL, its last byte; their sizes differ by their ids."""

import re
import socket
from collections.abc import Sequence

from benchmarks.hub_peers import Peer, connect, read_until


def subscribe(port: int, topics: Sequence[str]) -> socket.socket:
    connection = connect(port)
    connection.sendall(b"CONNECT\r\nclient-id::reader\r\n\r\n\0")
    answer = read_until(connection, b"\0")
    found = re.search(rb"session-id::([^\r\n]+)", answer)
    assert found is not None, answer
    session = found[1].decode()
    for number, topic in enumerate(topics, 1):
        lines = ("MESSAGE", f"session-id::{session}", f"msg-id::{number}", "op::subscribe", f"destination::{topic}")
        connection.sendall("\r\n".join((*lines, "", "\0")).encode())
        answer = read_until(connection, b"\0")
        assert b"OK" in answer, answer
    return connection


def frame(topic: str, body: bytes) -> bytes:
    raise NotImplementedError


PEER = Peer("sabc", subscribe, connect, frame, lambda _topic, _body: 1, mark=b"\0")
