"""The HTTP listener of a hub with several workers: one port that speaks for all of them.

The supervisor answers itself: it has the listener, its TLS and logins, and can read every worker's journal from disk.
It asks the workers for what only they know: their metrics, what they think of each other, and to publish parts. The
parts of a query always go to the same worker, because its journal has the note of what was published.
"""

import asyncio
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from polywire.fabric.workers import WorkerError
from polywire.hub.access import Identity
from polywire.server.config import Loaded
from polywire.server.gate import Gate
from polywire.server.http import HttpServer, Refused
from polywire.server.ingest import PublishPage, part_limit
from polywire.server.journal_pages import JournalPages, admit
from polywire.server.restoration import Part
from polywire.server.server import Server

STATUS_SECONDS: Final = 2.0
"""How long a page waits for a worker; then it does without it."""

PUBLISH_SECONDS: Final = 60.0

FRONT: Final = "front"
"""What the supervisor is called in its own metrics."""


class Worker(Protocol):
    """A worker, as far as the pages need it."""

    @property
    def node(self) -> str:
        """Its name."""

    @property
    def state(self) -> str:
        """What it is doing."""

    @property
    def ready(self) -> bool:
        """Whether it takes clients."""

    @property
    def restarts(self) -> int:
        """How often it was started again."""

    @property
    def pid(self) -> int:
        """Its process."""

    @property
    def since(self) -> float:
        """When that was started."""

    @property
    def journal(self) -> Path | None:
        """The directory of its journal."""

    async def ask(self, what: str, body: bytes = b"", seconds: float = STATUS_SECONDS) -> bytes:
        """Ask it for something. Raises ``WorkerError``."""


class Front:
    """The pages, and the hub that they need: one without clients, for its listener, logins and limits."""

    def __init__(self, workers: Sequence[Worker], loaded: Loaded, kind: str, *, insecure: bool) -> None:
        self._workers: Final = workers
        self._kind: Final = kind  # of the fabric
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_OfWorkers(workers))
        self.server: Final = Server(loaded, insecure=insecure, pages=self)

    def add(self, http: HttpServer) -> None:
        """Add the pages to the listener."""
        gate = self.server.gate
        http.problem = self.problem
        if self._workers[0].journal is not None:
            http.add_page("/journal/", _Journals(self._workers, gate, http).answer, below=True)
            http.add_publisher("/publish", PublishPage(http, _Parts(self._workers, gate)))

    def problem(self) -> str:
        """Why clients should go elsewhere: no worker takes any. One that is started again is no reason."""
        if any(each.ready for each in self._workers):
            return ""
        return "no worker is ready: " + ", ".join(f"{each.node} is {each.state}" for each in self._workers)

    async def page(self) -> bytes:
        """The metrics of all workers and of this process, each with the label ``node``."""
        workers = [each for each in self._workers if each.ready]
        answers = await asyncio.gather(*(each.ask("metrics") for each in workers), return_exceptions=True)
        pages = {
            each.node: answer.decode()
            for each, answer in zip(workers, answers, strict=True)
            if isinstance(answer, bytes)
        }
        pages[FRONT] = (await self.server.metrics.page()).decode()
        return (generate_latest(self._registry).decode() + merged(pages)).encode()

    async def cluster(self) -> dict[str, object]:
        """All workers, with what each says of itself and the others."""
        nodes = await asyncio.gather(*(_described(each) for each in self._workers))
        return {"kind": self._kind, "nodes": nodes}

    async def drain_node(self, node: str) -> None:
        """Let a worker hand over what it has, and end. It is started again then."""
        worker = next((each for each in self._workers if each.node == node), None)
        if worker is None:
            raise Refused(404, f"no such node; there is {', '.join(each.node for each in self._workers)}")
        try:
            await worker.ask("drain")
        except WorkerError as error:
            raise Refused(503, str(error), headers=_SOON) from error


async def _described(worker: Worker) -> dict[str, object]:
    found: dict[str, object] = {
        "node": worker.node,
        "state": worker.state,
        "pid": worker.pid,
        "uptime": round(max(0.0, time.time() - worker.since), 1),
        "restarts": worker.restarts,
    }
    if worker.journal is not None:
        found["journal"] = f"/journal/{worker.node}/"
    try:
        found |= msgspec.json.decode(await worker.ask("status"), type=dict[str, object])
    except WorkerError as error:
        found["problem"] = str(error)
    return found


