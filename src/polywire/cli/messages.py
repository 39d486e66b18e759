"""The commands that send and receive messages: ``polywire pub``, ``sub``, ``demand``, ``call`` and ``ping``.

``pub`` publishes bodies from arguments, files or standard input, whole or a line each. Standard input is read by a
thread, because a file, a pipe and a terminal can't all be awaited. Little is read ahead, so that a fast writer waits
for a slow server. ``call`` takes its bodies in the same way. ``sub`` shows messages as they come, in a live view or as
lines.
"""

import asyncio
import collections
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from polywire.cli.lifecycle import Code, CommandError, Ending, cancelled, run
from polywire.cli.options import DEMAND_URL, Connection, connecting, examples
from polywire.cli.output import Form, Format, Printer, print_json, say, shown, took

if TYPE_CHECKING:
    from polywire.client.bus import Bus
    from polywire.client.message import Message, Request
    from polywire.client.outgoing import Promise

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


call_epilog = examples(
    "polywire call greeter greet Anna",
    "polywire call orders place -f order.json -t application/json --timeout 5",
    "polywire call clock now '' -o json --url sabc://127.0.0.1",
    "cut -d, -f1 names.csv | polywire call greeter greet --lines",
)


@connecting()
def call(
    connection: Connection,
    service: Annotated[str, typer.Argument(help="The service.", show_default=False)],
    method: Annotated[str, typer.Argument(help="The method to call.", show_default=False)],
    body: Bodies = None,
    file: Files = None,
    lines: Lines = False,
    header: Headers = None,
    content_type: ContentType = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for an answer.")
    ] = 30.0,
    form: Format = Form.body,
) -> None:
    """Call a service, once for each body, and print the answers.

    Exits with 6 if the service answers with an error, which is printed on standard error, and with 4 on a timeout.
    """

    async def work() -> None:
        headers = parse_headers(header or ()) or None
        async with connection.open() as bus:
            ending = Ending()
            printer = Printer(form, ending.failed)
            async for each in read_bodies(body or (), file or (), lines=lines):
                answer = await bus.call(
                    service, method, each, timeout=timeout, headers=headers, content_type=content_type
                )
                printer.put(answer)
                printer.flush()
                ending.check()

    run("call", work())


serve_echo_epilog = examples(
    "polywire serve-echo echo",
    "polywire serve-echo slow --delay 2 --url sabc://127.0.0.1",
    "polywire serve-echo broken --fail 503 -o json",
)


@connecting()
def serve_echo(
    connection: Connection,
    service: Annotated[str, typer.Argument(help="The name of the service.", show_default=False)],
    delay: Annotated[
        float, typer.Option("--delay", metavar="SECONDS", min=0, help="Delay each answer by this time.")
    ] = 0.0,
    fail: Annotated[
        int | None, typer.Option("--fail", metavar="CODE", min=400, max=599, help="Answer with this error code.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many calls.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Don't print the calls.")] = False,
    form: Format = Form.text,
) -> None:
    """Offer a service that answers each call with the call's own body, and print the calls, until Ctrl-C.

    A call is printed as service/method and its body.
    """

    async def work() -> None:
        from polywire.client.errors import CallFailed  # noqa: PLC0415 - not for help and completion
        from polywire.client.message import Message  # noqa: PLC0415 - as above

        ending = Ending()
        printer = Printer(form, ending.failed)
        answered = 0

        async def echo(request: "Request") -> "Message":
            nonlocal answered
            channel = f"{request.service}/{request.method}"
            if not quiet:
                printer.put(Message(channel, request.body, request.headers, request.content_type))
            try:
                if delay:
                    await asyncio.sleep(delay)
                if fail is not None:
                    raise CallFailed(fail, "told-to-fail", "failing as requested by --fail")
                return Message("", request.body, content_type=request.content_type)
            finally:
                answered += 1
                if answered == count:
                    # The answer is to go first.
                    asyncio.get_running_loop().call_later(0.05, ending.enough)

        async with connection.open() as bus:
            offered = await bus.serve(service, echo)
            say(f"serving {service} at {bus.address}; press Ctrl-C to stop")
            try:
                await ending.wait([])
            finally:
                printer.flush()
                await offered.close()

    run("serve-echo", work(), endless=True)


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
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Number of round trips; 0 means until Ctrl-C.")
    ] = 4,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0, help="Seconds between two round trips.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long a round trip may take.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Connect, log in, and measure round trips of the protocol.

    Exits with 0 if all were answered, with 3 if there is no server, with 4 on a timeout, and with 5 if the server
    refuses the login.
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
