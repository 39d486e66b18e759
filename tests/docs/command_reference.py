"""docs/reference/commands.md: every command with its arguments and options, as the program itself knows them.

``make docs`` writes it; with ``--check`` it only says whether it is out of date.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from polywire.cli.main import app
from tests.docs.generated import write_or_check

HEAD = """# Every command

What `polywire … --help` says of each command, made from the program by `make docs`. [Commands](../cli.md) tells how
they are used, and what their exit codes mean.
"""
_NOTE = re.compile(r"\s*\[((?:env var|default|x?[<>=\d.]|required)[^\]]*)\]$")


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *_command(typer.main.get_command(app), None, "polywire")])


def _command(command: Any, parent: Any, name: str) -> Iterator[str]:
    """A command, and those below it. Typer brings a Click of its own, whose classes it does not show."""
    context = typer.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    records = {kind: [*_records(command, context, kind)] for kind in ("argument", "option")}
    yield f"## `{name}`\n"
    yield _markdown(inspect.cleandoc(command.help or "")) + "\n"
    yield f"```\n{' '.join([name, *_usage(command)])}\n```\n"
    for kind, rows in records.items():
        if rows:
            yield f"| {kind} | meaning | more |\n| --- | --- | --- |"
            yield "\n".join(rows) + "\n"
    examples = inspect.cleandoc((command.epilog or "").replace("\b", "")).removeprefix("Examples:")
    if examples:
        yield f"```\n{inspect.cleandoc(examples)}\n```\n"
    for below in sorted(getattr(command, "commands", ())):
        yield from _command(command.commands[below], context, f"{name} {below}")


def _usage(command: Any) -> Iterator[str]:
    """What follows the name: options first, then the arguments in order."""
    yield "[OPTIONS]"
    for each in command.params:
        if each.param_type_name == "argument":
            name = each.name.upper() + ("…" if each.nargs == -1 else "")
            yield name if each.required else f"[{name}]"
    if getattr(command, "commands", None):
        yield "COMMAND …"


def _records(command: Any, context: Any, kind: str) -> Iterator[str]:
    """A row for each argument or option: how it is written, what it means, its default and its bounds."""
    for each in command.params:
        record = each.get_help_record(context) if each.param_type_name == kind else None
        if record is None or "--help" in each.opts:
            continue
        meaning = " ".join(record[1].split())
        notes: list[str] = []
        while note := _NOTE.search(meaning):
            meaning = meaning[: note.start()]
            notes[:0] = note[1].split("; ")
        written = record[0].replace(" <int range>", " N")
        written = re.sub(r" <(?:str|list\[str\])>", " TEXT", re.sub(r" <(?:path|file|list\[Path\])>", " FILE", written))
        if kind == "argument":
            written = " ".join([each.name.upper(), *re.findall(r"<.*\|.*>", written)])
        written = written.replace("|", "\\|")
        yield f"| `{written}` | {_cell(meaning)} | {_cell(', '.join(map(_plain, notes)))} |"


def _plain(note: str) -> str:
    """What is said beside an option, in words."""
    note = re.sub(r"^x>=([\d.]+)$", r"\1 or more", note)
    return re.sub(r"^([\d.]+)<=x<=([\d.]+)$", r"\1 to \2", note).removesuffix(".0")


def _cell(text: str) -> str:
    return re.sub(r"([|*<])", r"\\\1", text)


def _markdown(text: str) -> str:
    """Help as prose, its lists and tables as they are."""
    parts = []
    for part in text.split("\n\n"):
        kept = part.removeprefix("\b\n")
        parts.append(_cell(" ".join(part.split())) if kept == part else f"```\n{kept}\n```")
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check({"commands.md": page()}, "reference"))
