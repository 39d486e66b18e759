"""``polywire serve-echo``: a service that answers with what it is sent, to try out callers with."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from polywire.cli.connecting import Connection, connecting
from polywire.cli.ending import Ending
from polywire.cli.options import examples
from polywire.cli.printing import Form, Format, Printer, say
from polywire.cli.running import run

if TYPE_CHECKING:
    from polywire.client.message import Message, Request

serve_echo_epilog = examples(
    "polywire serve-echo echo",
    "polywire serve-echo slow --delay 2 --url sabc://127.0.0.1",
    "polywire serve-echo broken --fail 503 -o json",
)


@connecting()
def serve_echo(
    connection: Connection,
    service: Annotated[str, typer.Argument(help="The name to offer it under.", show_default=False)],
    delay: Annotated[float, typer.Option("--delay", metavar="SECONDS", min=0, help="Answer so much later.")] = 0.0,
    fail: Annotated[
        int | None, typer.Option("--fail", metavar="CODE", min=400, max=599, help="Answer with this error instead.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many calls.")] = None,
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
                    raise CallFailed(fail, "told-to-fail", "this service was told to fail")
                return Message("", request.body, content_type=request.content_type)
            finally:
                answered += 1
                if answered == count:
                    # The answer is to go first.
                    asyncio.get_running_loop().call_later(0.05, ending.enough)

        async with connection.open() as bus:
            offered = await bus.serve(service, echo)
            say(f"serving {service} at {bus.address}; Ctrl-C ends it")
            try:
                await ending.wait([])
            finally:
                printer.flush()
                await offered.close()

    run("serve-echo", work(), endless=True)
