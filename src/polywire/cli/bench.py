"""``polywire bench``: how many messages or calls a second a server carries, and how long each takes.

The load is messages from publishers to subscribers, publishing alone, or calls. Each body begins with the time it was
sent, or with a ``rate`` should have been sent, in digits, because some protocols carry text more cheaply than bytes.
All connections are in this process, so one clock measures all of them.
"""

import asyncio
import collections
import contextlib
import itertools
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import polywire
from polywire.cli.lifecycle import Code, CommandError, cancelled, run
from polywire.cli.messages import WINDOW, WINDOW_OCTETS
from polywire.cli.options import Connection, What, connecting, examples
from polywire.cli.output import Rate, print_json, short, took
from polywire.client.errors import Timeout
from polywire.client.outgoing import Promise

if TYPE_CHECKING:
    from polywire.client.bus import Bus
    from polywire.client.message import Message

BITS: Final = 7
"""Each power of two is cut into so many halves: 128 buckets, none wider than 0.8 % of what is in it."""

SIZE: Final = (64 - BITS) << BITS


class Histogram:
    """Times in nanoseconds, counted in buckets that are each less than 1 % wide, so that memory stays the same."""

    def __init__(self) -> None:
        self._counts = [0] * SIZE
        self.count = 0
        self.total = 0
        self.least = 0
        self.most = 0

    def add(self, nanoseconds: int) -> None:
        """Count one latency."""
        value = max(nanoseconds, 0)
        if value < self.least or self.count == 0:
            self.least = value
        self.most = max(self.most, value)
        self.count += 1
        self.total += value
        shift = value.bit_length() - BITS - 1
        self._counts[value if shift <= 0 else (shift << BITS) + (value >> shift)] += 1

    @property
    def mean(self) -> float:
        """The mean, in nanoseconds."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, part: float) -> int:
        """The time that so many of a hundred did not exceed, in nanoseconds."""
        wanted = max(1, -(-self.count * part // 100))
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(max(_middle(bucket), self.least), self.most)
        return self.most


def _middle(bucket: int) -> int:
    """What the times of a bucket are taken for."""
    if bucket < 2 << BITS:
        return bucket
    shift = (bucket >> BITS) - 1
    first = (bucket - (shift << BITS)) << shift
    return first + (1 << shift >> 1)


STAMP: Final = 20
"""Bytes of the time at the beginning of a body."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much of what. ``messages`` and ``seconds``: whichever is reached first; None does not count."""

    kind: What
    sending: Connection
    receiving: Connection
    messages: int | None
    seconds: float | None
    size: int
    publishers: int
    subscribers: int
    channels: int
    in_flight: int
    rate: float | None
    service: str | None
    method: str
    timeout: float


@dataclass(slots=True)
class Tally:
    """What has happened so far. ``lost``: published, and not received in time. ``complete``: as much as was wanted."""

    begun: float = 0.0
    ended: float = 0.0
    sent: int = 0
    received: int = 0
    lost: int = 0
    complete: bool = False
    times: Histogram = field(default_factory=Histogram)

    @property
    def seconds(self) -> float:
        """How long it has been going on, or went on."""
        return (self.ended or time.perf_counter()) - self.begun if self.begun else 0.0


