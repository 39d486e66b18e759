"""The parts of the greenhouse, the scenes of ``polywire demo``, and the hub they run on.

Each part speaks one protocol and knows channels, but no other part. The hub is a separate process with a journal; it is
killed and restarted on the same ports. Each scene checks that what it prints is true. ``run_both`` is ``make run``: hub
and pipeline in the foreground until they are stopped.
"""

import asyncio
import contextlib
import json
import math
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import polywire
from polywire.demo import greenhouse_pb2
from polywire.errors import PolywireError
from polywire.protocols.mqttrpc import RpcError
from polywire.protocols.mqttrpc.server import serve
from polywire.registry import built_in, protocols

TEMPERATURES = "greenhouse/north/temperature"
QUEUE = "greenhouse-jobs"
IRRIGATION = greenhouse_pb2.DESCRIPTOR.services_by_name["Irrigation"]
SERVICE = "irrigation"
TANK = 100
"""Litres in the irrigation's tank."""


class Sensor:
    """A thermometer on FMQP that measures only while someone is watching, to save its battery."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.watched = 0
        self.measured = 0
        self.awake = asyncio.Event()
        self.asleep = asyncio.Event()
        self.asleep.set()

    async def run(self) -> None:
        """Measure when asked to, forever."""
        async with polywire.connect(self._url) as bus:
            measuring: asyncio.Task[None] | None = None
            try:
                async with bus.watch_demand(TEMPERATURES) as demand:
                    async for change in demand:
                        self.watched = change.subscribers
                        if self.watched and measuring is None:
                            self.awake.set()
                            self.asleep.clear()
                            measuring = asyncio.create_task(self._measure(bus))
                        elif not self.watched and measuring is not None:
                            await _ended(measuring)
                            measuring = None
                            self.asleep.set()
                            self.awake.clear()
            finally:
                if measuring is not None:
                    await _ended(measuring)

    async def _measure(self, bus: polywire.Bus) -> None:
        while True:
            degrees = 21 + 3 * math.sin(self.measured / 10)
            await bus.publish(TEMPERATURES, f"{degrees:.2f}")
            self.measured += 1
            await asyncio.sleep(0.02)


async def watch(url: str, readings: int) -> list[float]:
    """A page in a browser, on UMQ, that shows temperatures for a while."""
    shown: list[float] = []
    async with polywire.connect(url) as bus, bus.subscribe("greenhouse/*/temperature") as messages:
        async for message in messages:
            shown.append(float(message.text))
            if len(shown) == readings:
                return shown
    return shown


async def order_jobs(url: str, jobs: int, first: int = 0) -> int:
    """A scheduler on MQTT that puts jobs into a queue; each is acknowledged when it is safe."""
    async with polywire.connect(url) as bus:
        queue = bus.queue(QUEUE)
        receipts = [queue.put(json.dumps({"job": number})) for number in range(first, first + jobs)]
        await asyncio.gather(*receipts)
    return jobs


async def work(url: str, jobs: int) -> list[int]:
    """A .NET-style worker on MicroMsg2 that takes jobs from the queue, one after the other."""
    done: list[int] = []
    async with polywire.connect(url) as bus, bus.queue(QUEUE) as queue:
        async for message in queue:
            done.append(message.json()["job"])
            message.ack()
            if len(done) == jobs:
                break
    return done


class Irrigation:
    """The irrigation's service, offered over MQTT-RPC."""

    def __init__(self) -> None:
        self.left = TANK

    async def Water(self, request: Any) -> Any:  # noqa: N802 - the service's own name for it
        """Give a bed some water."""
        if request.litres > self.left:
            raise RpcError(409, "tank-empty", f"only {self.left} litres are left")
        self.left -= request.litres
        return greenhouse_pb2.WaterReply(bed=request.bed, litres=request.litres, left=self.left)


@contextlib.asynccontextmanager
async def irrigation(url: str) -> AsyncIterator[Irrigation]:
    """The service at its broker."""
    service = Irrigation()
    async with serve(url, IRRIGATION, service, name=SERVICE):
        yield service


async def water(url: str, litres: list[int], told: Callable[[str], None]) -> tuple[int, int]:
    """A gardener on sABC who calls the service. Returns how many calls went well, and how many were refused."""
    good = refused = 0
    async with polywire.connect(url) as bus:
        for number, amount in enumerate(litres):
            request = greenhouse_pb2.WaterRequest(bed=f"bed {number + 1}", litres=amount)
            try:
                answer = await bus.call(SERVICE, "Water", request.SerializeToString(), timeout=20)
            except polywire.CallFailed as error:
                refused += 1
                told(f"{amount} litres for bed {number + 1}: refused, {error.text}")
            else:
                good += 1
                reply = greenhouse_pb2.WaterReply.FromString(answer.body)
                told(f"{reply.litres} litres for {reply.bed}, {reply.left} are left")
    return good, refused


