"""``polywire`` itself: its options, ``serve``, ``demo``, and the place where the other commands are mounted."""

import asyncio
import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Annotated

import typer

import polywire
from polywire.cli import cluster, config, journal, pipeline, user
from polywire.cli.bench import bench, bench_epilog
from polywire.cli.control import reload, reload_epilog, status, status_epilog, stop, stop_epilog
from polywire.cli.decode import decode, decode_epilog
from polywire.cli.messages import (
    call,
    call_epilog,
    demand,
    demand_epilog,
    ping,
    ping_epilog,
    pub,
    pub_epilog,
    serve_echo,
    serve_echo_epilog,
    sub,
    sub_epilog,
)
from polywire.cli.options import ConfigFile, Insecure, Sets, config_errors_reported, examples
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


SERVER = "polywire.server.server"
WORKERS = "polywire.server.workers"

# Plain help: it reads the same on a terminal and in a pipe, and [tls] is not taken for markup.
app = typer.Typer(
    name="polywire",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Groups of commands, one file each: mount another one here.
app.add_typer(config.app, name="config")
app.add_typer(user.app, name="user")
app.add_typer(journal.app, name="journal")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(cluster.app, name="cluster")
app.command(epilog=pub_epilog)(pub)
app.command(epilog=sub_epilog)(sub)
app.command(epilog=call_epilog)(call)
app.command("serve-echo", epilog=serve_echo_epilog)(serve_echo)
app.command(epilog=demand_epilog)(demand)
app.command(epilog=ping_epilog)(ping)
app.command(epilog=bench_epilog)(bench)
app.command(epilog=decode_epilog)(decode)
app.command(epilog=demo_epilog)(demo)
app.command(epilog=status_epilog)(status)
app.command(epilog=reload_epilog)(reload)
app.command(epilog=stop_epilog)(stop)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polywire {polywire.__version__}")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "polywire serve",
        "polywire sub 'home/**'",
        "polywire pub home/door open",
        "polywire config check polywire.toml",
    )
)
def start(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A message hub that speaks five protocols on one routing core."""


@app.command(
    epilog=examples(
        "polywire serve",
        "polywire serve --config polywire.toml",
        "polywire serve --set listen.fmqp=tcp://127.0.0.1:0 --set listen.mqtt=off",
        "polywire serve --set 'limits.message_size=1 MiB' --set journal.enabled=false",
        "polywire serve --set listen.mqtt=tcp://0.0.0.0:1883 --insecure",
        "polywire serve --pid /run/polywire/hub.json",
        "polywire serve --workers 4",
    )
)
def serve(
    config: ConfigFile = None,
    sets: Sets = None,
    *,
    insecure: Insecure = False,
    pid: Annotated[
        Path | None,
        typer.Option("--pid", metavar="FILE", help="Write the runtime file here, for status, reload and stop."),
    ] = None,
    workers: Annotated[
        int,
        typer.Option("--workers", metavar="N", min=1, max=64, help="How many processes share the work, as one hub."),
    ] = 1,
) -> None:
    """Run the hub in the foreground until SIGTERM or Ctrl-C; SIGHUP reloads the configuration.

    When it listens, it prints one line: "ready " and a JSON object of its listeners and their addresses. Logs go to
    standard error.
    """
    from polywire.server.config import load  # noqa: PLC0415 - here, so that other commands start quickly

    with config_errors_reported():
        loaded = load(config, sets or ())
        loaded.check(insecure=insecure)
    with config_errors_reported():
        if workers > 1:
            supervisor = importlib.import_module(WORKERS)
            raise typer.Exit(supervisor.serve(loaded, workers, insecure=insecure, pid_file=pid))
        server = importlib.import_module(SERVER)
        raise typer.Exit(server.serve(loaded, insecure=insecure, pid_file=pid) or 0)


def main() -> None:
    """The entry point of the command."""
    app()
