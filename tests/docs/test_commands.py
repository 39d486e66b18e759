"""Every ``polywire …`` in a block of any page is a command there is, with options it has."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from polywire.cli.main import app

ROOT = Path(__file__).parents[2]
MADE = ROOT / "docs" / "reference"
"""Made from the commands themselves."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if MADE not in page.parents)]
BLOCK = re.compile(r"^```(?:|sh|sh .*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:\$ |[^#\n]*\| )?polywire ([a-z-].*)$", re.MULTILINE)


def _commands(page: Path) -> list[list[str]]:
    """The words of each command, up to a redirection, a pipe or a comment."""
    found = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in LINE.findall(block.replace("\\\n", " ")):
            words = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
            words.whitespace_split = True
            found.append([*itertools.takewhile(lambda word: word[:1] not in {*"|<>&;"}, words)])
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)], ids=lambda page: page.stem)
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    for words in _commands(page):
        command: Any = typer.main.get_command(app)
        rest = words
        while rest and getattr(command, "commands", None) and not rest[0].startswith("-"):
            assert rest[0] in command.commands, words
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)}
        assert given - known == set(), words
