"""A stand-in for the hub's ``POST /publish``, with the faults a real one may have."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa


@dataclass
class Ingest:
    """What arrived, and what is to go wrong next."""

    url: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    parts: list[tuple[str, int, int]] = field(default_factory=list)
    repeated: list[tuple[str, int, int]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    refuse: list[int] = field(default_factory=list)
    """Answers to give instead of taking a request, one after the other."""
    hang_up: int = 0
    """How many requests are to be applied and then not answered."""
    last: dict[str, tuple[int, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, query: str, batch: int, part: int, body: bytes) -> bool:
        if (batch, part) <= self.last.get(query, (-1, -1)):
            self.repeated.append((query, batch, part))
            return False
        self.last[query] = (batch, part)
        self.parts.append((query, batch, part))
        self.rows += pa.ipc.open_stream(body).read_all().to_pylist()
        return True

    def bodies(self) -> list[bytes]:
        return [row["body"] for row in self.rows]


@contextmanager
def ingest() -> Iterator[Ingest]:
    found = Ingest()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with found.lock:
                found.tokens.append(self.headers["authorization"])
                if found.refuse:
                    self._answer(found.refuse.pop(0), b"not now")
                    return
                which = (self.headers["polywire-query"], self.headers["polywire-batch"], self.headers["polywire-part"])
                applied = found.take(which[0], int(which[1]), int(which[2]), body)
                if found.hang_up:
                    found.hang_up -= 1
                    self.close_connection = True
                    return
            self._answer(200, json.dumps({"applied": applied}).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