class Bench:
    """One measurement. ``tally`` has the results so far while it ``run``s."""

    def __init__(self, load: Load) -> None:
        self.load: Final = load
        self.tally: Final = Tally()
        self.addresses: tuple[str, ...] = ()
        self._name: Final = f"polywire-bench-{secrets.token_hex(4)}"
        self._padding: Final = b"." * max(0, load.size - STAMP)
        self._taken = 0
        self._room: asyncio.Future[None] | None = None
        self._enough = 0
        self._watching: asyncio.Task[None]

    async def run(self) -> None:
        """Connect, measure, and close everything again."""
        async with AsyncExitStack() as stack:
            senders = [await stack.enter_async_context(self.load.sending.open()) for _ in range(self.load.publishers)]
            self.addresses = (str(senders[0].address),)
            self._watching = asyncio.create_task(self._watch())
            stack.push_async_callback(cancelled, self._watching)
            try:
                if self.load.kind is What.call:
                    await self._calls(senders, stack)
                elif self.load.kind is What.publish:
                    await self._publish(senders)
                else:
                    await self._publish_and_receive(senders, stack)
                self.tally.complete = True
            finally:
                self.tally.ended = time.perf_counter()

    async def _watch(self) -> None:
        """Raise ``Timeout`` if there is no progress at all."""
        load, tally = self.load, self.tally
        patience = load.timeout * 2 + (3 / load.rate if load.rate else 0)
        before = (-1, -1)
        while before != (tally.sent, tally.received):
            before = (tally.sent, tally.received)
            await asyncio.sleep(patience)
        raise Timeout("waiting for any progress", patience)

    async def _publish(self, senders: "Sequence[Bus]") -> None:
        """Each message is awaited, so many at once as may be in flight."""
        channels = self._channels()
        times = self.tally.times

        async def worker(bus: "Bus", share: float) -> None:
            async for due in self._due(share):
                promise = await bus.publish(next(channels), self._body(due))
                self.tally.received += 1
                if promise is Promise.ACKNOWLEDGED:
                    times.add(time.perf_counter_ns() - due)

        await self._work(worker, senders)
        for bus in senders:
            await bus.ping()  # what is merely in a buffer does not count

    async def _calls(self, senders: "Sequence[Bus]", stack: AsyncExitStack) -> None:
        """Calls to a service, or to one of our own."""
        load = self.load
        service = load.service or self._name
        if load.service is None:
            server = await stack.enter_async_context(load.receiving.open())
            self.addresses += (str(server.address),)
            offered = await server.serve(service, lambda request: request.body)
            stack.push_async_callback(offered.close)
        times = self.tally.times

        async def worker(bus: "Bus", share: float) -> None:
            async for due in self._due(share):
                await bus.call(service, load.method, self._body(due), timeout=load.timeout)
                self.tally.received += 1
                times.add(time.perf_counter_ns() - due)

        await self._work(worker, senders)

    async def _work(
        self, worker: "Callable[[Bus, float], Coroutine[None, None, None]]", senders: "Sequence[Bus]"
    ) -> None:
        """As many workers as may be in flight, spread over the connections."""
        count = max(self.load.in_flight, len(senders))
        self.tally.begun = time.perf_counter()
        await all_done([worker(senders[number % len(senders)], 1 / count) for number in range(count)], [self._watching])

    async def _publish_and_receive(self, senders: "Sequence[Bus]", stack: AsyncExitStack) -> None:
        """Publishers that are never further ahead of the subscribers than may be in flight."""
        readers: list[asyncio.Task[None]] = []
        for _ in range(self.load.subscribers):
            bus = await stack.enter_async_context(self.load.receiving.open())
            stream = await stack.enter_async_context(bus.subscribe(f"{self._name}/*"))
            readers.append(asyncio.create_task(self._read(stream)))
            stack.push_async_callback(cancelled, readers[-1])
            if len(readers) == 1:
                self.addresses += (str(bus.address),)
        self.tally.begun = time.perf_counter()
        share = 1 / len(senders)
        await all_done([self._feed(bus, share) for bus in senders], [*readers, self._watching])
        while self._outstanding > 0:
            await self._wait_for_room(0)

    async def _feed(self, bus: "Bus", share: float) -> None:
        load, tally = self.load, self.tally
        channels = self._channels()
        receipts: collections.deque[Awaitable[Promise]] = collections.deque()
        most = max(1, min(WINDOW, WINDOW_OCTETS // load.size))
        async for due in self._due(share):
            while self._outstanding >= load.in_flight * load.subscribers:
                await self._wait_for_room(load.in_flight * load.subscribers // 2)
            receipts.append(bus.publish(next(channels), self._body(due if load.rate else time.perf_counter_ns())))
            tally.sent += 1
            if len(receipts) > most:
                await receipts.popleft()
        for receipt in receipts:
            await receipt

    async def _read(self, messages: "AsyncIterator[Message]") -> None:
        tally, times = self.tally, self.tally.times
        async for message in messages:
            times.add(time.perf_counter_ns() - int(message.body[:STAMP]))
            tally.received += 1
            if self._room is not None and self._outstanding <= self._enough and not self._room.done():
                self._room.set_result(None)

    @property
    def _outstanding(self) -> int:
        """Messages that subscribers are still to get."""
        return self.tally.sent * self.load.subscribers - self.tally.received - self.tally.lost

    async def _wait_for_room(self, enough: int) -> None:
        """Wait until no more than so many messages are outstanding. Those that don't come in time are lost."""
        before = self.tally.received
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        self._enough = enough
        if self._outstanding <= enough:
            return
        await asyncio.wait([self._room], timeout=self.load.timeout)
        if not self._room.done() and self.tally.received == before:
            self.tally.lost += self._outstanding

    def _channels(self) -> "Iterator[str]":
        return itertools.cycle([f"{self._name}/{number}" for number in range(self.load.channels)])

    def _body(self, due: int) -> bytes:
        return b"%020d" % due + self._padding

    async def _due(self, share: float) -> AsyncIterator[int]:
        """When each message is due, in nanoseconds, for a worker that sends this ``share`` of all.

        Without a rate that is now. With one it is the scheduled time, even if the timer is late, but not before the
        previous timer.
        """
        load = self.load
        if load.rate is None:
            while self._take():
                yield time.perf_counter_ns()
            return
        step = 1e9 / (load.rate * share)
        woken = time.perf_counter_ns()
        due = woken + random.random() * step  # noqa: S311 - they must not all go at once, that is all
        while True:
            ahead = due - time.perf_counter_ns()
            if ahead > 0:
                await asyncio.sleep(ahead / 1e9)
                woken = time.perf_counter_ns()
            if not self._take():
                return
            yield min(max(int(due), woken), time.perf_counter_ns())  # a timer may come early, too
            due += step

    def _take(self) -> bool:
        """Whether there is another message to be sent."""
        load = self.load
        if load.messages is not None and self._taken >= load.messages:
            return False
        if load.seconds is not None and time.perf_counter() - self.tally.begun >= load.seconds:
            return False
        self._taken += 1
        if load.kind is not What.pubsub:
            self.tally.sent += 1
        return True


async def all_done(work: "Sequence[Coroutine[None, None, None]]", beside: "Sequence[asyncio.Task[None]]") -> None:
    """Wait until all are done. The first error, also of those in ``beside``, ends the rest."""
    tasks = [asyncio.create_task(each) for each in work]
    left: set[asyncio.Task[None]] = set(tasks)
    try:
        while left:
            done, _ = await asyncio.wait([*left, *beside], return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            left -= done
    finally:
        await cancelled(*left)


PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
REFRESH: Final = 0.25
BAR: Final = 30


def result_json(bench: Bench, version: str) -> dict[str, Any]:
    """Everything, in units that are in the names."""
    load, tally = bench.load, bench.tally
    seconds = tally.seconds or 1e-9
    found: dict[str, Any] = {
        "kind": load.kind.value,
        "addresses": list(bench.addresses),
        "polywire": version,
        "size": load.size,
        "publishers": load.publishers,
        "subscribers": load.subscribers if load.kind is What.pubsub else 0,
        "channels": load.channels,
        "in_flight": load.in_flight,
        "rate": load.rate,
        "complete": tally.complete,
        "seconds": round(tally.seconds, 6),
        "sent": tally.sent,
        "received": tally.received,
        "lost": tally.lost,
        "sent_per_second": round(tally.sent / seconds, 1),
        "received_per_second": round(tally.received / seconds, 1),
        "octets_per_second": round(tally.sent * load.size / seconds, 1),
        "latency_us": None,
    }
    times = tally.times
    if times.count:
        found["latency_us"] = {
            "least": round(times.least / 1e3, 1),
            "mean": round(times.mean / 1e3, 1),
            **{f"p{part:g}": round(times.percentile(part) / 1e3, 1) for part in PERCENTILES},
            "most": round(times.most / 1e3, 1),
        }
    return found


def result_lines(bench: Bench) -> Iterator[str]:
    """The result as text."""
    load, tally = bench.load, bench.tally
    seconds = tally.seconds or 1e-9
    yield from summary(bench)
    sent = f"{tally.sent} {'calls' if load.kind is What.call else 'messages'} of {load.size} bytes"
    yield f"  {sent} in {tally.seconds:.2f} s{'' if tally.complete else ', then interrupted'}"
    yield f"  {'rate':<9} {short(tally.sent / seconds)}/s, {short(tally.sent * load.size / seconds, 'B')}/s"
    if load.kind is What.pubsub:
        yield f"  {'received':<9} {short(tally.received / seconds)}/s, {tally.lost} lost"
    if tally.times.count:
        yield f"  {'latency':<9} {percentiles(bench)}"


def summary(bench: Bench) -> tuple[str, str]:
    """A description of what is measured."""
    load = bench.load
    places = " -> ".join(dict.fromkeys(bench.addresses)) or "connecting"
    who = {
        What.pubsub: f"{load.publishers} publishing, {load.subscribers} subscribed",
        What.publish: f"{load.publishers} publishing",
        What.call: f"{load.publishers} calling {load.service or 'an echo'}",
    }[load.kind]
    pace = f", {short(load.rate)}/s" if load.rate else ""
    return f"{load.kind.value} {places}", f"  {who}, {load.in_flight} in flight{pace}"


def percentiles(bench: Bench) -> str:
    """The percentiles on one line."""
    times = bench.tally.times
    parts = [f"p{part:g} {took(times.percentile(part) / 1e9)}" for part in PERCENTILES]
    return "  ".join([*parts, f"most {took(times.most / 1e9)}"])


@contextlib.asynccontextmanager
async def live_view(bench: Bench) -> AsyncIterator[None]:
    """A view on standard error while the block runs, where that is a terminal; nothing of it stays."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console, Group  # noqa: PLC0415 - slow to import, and only a terminal needs it
    from rich.live import Live  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    rate = Rate()

    def view() -> Group:
        tally = bench.tally
        rate.sample(tally.received)
        done = part_done(bench)
        bar = Text("  ")
        bar.append("━" * round(done * BAR), style="green")
        bar.append("━" * (BAR - round(done * BAR)), style="dim")
        bar.append(f" {done * 100:3.0f} %  {tally.seconds:.1f} s  {tally.received} done")
        speed = Text(f"  {short(rate.now)}/s  ").append(rate.bars(), style="cyan")
        title, how = summary(bench)
        shown = [Text(title, style="bold", no_wrap=True, overflow="ellipsis"), Text(how), bar, speed]
        if tally.times.count:
            shown.append(Text(f"  {percentiles(bench)}", no_wrap=True, overflow="ellipsis"))
        return Group(*shown)

    console = Console(stderr=True, markup=False, highlight=False)
    with Live(view(), console=console, auto_refresh=False, transient=True) as display:

        async def refresh() -> None:
            while True:
                display.update(view(), refresh=True)
                await asyncio.sleep(REFRESH)

        task = asyncio.create_task(refresh())
        try:
            yield
        finally:
            await cancelled(task)


def part_done(bench: Bench) -> float:
    """How much of it is done, from 0 to 1."""
    load, tally = bench.load, bench.tally
    parts = [0.0]
    if load.messages:
        parts.append(tally.sent / load.messages)
    if load.seconds:
        parts.append(tally.seconds / load.seconds)
    return min(1.0, max(parts))


SECONDS = 5.0
"""Default duration in seconds."""

bench_epilog = examples(
    "polywire bench",
    "polywire bench publish --url mqtt://127.0.0.1 --qos 0 --messages 1000000",
    "polywire bench pubsub --url fmqp://127.0.0.1 --sub-url umq://127.0.0.1 --subscribers 4",
    "polywire bench pubsub --in-flight 1",
    "polywire bench pubsub --rate 5000 --for 30 --json > result.json",
    "polywire bench call --in-flight 64 --size 256",
)


@connecting()
def bench(
    connection: Connection,
    what: Annotated[
        What,
        typer.Argument(
            help="pubsub: from publishers to subscribers; publish: until acknowledged, without subscribers; call: "
            "calls to a service."
        ),
    ] = What.pubsub,
    messages: Annotated[
        int | None, typer.Option("--messages", "-n", min=1, help="Stop after this many messages or calls.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0.01, help=f"Stop after this time. [default: {SECONDS:g}]"),
    ] = None,
    size: Annotated[int, typer.Option("--size", "-s", min=20, help="Body size in bytes.")] = 64,
    publishers: Annotated[int, typer.Option("--publishers", "-p", min=1, help="Connections that publish or call.")] = 1,
    subscribers: Annotated[
        int, typer.Option("--subscribers", "-S", min=1, help="Connections that subscribe to all topics.")
    ] = 1,
    channels: Annotated[int, typer.Option("--channels", "-c", min=1, help="Topics to publish to.")] = 1,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", "-i", min=1, help="Messages or calls in flight at once, in total."),
    ] = 256,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="PER_SECOND", min=0.1, help="Messages or calls per second, in total."),
    ] = None,
    sub_url: Annotated[
        str | None,
        typer.Option("--sub-url", metavar="URL", help="Subscribe or serve at this URL instead of --url."),
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", metavar="NAME", help="Call this service instead of a built-in echo.")
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="The method to call.")] = "echo",
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Count a message as lost after this time."),
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure throughput and latency against any server.

    All connections are this program's, so it is part of what is measured; a faster server may need several of them.
    With --rate the latency counts from when a message was due, not from when it could be sent. Ctrl-C ends it early,
    with the results so far.
    """
    if service is not None and what is not What.call:
        raise typer.BadParameter("--service is only for 'call'", param_hint="--service")

    async def work() -> None:
        measured = Bench(
            Load(
                kind=what,
                sending=connection,
                receiving=connection if sub_url is None else connection.at(sub_url),
                messages=messages,
                seconds=SECONDS if messages is None and seconds is None else seconds,
                size=size,
                publishers=publishers,
                subscribers=subscribers,
                channels=channels,
                in_flight=in_flight,
                rate=rate,
                service=service,
                method=method,
                timeout=timeout,
            )
        )
        try:
            async with live_view(measured):
                await measured.run()
        except BaseException:
            if measured.tally.received:
                report(measured)
            raise
        if measured.tally.sent and not measured.tally.received:
            raise CommandError("no message came back", Code.TIMEOUT)
        report(measured)

    def report(measured: "Bench") -> None:
        if as_json:
            print_json(result_json(measured, polywire.__version__))
        else:
            for line in result_lines(measured):
                typer.echo(line)
        sys.stdout.flush()

    run("bench", work(), fast=True)
