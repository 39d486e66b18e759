"""``polywire pub``: publish what stands in arguments, files or on standard input."""

import asyncio
import collections
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from polywire.cli.bodies import Bodies, ContentType, Files, Headers, Lines, parse_headers, read_bodies
from polywire.cli.connecting import Connection, connecting
from polywire.cli.options import examples
from polywire.cli.printing import say
from polywire.cli.running import run

if TYPE_CHECKING:
    from polywire.client.receipt import Promise

WINDOW: Final = 512
"""Messages that may be under way at once."""

WINDOW_OCTETS: Final = 1024 * 1024

pub_epilog = examples(
    "polywire pub home/door open",
    "polywire pub home/door/state closed --retain --url mqtt://127.0.0.1",
    "polywire pub --queue jobs -f order.json -t application/json -H priority=high",
    "tail -F app.log | polywire pub logs/app --lines",
    "polywire pub test/tick tick --repeat 10 --every 0.5",
)


@connecting()
def pub(
    connection: Connection,
    channel: Annotated[str, typer.Argument(help="The topic to publish to.", show_default=False)],
    body: Bodies = None,
    file: Files = None,
    lines: Lines = False,
    queue: Annotated[bool, typer.Option("--queue", "-q", help="CHANNEL is a queue, to put into.")] = False,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Kept for later subscribers.")] = False,
    header: Headers = None,
    content_type: ContentType = None,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="Send each body so many times.")] = 1,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0, help="Wait so long between two messages.")
    ] = 0.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long an acknowledgement may take.")
    ] = 30.0,
) -> None:
    """Publish messages to a topic, or put them into a queue.

    Leaves with 0 when the server has acknowledged all of them; over FMQP and with --qos 0, which know no
    acknowledgement, when they are sent.
    """

    async def work() -> None:
        headers = parse_headers(header or ()) or None
        async with connection.open() as bus:
            if queue:
                target = bus.queue(channel)

                def send(each: bytes) -> "Awaitable[Promise]":
                    return target.put(each, headers=headers, content_type=content_type)
            else:

                def send(each: bytes) -> "Awaitable[Promise]":
                    return bus.publish(channel, each, headers=headers, content_type=content_type, retain=retain)

            bodies = repeated(read_bodies(body or (), file or (), lines=lines), repeat, every)
            # Somebody who types wants to know at once what became of a line.
            count, promise = await send_all(bodies, send, timeout, 0 if sys.stdin.isatty() else WINDOW)
        word = "sent" if promise is None else promise.value
        say(f"{count} {'message' if count == 1 else 'messages'} {word}")

    run("pub", work())


async def repeated(bodies: AsyncIterator[bytes], times: int, pause: float) -> AsyncIterator[bytes]:
    """Each body so many times, with a pause between any two."""
    first = True
    async for body in bodies:
        for _ in range(times):
            if pause and not first:
                await asyncio.sleep(pause)
            first = False
            yield body


async def send_all(
    bodies: AsyncIterator[bytes],
    send: "Callable[[bytes], Awaitable[Promise]]",
    seconds: float,
    window: int = WINDOW,
) -> "tuple[int, Promise | None]":
    """Send them, ``window`` in flight at once, and wait for each. How many, and what is known of the last."""
    waiting: collections.deque[tuple[Awaitable[Promise], int]] = collections.deque()
    octets = count = 0
    promise = None
    async for body in bodies:
        waiting.append((send(body), len(body)))
        octets += len(body)
        count += 1
        while len(waiting) > window or octets > WINDOW_OCTETS:
            receipt, size = waiting.popleft()
            octets -= size
            promise = await outcome(receipt, seconds)
    while waiting:
        promise = await outcome(waiting.popleft()[0], seconds)
    return count, promise


async def outcome(receipt: "Awaitable[Promise]", seconds: float) -> "Promise":
    """What became of a message."""
    if getattr(receipt, "done", None) is True:  # a time limit costs more than all the rest
        return await receipt
    from polywire.client.errors import Timeout  # noqa: PLC0415 - not for help and completion

    try:
        async with asyncio.timeout(seconds):
            return await receipt
    except Timeout:
        raise
    except TimeoutError as error:
        raise Timeout("the acknowledgement of a message", seconds, sent=True) from error
