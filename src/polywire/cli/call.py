"""Request and reply on the command line: ``polywire call``, ``serve-echo`` and ``ping``."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated

import typer

from polywire.cli.lifecycle import Ending, run
from polywire.cli.options import Connection, connecting, examples
from polywire.cli.output import Form, Format, Printer, print_json, say, took
from polywire.cli.pubsub import Bodies, ContentType, Files, Headers, Lines, parse_headers, read_bodies

if TYPE_CHECKING:
    from polywire.client.message import Message, Request


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