class _OfWorkers(Collector):
    """What the supervisor knows of its workers."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        ready = GaugeMetricFamily("polywire_worker_ready", "1 while a worker takes clients.", labels=["node"])
        words = "How often a worker was started again after it had ended or hung."
        restarts = CounterMetricFamily("polywire_worker_restarts", words, labels=["node"])
        for each in self._workers:
            ready.add_metric([each.node], int(each.ready))
            restarts.add_metric([each.node], each.restarts)
        return (ready, restarts)


def merged(pages: Mapping[str, str]) -> str:
    """Several pages of metrics as one: every sample gets the label ``node``, and every metric is explained once."""
    families: dict[str, list[str]] = {}
    for node, page in pages.items():
        label = 'node="' + node.replace("\\", "\\\\").replace('"', '\\"') + '"'
        samples: list[str] = []
        for line in page.splitlines():
            if line.startswith("# HELP "):
                samples = families.setdefault(line.split(" ", 3)[2], [line])
            elif line.startswith("#"):
                if len(samples) == 1:
                    samples.append(line)
            elif line:
                samples.append(_labelled(line, label))
    return "".join(line + "\n" for lines in families.values() for line in lines)


def _labelled(sample: str, label: str) -> str:
    name, space, value = sample.partition(" ")
    before, brace, _ = name.partition("{")
    if brace:
        return f"{before}{{{label},{sample[len(before) + 1 :]}"
    return f"{name}{{{label}}}{space}{value}"


class _Journals:
    """Answers below ``/journal/``: the nodes, and each one's journal below its name."""

    def __init__(self, workers: Sequence[Worker], gate: Gate, http: HttpServer) -> None:
        self._gate = gate
        self._http = http
        self._pages = {
            each.node: JournalPages(each.journal, gate, http) for each in workers if each.journal is not None
        }

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The list of nodes, or what one of them has."""
        node, slash, name = request.match_info["name"].partition("/")
        if not node:
            await admit(self._gate, self._http, request)
            return web.json_response({"nodes": list(self._pages)})
        if not slash or node not in self._pages:
            raise Refused(404, f"no such node; there is {', '.join(f'/journal/{each}/' for each in self._pages)}")
        return await self._pages[node].show(request, name)


class PartSent(msgspec.Struct, frozen=True):
    """A part on its way to the worker that publishes it: its name, whose it is (see ``Identity``), and its body."""

    part: Part
    name: str
    groups: tuple[str, ...]
    how: str
    expires: float | None
    body: bytes


class Outcome(msgspec.Struct, frozen=True):
    """What became of it: whether it was needed, or how HTTP says that it was refused."""

    applied: bool = False
    status: int = 0
    reason: str = ""
    fault: str = ""
    headers: dict[str, str] = {}


class _Parts:
    """Publishes parts by giving each query's to a worker."""

    def __init__(self, workers: Sequence[Worker], gate: Gate) -> None:
        self._workers = workers
        self._gate = gate
        self._sent = 0

    @property
    def limit(self) -> int:
        """Bytes of a part."""
        return part_limit(self._gate.limits.message_size)

    def check(self, part: Part, who: Identity) -> None:  # noqa: ARG002 - the worker knows whose the query is
        """Refuse parts that no worker could take now."""
        worker = self._home(part)
        if not self._gate.open:
            raise Refused(503, "the hub is shutting down")
        if not worker.ready:
            raise Refused(503, f"{worker.node}, which publishes this query, is {worker.state}", headers=_SOON)

    async def publish(self, part: Part, who: Identity, body: bytes) -> bool:
        """Let a worker publish it."""
        self._sent += 1
        try:
            sent = msgspec.msgpack.encode(PartSent(part, who.name, tuple(who.groups), who.how, who.expires, body))
            found = await self._home(part).ask("publish", sent, PUBLISH_SECONDS)
        except WorkerError as error:
            raise Refused(503, str(error), headers=_SOON) from error
        finally:
            self._sent -= 1
        outcome = msgspec.msgpack.decode(found, type=Outcome)
        if outcome.status:
            raise Refused(outcome.status, outcome.reason, fault=outcome.fault, headers=outcome.headers)
        return outcome.applied

    def busy(self) -> bool:
        """Whether a worker is publishing a part."""
        return self._sent > 0

    async def close(self) -> None:
        """The workers stop by themselves."""

    def _home(self, part: Part) -> Worker:
        return self._workers[zlib.crc32(part.query.encode()) % len(self._workers)]


_SOON: Final = {"Retry-After": "1"}


async def publish(server: Server, data: bytes) -> bytes:
    """The worker's side: publish a part that the supervisor has received."""
    sent = msgspec.msgpack.decode(data, type=PartSent)
    who = Identity(sent.name, sent.groups, sent.how, sent.expires)
    try:
        outcome = Outcome(await server.ingest.publish(sent.part, who, sent.body))
    except Refused as refused:
        outcome = Outcome(
            status=refused.status, reason=refused.reason, fault=refused.fault, headers=dict(refused.headers)
        )
    return msgspec.msgpack.encode(outcome)
