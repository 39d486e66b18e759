"""``polywire demo``: the greenhouse, on this machine, in a minute or two."""

import asyncio
import importlib.util
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from polywire.cli.options import examples
from polywire.errors import PolywireError

demo_epilog = examples(
    "polywire demo",
    "polywire demo --folder greenhouse",
    "polywire demo --no-tables",
    "polywire demo --run --folder data",
)


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", metavar="FOLDER", help="Directory for journal, tables and report. Default: a new temporary one."
        ),
    ] = None,
    *,
    tables: Annotated[bool, typer.Option(help="Show the Spark tables at the end.")] = True,
    run: Annotated[
        bool, typer.Option("--run", help="Only run hub and pipeline, on the default ports, until Ctrl-C.")
    ] = False,
) -> None:
    """Run a demo of a greenhouse over all five protocols, and show what happened as tables.

    Everything runs on loopback, on free ports, and stops at the end. Exits with 0 only if every step succeeded.
    """
    if tables and importlib.util.find_spec("pyspark") is None:
        typer.echo(
            "polywire: the tables need Spark: pip install 'polywire[pipeline]' installs it, --no-tables skips them",
            err=True,
        )
        raise typer.Exit(1)
    if run:
        from polywire.demo.story import run_both  # noqa: PLC0415 - only here

        place = Path() if folder is None else folder
        place.mkdir(parents=True, exist_ok=True)
        raise typer.Exit(asyncio.run(run_both(place, lambda line: typer.echo(line, err=True), tables=tables)))
    from polywire.demo.story import Story  # noqa: PLC0415 - only here

    place = Path(tempfile.mkdtemp(prefix="polywire-demo-")) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        place = Path(tempfile.mkdtemp(prefix="again-", dir=place))
    try:
        asyncio.run(Story(place, typer.echo, tables=tables).tell())
    except PolywireError as error:
        typer.echo(f"polywire: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"\nThe journal and everything else is in {place}; 'polywire journal ls {place / 'journal'}' lists it.")
