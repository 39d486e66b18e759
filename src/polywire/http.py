"""Requests to a hub's HTTP listener: one client with one retry policy.

It is synchronous, because everything that uses it is: commands, readers of a journal, and Spark's tasks and driver. It
may be used by several threads, and can be pickled.
"""

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from polywire.backoff import Backoff
from polywire.errors import PolywireError

if TYPE_CHECKING:
    from urllib3 import HTTPConnectionPool

AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed later."""

BACKOFF: Final = Backoff(first=0.1, most=5.0)
KEPT: Final = 8
"""Connections that are kept for the next request."""


class NoAnswer(PolywireError):  # noqa: N818 - read in "except NoAnswer:"
    """The server gave no answer to any attempt."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. ``body`` is as it came, not decompressed."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in AGAIN

    def text(self, longest: int) -> str:
        """The beginning of the body, for people."""
        return self.body[:longest].decode(errors="replace").strip()


class HttpClient:
    """Requests to one server: ``url`` is its address, perhaps with credentials and a path that all requests share.

    ``port`` is used where the URL has none. ``timeout`` is in seconds, for each step of a request. Raises
    ``ValueError`` for what is not the address of an HTTP server.
    """

    def __init__(self, url: str, *, timeout: float, token: str | None = None, port: int | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("not the address of an HTTP server")
        port = parts.port or port  # which raises ValueError itself
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.host = host if port is None else f"{host}:{port}"
        self.path = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{self.host}{self.path}"
        self._timeout = timeout
        self._headers = {"user-agent": "polywire", "accept-encoding": "identity"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        elif parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        self._pool: HTTPConnectionPool | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HttpClient) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.url)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = 0.0,
    ) -> Answer:
        """Send a request, and retry it for up to ``patience`` seconds while it may succeed later.

        It may arrive more than once. Returns the last answer, whatever its status, and raises ``NoAnswer`` if there
        was none.
        """
        from urllib3.exceptions import HTTPError, ProtocolError  # noqa: PLC0415 - programs that don't use it don't pay

        end = time.monotonic() + patience
        attempt = 0
        while True:
            answer: Answer | None = None
            problem: HTTPError | None = None
            try:
                answer = self._ask(method, path, body, headers or {})
                if not answer.passing:
                    return answer
            except HTTPError as error:
                problem = error
            # A connection that was kept may have been closed meanwhile, so a new one is tried at once.
            pause = 0.0 if attempt == 0 and isinstance(problem, ProtocolError) else BACKOFF.pause(attempt)
            attempt += 1
            if pause and time.monotonic() + pause > end:
                if answer is not None:
                    return answer
                raise NoAnswer(f"no answer: {_reason(problem)}") from problem
            time.sleep(pause)

    def close(self) -> None:
        """Close the connections that are kept."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        pool = self._pool
        if pool is None:
            from urllib3 import connection_from_url  # noqa: PLC0415 - as above

            pool = self._pool = connection_from_url(self.url, maxsize=KEPT, timeout=self._timeout)
        found = pool.urlopen(
            method,
            self.path + path,
            body,
            {**self._headers, **headers},
            retries=False,
            redirect=False,
            decode_content=False,
        )
        return Answer(found.status, found.data, found.headers)


def _reason(error: BaseException | None) -> str:
    """The innermost cause of an error, as text."""
    cause = error
    while cause is not None:
        error, inner = cause, cause.args[-1] if cause.args else None
        cause = cause.__cause__ or (inner if isinstance(inner, BaseException) else None)
    return str(error) or type(error).__name__
