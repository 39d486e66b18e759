"""The parts of the greenhouse: each speaks one protocol, knows channels and no other part, and says what it saw."""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import polywire
from polywire.demo import greenhouse_pb2
from polywire.protocols.mqttrpc import RpcError
from polywire.protocols.mqttrpc.server import serve

TEMPERATURES = "greenhouse/north/temperature"
JOBS = "greenhouse-jobs"
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
        queue = bus.queue(JOBS)
        receipts = [queue.put(json.dumps({"job": number})) for number in range(first, first + jobs)]
        await asyncio.gather(*(_acknowledged(receipt) for receipt in receipts))
    return jobs


async def work(url: str, jobs: int) -> list[int]:
    """A .NET-style worker on MicroMsg2 that takes jobs from the queue, one after the other."""
    done: list[int] = []
    async with polywire.connect(url) as bus, bus.queue(JOBS) as queue:
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


async def _acknowledged(receipt: Any) -> None:
    await receipt


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
