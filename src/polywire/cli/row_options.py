"""The options of the commands that print rows of a journal: ``cat`` and ``tail``."""

from enum import StrEnum
from typing import Annotated

import typer


class Form(StrEnum):
    """How rows are written."""

    human = "human"
    json = "json"
    arrow = "arrow"


class OnCorrupt(StrEnum):
    """What happens where rows can't be read."""

    fail = "fail"
    gap = "gap"
    skip = "skip"


Format = Annotated[
    Form, typer.Option("--format", "-o", help="Lines for people, JSON lines, or an Arrow IPC stream for programs.")
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAME,…", help="Only these columns; with --format json or arrow."),
]
Corrupt = Annotated[
    OnCorrupt,
    typer.Option("--on-corrupt", help="Where rows can't be read: fail, show a row of kind gap, or skip them silently."),
]
