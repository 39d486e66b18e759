"""What ``polywire pipeline`` shows: progress while it waits, how far queries are, rows of an answer."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from polywire.pipeline.status import Status

WIDEST = 80
"""Characters of a value in a table for people."""


class Format(StrEnum):
    """How the rows of an answer are written."""

    table = "table"
    json = "json"
    csv = "csv"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something is under way, where somebody is looking."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as shown:
        shown.add_task(what, total=None)
        yield


@contextmanager
def rows_read(*, once: bool) -> Iterator[Callable[[list["Status"]], None]]:
    """Show how far the queries are: a bar for each, up to what the journal has."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        console=console,
        transient=not once,
    ) as shown:
        bars: dict[str, Any] = {}

        def watch(statuses: list["Status"]) -> None:
            for status in statuses:
                if status.query not in bars:
                    bars[status.query] = shown.add_task(status.query, total=None, speed="")
                speed = f"{status.rows_per_second:,.0f} rows/s"
                done = sum(status.place.values())
                shown.update(bars[status.query], completed=done, total=done + status.lag, speed=speed)

        yield watch


def print_statuses(lake: str, token: str | None, *, as_json: bool = False, err: bool = False) -> None:
    """How far each query of a lake is, now."""
    from polywire.pipeline.notes import Notes  # noqa: PLC0415 - needs Arrow
    from polywire.pipeline.status import lag_now, read_statuses  # noqa: PLC0415 - as above

    found = [(status, lag_now(status, token)) for status in read_statuses(Notes(lake))]
    if as_json:
        for status, lag in found:
            typer.echo(json.dumps({**asdict(status), "lag": None if lag is None else asdict(lag)}))
        return
    if not found:
        typer.echo(f"{lake}: no query ever ran here; 'polywire pipeline run' starts some", err=True)
        return
    table = Table("query", "state", "tables", "step", "rows/s", "last step", "behind", box=None, pad_edge=False)
    for status, lag in found:
        behind = "?" if lag is None else f"{lag.rows:,} rows, {lag.seconds:.1f} s" if lag.rows else "0 rows"
        speed = f"{status.rows_per_second:,.0f}"
        ago = f"{status.batch_seconds:.1f} s long, {_ago(status.updated)}"
        table.add_row(status.query, status.state, ", ".join(status.tables), str(status.batch), speed, ago, behind)
    Console(stderr=err, highlight=False, markup=False, width=None if sys.stdout.isatty() else 160).print(table)


def write_rows(columns: list[str], rows: list[tuple[Any, ...]], form: Format) -> None:
    """The rows of an answer, on standard output."""
    if form is Format.json:
        for row in rows:
            typer.echo(json.dumps(dict(zip(columns, map(_plain, row), strict=True)), ensure_ascii=False))
    elif form is Format.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(value) for value in row] for row in rows)
    else:
        table = Table(*columns)
        for row in rows:
            table.add_row(*(_short(_text(value)) for value in row))
        Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200).print(table)
        typer.echo(f"{len(rows)} rows" if len(rows) != 1 else "1 row")


def _plain(value: Any) -> Any:
    """A value as JSON has it; octets that are no text in hexadecimal."""
    if isinstance(value, (bytes, bytearray)):
        return _text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "0x" + bytes(value).hex()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    line = text.replace("\n", "⏎")
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"


def _ago(updated: str) -> str:
    then = datetime.fromisoformat(updated)
    return f"{max((datetime.now(then.tzinfo) - then).total_seconds(), 0):.0f} s ago"
