"""The page about commands names what there is."""

import re
from pathlib import Path

import typer.main

from polywire.cli.lifecycle import Code
from polywire.cli.main import app
from polywire.cli.options import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_page_lists_every_command() -> None:
    commands = {each.name or str(each.callback.__name__) for each in app.registered_commands if each.callback}
    groups = {each.name for each in app.registered_groups}
    assert set(re.findall(r"^\| `polywire ([a-z-]+)` \|", PAGE, re.MULTILINE)) == commands | groups


def test_the_page_lists_every_exit_code() -> None:
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)] == [code.value for code in Code]


def test_the_page_lists_every_option_that_says_where_to() -> None:
    named = {f"--{name.replace('_', '-')}" for name in OPTIONS}
    assert {name for name in named if f"`{name}`" not in PAGE} == set()


def test_every_command_of_the_page_is_understood() -> None:
    group = typer.main.get_command(app)
    for line in re.findall(r"^(?:\$ |[^`\n|]*\| )?polywire ([a-z-]+)(.*)$", PAGE, re.MULTILINE):
        name, rest = line
        if name.startswith("--"):
            continue
        command = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined] # it is a group
        assert command is not None, line
        known = {option for each in command.params for option in each.opts}
        given = re.findall(r"(?<=\s)(-{1,2}[a-zA-Z][a-z-]*)", re.sub(r"'[^']*'|[|>].*", "", rest))
        assert set(given) <= known, line
