"""Publishes parts to a hub over HTTP, and goes on trying while the hub is away."""

import http.client
import json
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from polywire.pipeline.errors import OptionError, SinkError
from polywire.pipeline.rows import SCHEMA

PATH: Final = "/publish"
CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be another one later."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of which batch of which query a request is."""

    query: str
    batch: int
    number: int


class Publisher:
    """One connection to a hub. A part is sent until the hub has answered it, for ``patience`` seconds at most."""

    def __init__(self, hub: str, *, token: str | None, timeout: float, patience: float) -> None:
        address = urlsplit(hub)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise OptionError("hub", f"{hub!r} is not the address of a hub; write http://127.0.0.1:7100")
        self._secure = address.scheme == "https"
        self._host = address.hostname
        self._port = address.port or (443 if self._secure else 7100)
        self._prefix = address.path.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._patience = patience
        self._connection: http.client.HTTPConnection | None = None

    def publish(self, part: Part, rows: Any) -> bool:
        """Publish a part; False where the hub had it already."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(rows)
        body = sink.getvalue().to_pybytes()
        end = time.monotonic() + self._patience
        pause = FIRST_PAUSE
        while True:
            try:
                status, answer = self._post(part, body)
                reason = f"{status} {answer[:200].decode(errors='replace').strip()}"
            except (OSError, http.client.HTTPException) as error:
                self.close()
                status, answer, reason = None, b"", str(error) or type(error).__name__
            if status == http.HTTPStatus.OK:
                return bool(json.loads(answer).get("applied", True))
            if (status is not None and status not in AGAIN) or time.monotonic() + pause > end:
                where = f"batch {part.batch}, part {part.number} of {part.query}"
                raise SinkError(f"{self._host}:{self._port} did not take {where}: {reason}", status=status)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, part: Part, body: bytes) -> tuple[int, bytes]:
        headers = {
            "content-type": CONTENT_TYPE,
            "polywire-query": part.query,
            "polywire-batch": str(part.batch),
            "polywire-part": str(part.number),
        }
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request("POST", self._prefix + PATH, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
