"""``polywire journal ls``: the segments of a journal and its named readers."""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from polywire.cli.rows import iso
from polywire.cli.scanning import open_place
from polywire.journal.readers import NamedReaders

HEADINGS = ("segment", "offsets", "rows", "octets", "from", "to", "state")


def print_segments(place: str, token: str | None, *, as_json: bool) -> None:
    """Print a table, lines with tabs, or a JSON object for each segment."""
    segments = open_place(place, token).segments()
    if as_json:
        for segment in segments:
            typer.echo(json.dumps(segment_json(segment)))
        return
    rows = [_row(segment) for segment in segments]
    readers = list(NamedReaders(Path(place))) if Path(place).is_dir() else []
    if not is_terminal():
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import, and only a terminal needs it
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(*HEADINGS, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[2:4]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, highlight=False)
    console.print(table)
    total = sum(segment.octets for segment in segments)
    console.print(f"{len(segments)} segments, {sum(segment.rows for segment in segments)} rows, {total} octets")
    for reader in readers:
        console.print(f"reader {reader.name} needs what is from {reader.offset} on{_problem(reader.problem)}")


def is_terminal() -> bool:
    """Whether a person looks on."""
    return sys.stdout.isatty()


def segment_json(segment: Any) -> dict[str, Any]:
    """A segment for programs."""
    return {
        "name": segment.name,
        "format": segment.format,
        "first_offset": segment.first_offset,
        "end_offset": segment.end_offset,
        "rows": segment.rows,
        "octets": segment.octets,
        "min_time": None if segment.min_time is None else iso(segment.min_time),
        "max_time": None if segment.max_time is None else iso(segment.max_time),
        "closed": segment.closed,
    }


def _row(segment: Any) -> tuple[str, ...]:
    return (
        segment.name,
        f"{segment.first_offset}-{segment.end_offset}",
        str(segment.rows),
        str(segment.octets),
        "-" if segment.min_time is None else iso(segment.min_time),
        "-" if segment.max_time is None else iso(segment.max_time),
        "closed" if segment.closed else "active",
    )


def _problem(problem: str) -> str:
    return f" ({problem})" if problem else ""