async def _ended(task: "asyncio.Future[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


START_SECONDS = 60.0
LISTENERS = {"http": "http://127.0.0.1:{}"} | {
    each.name: re.sub(r"\d+(?=/|$)", "{}", each.listeners[0].default) for each in built_in() if each.listeners
}
"""The HTTP listener, and the first one of each protocol."""


class DemoError(PolywireError):
    """A part of the demo did not do its part."""


class DemoHub:
    """One hub on loopback, on ports that were free when it was made."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._ports = {key: _free_port() for key in LISTENERS}
        self._process: asyncio.subprocess.Process | None = None
        self._log = journal.with_suffix(".log")

    def url(self, protocol: str) -> str:
        """Where clients of a protocol connect to."""
        return f"{protocol}://127.0.0.1:{self._ports[protocol]}"

    async def start(self) -> dict[str, str]:
        """Start it and wait until it listens. Returns the addresses of its ``ready`` line."""
        command = [sys.executable, "-m", "polywire", "serve", "--set", f"journal.path={self.journal}"]
        for key in [each.key for protocol in protocols() for each in protocol.listeners if each.key not in LISTENERS]:
            command += ["--set", f"listen.{key}=off"]
        for key, address in LISTENERS.items():
            command += ["--set", f"listen.{key}={address.format(self._ports[key])}"]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            line = b""
        if not line.startswith(b"ready "):
            await self.stop(signal.SIGKILL)
            raise DemoError(f"the hub did not start; its log is {self._log}")
        addresses: dict[str, str] = json.loads(line.removeprefix(b"ready "))
        return addresses

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it: SIGTERM lets it finish its work, SIGKILL does not."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(how)
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


STOP_SECONDS = 60.0


async def run_both(folder: Path, say: Callable[[str], None], *, tables: bool = True) -> int:
    """Run the hub on its usual ports, and the pipeline behind it, until SIGINT or SIGTERM. Returns an exit code."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stopped.set)
    journal, lake = folder / "journal", folder / "lake"
    # The hub ends last, so that the pipeline gets its last rows. Ctrl-C goes to this process, which stops both.
    hub = await _started("serve", "--set", f"journal.path={journal}")
    processes = [hub]
    if tables:
        processes.insert(0, await _started("pipeline", "run", "--journal", str(journal), "--lake", str(lake)))
        say(f"the tables are in {lake}; Ctrl-C ends hub and pipeline")
    ends = [asyncio.ensure_future(process.wait()) for process in processes]
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([waiting, *ends], return_when=asyncio.FIRST_COMPLETED)
    asked = stopped.is_set()
    waiting.cancel()
    for process, end in zip(processes, ends, strict=True):
        if not end.done():
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(end), STOP_SECONDS)
        if not end.done():
            process.kill()
        await end
    return 0 if asked else 1


async def _started(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "polywire", *words, start_new_session=True)


READINGS = 25
JOBS = 40
PIPELINE_SECONDS = 600.0

COMMANDS = """
import json, sys
from polywire.cli.main import app
for line in sys.stdin:
    code = app(json.loads(line), standalone_mode=False)
    if code:
        sys.exit(code)
    print("\\0", end="", flush=True)
"""
"""A program that runs one command of ``polywire`` after the other, each in the Spark session of the first."""

DONE = b"\0"
LONGEST_OUTPUT = 1 << 20

QUERIES = {
    "who spoke which protocol": "SELECT protocol, count(*) AS messages, sum(size) AS bytes "
    "FROM messages GROUP BY protocol ORDER BY messages DESC",
    "the gardener's calls": "SELECT service, method, outcome, count(*) AS calls, "
    "round(avg(latency_ms), 1) AS ms FROM calls GROUP BY service, method, outcome ORDER BY outcome DESC",
    "sessions": "SELECT protocol, reason, count(*) AS sessions FROM sessions "
    "GROUP BY protocol, reason ORDER BY protocol, reason",
}


