"""``polywire pub``: publish bodies from arguments, files or standard input, whole or a line each.

Standard input is read by a thread, because a file, a pipe and a terminal can't all be awaited. Little is read ahead,
so that a fast writer waits for a slow server. ``call`` takes its bodies from here too.
"""

import asyncio
import collections
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from polywire.cli.lifecycle import Code, CommandError, run
from polywire.cli.options import Connection, connecting, examples
from polywire.cli.output import say

if TYPE_CHECKING:
    from polywire.client.receipt import Promise


CHUNK: Final = 64 * 1024
STANDARD_INPUT: Final = "-"

Bodies = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[BODY]...",
        help="Message bodies; - is standard input. Default: standard input.",
        show_default=False,
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", metavar="FILE", help="Send what is in a file; - is standard input. May be repeated."),
]
Lines = Annotated[
    bool,
    typer.Option(
        "--lines",
        "-l",
        help="Send each line of the files, or of standard input, by itself; at a terminal, as you type.",
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header to send with the body. May be repeated."),
]
ContentType = Annotated[
    str | None, typer.Option("--content-type", "-t", metavar="TYPE", help="What the body is, such as application/json.")
]


async def read_bodies(texts: Sequence[str], files: Sequence[Path], *, lines: bool) -> AsyncIterator[bytes]:
    """The bodies, one after the other: the arguments, then the files; standard input where there is neither."""
    if not texts and not files:
        if sys.stdin.isatty() and not lines:
            words = "there is no body: give one, a --file, something on standard input, or --lines to type them"
            raise CommandError(words, Code.USAGE)
        texts = [STANDARD_INPUT]
    places: list[str | Path] = [*texts, *files]
    for place in places:
        if str(place) == STANDARD_INPUT:
            if sys.stdin.isatty():
                say("type a message and press Enter to send it; Ctrl-D ends" if lines else "type; Ctrl-D sends it")
            source = _standard_input()
        elif isinstance(place, str):
            yield os.fsencode(place)
            continue
        else:
            source = _file(place)
        if lines:
            async for line in split(source):
                yield line
        else:
            yield b"".join([chunk async for chunk in source])


def parse_headers(given: Sequence[str]) -> dict[str, str]:
    """``name=value`` as a header each."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise CommandError(f"--header {each}: a header is written NAME=VALUE", Code.USAGE)
        found[name] = value
    return found


async def split(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines in chunks that are cut anywhere, without their ends; the last one needs none."""
    rest: list[bytes] = []
    async for chunk in source:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        for each in others:
            yield b"".join(rest).removesuffix(b"\r")
            rest = [each]
    if any(rest):
        yield b"".join(rest)


async def _file(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


async def _standard_input() -> AsyncIterator[bytes]:
    """Chunks as they come."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    wanted = threading.Semaphore(2)
    number = sys.stdin.fileno()

    def read() -> None:
        # Not sys.stdin.buffer: its lock would be held when the command ends while this waits.
        found: bytes | OSError = b"-"
        while found and isinstance(found, bytes):
            wanted.acquire()
            try:
                found = os.read(number, CHUNK)
            except OSError as error:
                found = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, found)
            except RuntimeError:  # the loop has ended
                return

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk
        wanted.release()


WINDOW: Final = 512
"""Messages that may be in flight at once."""

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
    queue: Annotated[bool, typer.Option("--queue", "-q", help="CHANNEL is the name of a queue.")] = False,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Retain the message for later subscribers.")] = False,
    header: Headers = None,
    content_type: ContentType = None,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="Send each body this many times.")] = 1,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0, help="Time to wait between two messages.")
    ] = 0.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for an acknowledgement.")
    ] = 30.0,
) -> None:
    """Publish messages to a topic, or put them into a queue.

    Exits with 0 when the server has acknowledged all of them; over FMQP and with --qos 0, which know no
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
