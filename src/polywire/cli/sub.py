"""``polywire sub``: messages as they come, in a live view or as lines; and ``polywire demand``."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from polywire.cli.lifecycle import Ending, cancelled, run
from polywire.cli.options import DEMAND_URL, Connection, connecting, examples
from polywire.cli.output import Form, Printer, print_json, shown

if TYPE_CHECKING:
    from polywire.client.bus import Bus
    from polywire.client.message import Message


Handle = Callable[["Message"], None]

sub_epilog = examples(
    "polywire sub 'home/**'",
    "polywire sub 'sensors/*/temp' 'sensors/*/humidity' --url mqtt://anna@host",
    "polywire sub --queue jobs --count 1 -o raw > job.bin",
    "polywire sub 'orders/**' -o json | jq -r .body",
    "polywire sub home/door --count 1 --timeout 5 -o body",
)


@connecting()
def sub(
    connection: Connection,
    pattern: Annotated[
        list[str],
        typer.Argument(metavar="PATTERN...", help="Topics: * is one level, a last ** any number.", show_default=False),
    ],
    queue: Annotated[bool, typer.Option("--queue", "-q", help="PATTERN is the name of a queue to consume.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.001, help="Stop after this time.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.001, help="Exit with 4 if no message arrives for this time."
        ),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            "-o",
            help="text: channel, tab, body; body: the body and a line break; json: one JSON object per line; raw: only "
            "the bytes of the bodies. Default: a live view on a terminal, text in a pipe.",
        ),
    ] = None,
) -> None:
    """Subscribe to topics, or consume a queue, and print messages until Ctrl-C.

    On a terminal it shows a live view: rates, channels and the last messages. A lost connection is restored
    automatically.
    """

    async def work() -> None:
        async with connection.open() as bus:
            ending = Ending(count, seconds, timeout)
            async with _shown(bus, pattern, form, ending, at_once=queue) as handle:
                await receive(bus, pattern, handle, ending, queue=queue)

    run("sub", work(), endless=True)


async def receive(bus: "Bus", patterns: Sequence[str], handle: Handle, ending: Ending, *, queue: bool = False) -> None:
    """Give everything that comes to ``handle``, until it is enough."""

    async def topic(pattern: str) -> None:
        async with bus.subscribe(pattern) as messages:
            async for message in messages:
                if ending.message():
                    handle(message)

    async def jobs(name: str) -> None:
        async with bus.queue(name) as messages:
            async for message in messages:
                if not ending.message():
                    return  # not acknowledged, so another consumer gets it
                handle(message)
                if ending.broken:
                    return
                message.ack()

    read = jobs if queue else topic
    tasks = [asyncio.create_task(read(pattern)) for pattern in dict.fromkeys(patterns)]
    try:
        await ending.wait(tasks)
    finally:
        await cancelled(*tasks)


@contextlib.asynccontextmanager
async def _shown(
    bus: "Bus", patterns: Sequence[str], form: Form | None, ending: Ending, *, at_once: bool
) -> AsyncIterator[Handle]:
    """What is done with each message: a view, or lines, written ``at_once`` where it is acknowledged then."""
    if form is None and sys.stdout.isatty():
        from polywire.cli.view import live_view  # noqa: PLC0415 - slow to import, and only a terminal needs it

        async with live_view(bus, patterns) as handle:
            yield handle
        return
    printer = Printer(form or Form.text, ending.failed)

    def put(message: "Message") -> None:
        printer.put(message)
        if at_once:
            printer.flush()

    try:
        yield put
    finally:
        printer.flush()


demand_epilog = examples(
    "polywire demand 'camera/*'",
    "polywire demand camera/door --json --url fmqp://10.0.0.5",
)


@connecting(DEMAND_URL)
def demand(
    connection: Connection,
    pattern: Annotated[str, typer.Argument(help="Topics; * is one level.", show_default=False)],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many changes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Watch how many subscribers topics have, on all protocols: one line per change, until Ctrl-C.

    This works over FMQP only. The current numbers are printed first.
    """

    async def work() -> None:
        came = 0
        async with connection.open() as bus, bus.watch_demand(pattern) as changes:
            async for change in changes:
                if as_json:
                    print_json({"channel": change.channel, "subscribers": change.subscribers})
                else:
                    typer.echo(f"{shown(change.channel)}\t{change.subscribers}")
                came += 1
                if came == count:
                    return

    run("demand", work(), endless=True)
