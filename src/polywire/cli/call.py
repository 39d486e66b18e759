"""``polywire call``: call a service and print its answer."""

from typing import Annotated

import typer

from polywire.cli.bodies import Bodies, ContentType, Files, Headers, Lines, parse_headers, read_bodies
from polywire.cli.connecting import Connection, connecting
from polywire.cli.ending import Ending
from polywire.cli.options import examples
from polywire.cli.printing import Form, Format, Printer
from polywire.cli.running import run

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
    method: Annotated[str, typer.Argument(help="Its method.", show_default=False)],
    body: Bodies = None,
    file: Files = None,
    lines: Lines = False,
    header: Headers = None,
    content_type: ContentType = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long one call may take.")
    ] = 30.0,
    form: Format = Form.body,
) -> None:
    """Call a service, once for each body, and print the answers.

    Leaves with 6 where the service answers with an error, and says so on standard error; with 4 where no answer comes.
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
