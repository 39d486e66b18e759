"""What ``polywire bench`` has found: as JSON for programs, as a few lines for people, and while it goes on."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from polywire.cli.bench_kinds import What
from polywire.cli.bench_load import Bench
from polywire.cli.rates import Rate, short, took

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
REFRESH: Final = 0.25
BAR: Final = 30


def as_json(bench: Bench, version: str) -> dict[str, Any]:
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


def lines(bench: Bench) -> Iterator[str]:
    """The same for people."""
    load, tally = bench.load, bench.tally
    seconds = tally.seconds or 1e-9
    yield from what(bench)
    sent = f"{tally.sent} {'calls' if load.kind is What.call else 'messages'} of {load.size} octets"
    yield f"  {sent} in {tally.seconds:.2f} s{'' if tally.complete else ', then interrupted'}"
    yield f"  {'rate':<9} {short(tally.sent / seconds)}/s, {short(tally.sent * load.size / seconds, 'B')}/s"
    if load.kind is What.pubsub:
        yield f"  {'received':<9} {short(tally.received / seconds)}/s, {tally.lost} lost"
    if tally.times.count:
        yield f"  {'latency':<9} {latency(bench)}"


def what(bench: Bench) -> tuple[str, str]:
    """What is measured, and how, in words."""
    load = bench.load
    places = " -> ".join(dict.fromkeys(bench.addresses)) or "connecting"
    who = {
        What.pubsub: f"{load.publishers} publishing, {load.subscribers} subscribed",
        What.publish: f"{load.publishers} publishing",
        What.call: f"{load.publishers} calling {load.service or 'an echo'}",
    }[load.kind]
    pace = f", {short(load.rate)}/s" if load.rate else ""
    return f"{load.kind.value} {places}", f"  {who}, {load.in_flight} in flight{pace}"


def latency(bench: Bench) -> str:
    """The percentiles on one line."""
    times = bench.tally.times
    parts = [f"p{part:g} {took(times.percentile(part) / 1e9)}" for part in PERCENTILES]
    return "  ".join([*parts, f"most {took(times.most / 1e9)}"])


@contextlib.asynccontextmanager
async def live(bench: Bench) -> AsyncIterator[None]:
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
        title, how = what(bench)
        shown = [Text(title, style="bold", no_wrap=True, overflow="ellipsis"), Text(how), bar, speed]
        if tally.times.count:
            shown.append(Text(f"  {latency(bench)}", no_wrap=True, overflow="ellipsis"))
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
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def part_done(bench: Bench) -> float:
    """How much of it is done, from 0 to 1."""
    load, tally = bench.load, bench.tally
    parts = [0.0]
    if load.messages:
        parts.append(tally.sent / load.messages)
    if load.seconds:
        parts.append(tally.seconds / load.seconds)
    return min(1.0, max(parts))
