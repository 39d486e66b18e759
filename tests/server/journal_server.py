"""The pages of a journal, served without the rest of a hub."""

import asyncio
import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from polywire.hub.hub import Hub
from polywire.server.admission import make_admission
from polywire.server.config import load
from polywire.server.gate import Gate
from polywire.server.http import HttpProtocol
from polywire.server.journal_pages import JournalPages

Answer = tuple[int, dict[str, str], bytes]


class Pages:
    """A served journal. ``get`` asks for a page."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            return self.get_on(connection, path, method=method, **headers)
        finally:
            connection.close()

    @staticmethod
    def get_on(connection: http.client.HTTPConnection, path: str, *, method: str = "GET", **headers: str) -> Answer:
        connection.request(method, f"/journal/{path}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


@contextlib.contextmanager
def serving(folder: Path, *sets: str, local: bool = True) -> Iterator[Pages]:
    """The pages of a journal's folder on a port of their own, with the hub's settings for who may come in."""
    loop = asyncio.new_event_loop()
    started: list[asyncio.Server] = []
    ready = threading.Event()

    async def start() -> None:
        gate = Gate(Hub(loop.call_soon, loop.call_later, time.time_ns, ["umq"]), loop)
        config = load(None, sets).config
        gate.apply(config, make_admission(config))
        pages = JournalPages(folder, gate, local=local)
        connections: dict[HttpProtocol, None] = {}
        server = await loop.create_server(lambda: HttpProtocol({}, connections, {"/journal/": pages}), "127.0.0.1", 0)
        started.append(server)
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in list(connections):
                connection.abort()
            gate.close()
            await asyncio.sleep(0)

    task: list[asyncio.Task[None]] = []

    def run() -> None:
        asyncio.set_event_loop(loop)
        task.append(loop.create_task(start()))
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task[0])
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(20)
        yield Pages(started[0].sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join(20)