class Story:
    """One telling, in a directory of its own. ``say`` prints a line."""

    def __init__(self, folder: Path, say: Callable[[str], None], *, tables: bool = True) -> None:
        self._folder = folder
        self._say = say
        self._tables = tables
        self._scene = 0

    async def tell(self) -> None:
        """All of it; ``DemoError`` where a part did not do its part."""
        hub = DemoHub(self._folder / "journal")
        try:
            with self._told("A hub starts: one process, five protocols, one journal"):
                for key, address in (await hub.start()).items():
                    self._say(f"   {key:<9} {address}")
            await self._demand(hub)
            await self._jobs(hub)
            await self._calls(hub)
            with self._told("The hub is told to stop, finishes its work and goes"):
                await hub.stop()
        finally:
            await hub.stop(signal.SIGKILL)
        if self._tables:
            await self._spark(hub)

    async def _demand(self, hub: DemoHub) -> None:
        sensor = Sensor(hub.url("fmqp"))
        async with _running(sensor.run()):
            with self._told("A sensor on FMQP measures only while somebody watches"):
                await asyncio.sleep(0.3)
                _check(sensor.measured == 0, f"nobody watches, and the sensor measured {sensor.measured} times")
                self._say("   nobody watches, the sensor sleeps: 0 measurements")
                shown = await watch(hub.url("umq"), READINGS)
                await asyncio.wait_for(sensor.asleep.wait(), 20)
                _check(len(shown) == READINGS, f"the browser saw {len(shown)} readings, not {READINGS}")
                self._say(f"   a browser on UMQ looks: {len(shown)} readings, {min(shown):.1f} to {max(shown):.1f} °C")
                self._say(f"   it looks away, the sensor sleeps again, after {sensor.measured} measurements")

    async def _jobs(self, hub: DemoHub) -> None:
        with self._told("Jobs from MQTT, a worker on MicroMsg2, and a hub that is killed in between"):
            await order_jobs(hub.url("mqtt"), JOBS)
            self._say(f"   {JOBS} jobs are in the queue, each acknowledged when it was on the disk")
            await hub.stop(signal.SIGKILL)
            self._say("   kill -9")
            began = time.monotonic()
            await hub.start()
            self._say(f"   the hub is back after {time.monotonic() - began:.1f} s")
            done = await asyncio.wait_for(work(hub.url("micromsg"), JOBS), 60)
            _check(done == list(range(JOBS)), f"the worker did the jobs {done}")
            self._say(f"   the worker did all {len(done)} jobs, each once, in order")

    async def _calls(self, hub: DemoHub) -> None:
        with self._told("An irrigation service on MQTT-RPC, called by a gardener on sABC"):
            async with irrigation(hub.url("mqtt")) as service:
                good, refused = await water(hub.url("sabc"), [30, 50, 40, 20], lambda line: self._say(f"   {line}"))
            _check((good, refused, service.left) == (3, 1, TANK - 100), f"{good} calls went well, {refused} did not")

    async def _spark(self, hub: DemoHub) -> None:
        lake, report = self._folder / "lake", self._folder / "report.html"
        with self._told("What happened, as Spark tables (the first time takes a moment)"):
            async with self._commands() as pipeline:
                await pipeline("run", "--once", "--journal", str(hub.journal), "--lake", str(lake))
                for title, sql in QUERIES.items():
                    self._say(f"   {title}")
                    answer = await pipeline("query", sql, "--lake", str(lake))
                    _check(bool(answer.strip()), "polywire pipeline query printed nothing")
                    self._say(_indented(answer))
                await pipeline("report", "--lake", str(lake), "--out", str(report))
            _check(report.stat().st_size > 1000, "the report is empty")
            self._say(f"   a page with charts: {report}")

    @contextlib.asynccontextmanager
    async def _commands(self) -> AsyncIterator[Callable[..., Awaitable[str]]]:
        """Runs commands of ``polywire pipeline`` in a process that starts Spark once; what each of them prints."""
        log = self._folder / "pipeline.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", COMMANDS),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LONGEST_OUTPUT,
            )
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None  # noqa: S101 - pipes were asked for
        assert stdout is not None  # noqa: S101 - as above

        async def run(*words: str) -> str:
            stdin.write(json.dumps(["pipeline", *words]).encode() + b"\n")
            try:
                printed = await asyncio.wait_for(stdout.readuntil(DONE), PIPELINE_SECONDS)
            except (asyncio.IncompleteReadError, ConnectionError):
                said = log.read_text(encoding="utf-8", errors="replace")
                raise DemoError(f"polywire pipeline {words[0]} failed:\n{said}") from None
            return printed.removesuffix(DONE).decode(errors="replace")

        try:
            yield run
            stdin.close()
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @contextlib.contextmanager
    def _told(self, title: str) -> Any:
        self._scene += 1
        self._say(f"\n{self._scene}. {title}")
        began = time.monotonic()
        try:
            yield
        except (TimeoutError, ConnectionError) as error:
            raise DemoError(f"scene {self._scene} ({title}) took too long: {error}") from error
        self._say(f"   ✓ {time.monotonic() - began:.1f} s")


@contextlib.asynccontextmanager
async def _running(part: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(part)
    try:
        yield
    finally:
        await _ended(task)


def _check(true: object, otherwise: str) -> None:
    if not true:
        raise DemoError(otherwise)


def _indented(text: str) -> str:
    return "\n".join(f"     {line}" for line in text.rstrip().splitlines())
