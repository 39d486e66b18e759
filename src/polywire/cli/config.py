"""``polywire config``: check and show a configuration without starting a hub."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polywire.cli.options import ConfigFile, Insecure, Sets, config_errors_reported, examples

if TYPE_CHECKING:
    from polywire.server.config import Setting

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback(
    epilog=examples(
        "polywire config check polywire.toml",
        "polywire config show --set limits.connections=100",
    )
)
def group() -> None:
    """Check a configuration, or show what it comes to."""


@app.command(
    epilog=examples(
        "polywire config check polywire.toml",
        "polywire config check /etc/polywire.toml --insecure",
    )
)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration to check.", show_default=False)],
    sets: Sets = None,
    *,
    insecure: Insecure = False,
) -> None:
    """List all mistakes in FILE, and exit with 1 if there are any."""
    from polywire.server.config import load  # noqa: PLC0415 - slow to import, and not every command needs it

    with config_errors_reported():
        load(file, sets or ()).check(insecure=insecure)
    typer.echo(f"{file}: no problems")


@app.command(
    epilog=examples(
        "polywire config show",
        "polywire config show --config polywire.toml --set limits.outbox='8 MiB'",
        "polywire config show --json | jq '.\"listen.fmqp\".value'",
    )
)
def show(
    config: ConfigFile = None,
    sets: Sets = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every key with its effective value and where that comes from: a file and line, --set, or the default."""
    from polywire.server.config import load  # noqa: PLC0415 - slow to import, and not every command needs it

    with config_errors_reported():
        settings = list(load(config, sets or ()).settings())
    if as_json:
        shown = {setting.key: {"value": setting.value, "from": str(setting.origin)} for setting in settings}
        typer.echo(json.dumps(shown, indent=2))
    elif sys.stdout.isatty():
        _print_table(settings)
    else:
        _print_lines(settings)


def value_text(value: object) -> str:
    """A value on one line, the way TOML writes it; what is not set is a dash."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(name)} = {value_text(item)}" for name, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _print_lines(settings: "list[Setting]") -> None:
    rows = [(setting.key, value_text(setting.shown), str(setting.origin)) for setting in settings]
    keys = max(len(key) for key, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    for key, value, origin in rows:
        typer.echo(f"{key:<{keys}}  {value:<{values}}  {origin}")


def _print_table(settings: "list[Setting]") -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import, and only a terminal needs it
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table("key", "value", "from", box=None, pad_edge=False, header_style="bold")
    section = ""
    for setting in settings:
        name = setting.key.rpartition(".")[0]
        if section and name != section:
            table.add_row()
        section = name
        style = "dim" if setting.origin.kind == "default" else "bold"
        table.add_row(Text(setting.key), Text(value_text(setting.shown)), Text(str(setting.origin)), style=style)
    Console().print(table)
