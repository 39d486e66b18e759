"""The HTTP listener, served in this process without the rest of a hub."""

import asyncio
import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from polywire.hub.hub import Hub
from polywire.registry import HTTP_CODE, names
from polywire.server.address import Address
from polywire.server.config import load
from polywire.server.config.admission import make_admission
from polywire.server.gate import Gate
from polywire.server.http import HttpLimits, HttpServer
from polywire.server.ingest import Ingest
from polywire.server.metrics import Metrics
from polywire.server.restoration import JournalKeeper
from polywire.server.server import add_journal_pages

Answer = tuple[int, dict[str, str], bytes]


class Pages:
    """A served journal. ``get`` asks for a page."""

    def __init__(self, port: int, http: HttpServer, hub: Hub) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._http = http
        self._hub = hub

    def faults(self) -> dict[str, int]:
        """What was counted as wrong."""
        return self._hub.counters[HTTP_CODE].faults

    def wait_for_fault(self, fault: str) -> None:
        """Until it is counted."""
        end = time.monotonic() + 20
        while fault not in self.faults():
            assert time.monotonic() < end, self.faults()
            time.sleep(0.001)

    def bodies(self) -> tuple[int, int]:
        """The bodies there are, and their bytes."""
        return self._http.bodies._count, self._http.bodies._bytes

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
def serving(
    folder: Path, *sets: str, host: str = "127.0.0.1", limits: HttpLimits | None = None, journaled: bool = False
) -> Iterator[Pages]:
    """The HTTP listener on a journal's folder, with the hub's settings for who may come in, on a port of its own.

    ``host`` is what the listener takes itself to be bound to. ``journaled``: a hub records in the folder.
    """
    loop = asyncio.new_event_loop()
    started: list[tuple[asyncio.Server, HttpServer, Hub]] = []
    ready = threading.Event()

    async def start() -> None:
        hub = Hub(loop.call_soon, loop.call_later, time.time_ns, list(names()))
        gate = Gate(hub, loop)
        config = load(None, (*sets, f"journal.path={folder}")).config
        gate.apply(config, make_admission(config))
        keeper = JournalKeeper(config.journal, "here", hub, gate, loop) if journaled else None
        metrics = Metrics(hub, gate, loop)
        http = HttpServer(gate, metrics, Address("http", host), limits)
        add_journal_pages(http, config.journal.path, gate, Ingest(gate))
        await http.start()
        server = await loop.create_server(lambda: http(None), "127.0.0.1", 0)
        started.append((server, http, hub))
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            await http.stop_work()
            if keeper is not None:
                await keeper.close()
            await http.close()
            gate.close()

    task: list[asyncio.Task[None]] = []

    def run() -> None:
        asyncio.set_event_loop(loop)
        task.append(loop.create_task(start()))
        task[0].add_done_callback(lambda _: ready.set())
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task[0])
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(20)
        server, http, hub = started[0]
        yield Pages(server.sockets[0].getsockname()[1], http, hub)
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join(20)
