"""``polywire demand``: how many subscribers topics have, whenever that changes."""

from typing import Annotated

import typer

from polywire.cli.connecting import DEMAND_URL, Connection, connecting
from polywire.cli.options import examples
from polywire.cli.printing import print_json, shown
from polywire.cli.running import run

demand_epilog = examples(
    "polywire demand 'camera/*'",
    "polywire demand camera/door --json --url fmqp://10.0.0.5",
)


@connecting(DEMAND_URL)
def demand(
    connection: Connection,
    pattern: Annotated[str, typer.Argument(help="Topics; * is one level.", show_default=False)],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many changes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Watch how many subscribers topics have, on whatever protocol: a line for each change, until Ctrl-C.

    Only FMQP tells this. What is known already comes first.
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
