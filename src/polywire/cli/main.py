"""``polywire`` itself: its options, ``serve``, and the place where the other commands are mounted."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

import polywire
from polywire.cli import cluster, config, journal, pipeline, user
from polywire.cli.bench import bench, bench_epilog
from polywire.cli.call import call, call_epilog, ping, ping_epilog, serve_echo, serve_echo_epilog
from polywire.cli.control import reload, reload_epilog, status, status_epilog, stop, stop_epilog
from polywire.cli.decode import decode, decode_epilog
from polywire.cli.demo import demo, demo_epilog
from polywire.cli.options import ConfigFile, Insecure, Sets, config_errors_reported, examples
from polywire.cli.pub import pub, pub_epilog
from polywire.cli.sub import demand, demand_epilog, sub, sub_epilog

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
