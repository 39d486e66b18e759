"""The options that several commands share, and how a configuration that can't be used is reported."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration. Without it, polywire.toml in the working directory if it is there.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Set any key; wins over the file. A TOML value, anything else is a string. May be repeated.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow listening beyond loopback though there is no [auth]."),
]


def examples(*commands: str) -> str:
    """The end of a help text: commands to copy."""
    # Click keeps the lines of a paragraph that begins so.
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


@contextmanager
def config_errors_reported() -> Iterator[None]:
    """Print what is wrong with a configuration, a line for each problem, and leave with 1."""
    from polywire.server.config import ConfigError  # noqa: PLC0415 - slow to import, and not every command needs it

    try:
        yield
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"polywire: {problem}", err=True)
        raise typer.Exit(1) from None
