"""``polywire ping``: whether a server answers, and how fast."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Annotated

import typer

from polywire.cli.connecting import Connection, connecting
from polywire.cli.options import examples
from polywire.cli.printing import print_json
from polywire.cli.rates import took
from polywire.cli.running import run

ping_epilog = examples(
    "polywire ping",
    "polywire ping --url mqtts://broker.example --count 1",
    "polywire ping --count 0 --every 0.2 --json",
)


async def _round_trip(answer: Awaitable[None], seconds: float) -> float:
    from polywire.client.errors import Timeout  # noqa: PLC0415 - not for help and completion

    begun = time.perf_counter()
    try:
        async with asyncio.timeout(seconds):
            await answer
    except TimeoutError as error:
        raise Timeout("the round trip", seconds) from error
    return time.perf_counter() - begun


@connecting()
def ping(
    connection: Connection,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many round trips; 0: until Ctrl-C.")] = 4,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0, help="Seconds between two.")] = 1.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long one may take.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Connect, login included, and measure round trips in the protocol's own words.

    Leaves with 0 when all were answered, with 3 where there is nobody, 4 where an answer took too long, 5 where the
    server refuses us.
    """
    times: list[float] = []

    async def work() -> None:
        opening = connection.open()
        begun = time.perf_counter()
        async with opening as bus:
            connected = time.perf_counter() - begun
            if as_json:
                print_json({"address": str(bus.address), "connected_ms": round(connected * 1e3, 3)})
            else:
                typer.echo(f"connected to {bus.address} in {took(connected)}")
            while True:
                times.append(await _round_trip(bus.ping(), timeout))
                if as_json:
                    print_json({"number": len(times), "ms": round(times[-1] * 1e3, 3)})
                else:
                    typer.echo(f"answer {len(times)} in {took(times[-1])}")
                if len(times) == count:
                    break
                await asyncio.sleep(every)

    try:
        run("ping", work(), endless=count == 0)
    finally:
        if times and not as_json:
            ordered = sorted(times)
            middle = ordered[(len(ordered) - 1) // 2]
            words = f"least {took(ordered[0])}, median {took(middle)}, most {took(ordered[-1])}"
            typer.echo(f"{len(times)} round trips: {words}")
