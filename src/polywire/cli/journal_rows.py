"""The rows of a journal that a selection means, and how ``polywire journal cat`` and ``tail`` print them.

They are lines for people, JSON lines, or an Arrow stream for programs.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pyarrow as pa
import typer

from polywire import journal
from polywire.cli.journal_options import Form, OnCorrupt, Selection
from polywire.cli.options import fail
from polywire.journal.errors import NoJournal
from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.reader import Journal

BACKWARDS = 1024
"""How many rows from the end are looked at first for the last few that match; then ever more."""


def open_place(place: str, token: str | None = None) -> Journal:
    """The journal at a path, a URI or a hub's address; ``NoJournal`` if there is none."""
    found = journal.open(place, token=token)
    if not found.exists:
        raise NoJournal(place)
    return found


def scan(found: Journal, selection: Selection, **more: Any) -> Iterator[pa.RecordBatch]:
    """The batches of the rows that are wanted."""
    return found.scan(**arguments(selection), **more)


def arguments(selection: Selection) -> dict[str, Any]:
    """What ``Journal.scan`` is to be called with for a selection."""
    found: dict[str, Any] = {}
    for name, place in (("from", selection.since), ("to", selection.until)):
        if place is not None:
            found[f"{name}_time" if isinstance(place, datetime) else f"{name}_offset"] = place
    for name in ("channels", "kinds", "protocols"):
        wanted = getattr(selection, name)
        if wanted:
            found[name] = list(wanted)
    return found


def limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to so many rows."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def last_rows(found: Journal, selection: Selection, count: int, **more: Any) -> list[pa.RecordBatch]:
    """The last ``count`` rows that match, as batches, found from the end without reading all of the journal."""
    wanted = arguments(selection)
    first = max(found.first_offset, wanted.pop("from_offset", 0))
    end = min(found.end_offset, wanted.pop("to_offset", found.end_offset))
    step = max(BACKWARDS, count)
    kept: list[pa.RecordBatch] = []
    rows = 0
    while end > first and rows < count:
        begin = max(first, end - step)
        batches = list(found.scan(**wanted, from_offset=begin, to_offset=end, **more))
        kept = batches + kept
        rows += sum(batch.num_rows for batch in batches)
        end, step = begin, step * 2
    surplus = rows - count
    while surplus > 0 and kept:
        if kept[0].num_rows <= surplus:
            surplus -= kept.pop(0).num_rows
        else:
            kept[0] = kept[0].slice(surplus)
            surplus = 0
    return [batch for batch in kept if batch.num_rows]


HUMAN_COLUMNS: Final = (
    "offset",
    "ts",
    "kind",
    "protocol",
    "client",
    "channel",
    "correlation",
    "headers",
    "body",
    "size",
)
"""What a line for people is made of."""

BODY_SHOWN: Final = 200
_KIND_WIDTH: Final = 11
_COLOURS: Final = {
    "publish": "green",
    "enqueue": "green",
    "request": "cyan",
    "reply": "cyan",
    "error": "red",
    "discard": "red",
    "gap": "red",
}


class RowWriter(Protocol):
    """Where batches of rows go."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""

    def close(self) -> None:
        """End the output."""


def make_writer(form: str, columns: list[str] | None) -> RowWriter:
    """A writer to standard output, for a ``Form``. ``columns`` are those wanted, None for all."""
    if form == "arrow":
        return ArrowRows(columns)
    line = json_line if form == "json" else _human_line(colours=sys.stdout.isatty())
    return TextRows(line)


class TextRows:
    """A line for each row."""

    def __init__(self, line: Callable[[dict[str, Any]], str]) -> None:
        self._line = line

    def write(self, batch: pa.RecordBatch) -> None:
        """All lines of a batch at once: who follows the journal sees them as they come."""
        sys.stdout.write("".join([self._line(row) + "\n" for row in rows_of(batch)]))
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing to do: every line is written at once."""


class ArrowRows:
    """An Arrow IPC stream. It is one even where no row is found."""

    def __init__(self, columns: list[str] | None) -> None:
        fields = [PLAIN_SCHEMA.field(name) for name in columns or PLAIN_SCHEMA.names]
        self._schema = pa.schema(fields).with_metadata(PLAIN_SCHEMA.metadata)
        self._stream = sys.stdout.buffer
        sink = pa.PythonFile(self._stream, mode="w")  # type: ignore[arg-type] # any file will do
        self._writer = pa.ipc.new_stream(sink, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """One batch as one batch."""
        self._writer.write_batch(batch.select(self._schema.names))
        self._stream.flush()

    def close(self) -> None:
        """Write the end-of-stream marker."""
        self._writer.close()
        self._stream.flush()


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch as dictionaries, a part of them at a time: bodies may be large."""
    for start in range(0, batch.num_rows, 1024):
        yield from batch.slice(start, 1024).to_pylist()


def json_line(row: dict[str, Any]) -> str:
    """A row as JSON. What is null is left out; bytes that are no text are in ``body_base64`` instead of ``body``."""
    shown = {name: value for name, value in row.items() if value is not None}
    if "ts" in shown:
        shown["ts"] = iso(shown["ts"])
    if "headers" in shown:
        shown["headers"] = json.loads(shown["headers"])
    if "attachments" in shown:
        shown["attachments"] = [
            None if each is None else base64.b64encode(each).decode() for each in shown["attachments"]
        ]
    if "body" in shown:
        octets = shown.pop("body")
        try:
            shown["body"] = octets.decode()
        except UnicodeDecodeError:
            shown["body_base64"] = base64.b64encode(octets).decode()
    return json.dumps(shown, ensure_ascii=False)


def iso(time: datetime) -> str:
    """A time in UTC, to the microsecond."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def one_line(octets: bytes, most: int = BODY_SHOWN) -> str:
    """A body as a person wants to see it: on one line, not too long, and nothing a terminal would obey."""
    text = octets[: most * 4].decode(errors="replace")
    cut = len(text) > most or len(octets) > most * 4
    shown = "".join([char if char.isprintable() else _escaped(char) for char in text[:most]])
    return shown + ("…" if cut else "")


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _human_line(*, colours: bool) -> Callable[[dict[str, Any]], str]:
    def style(text: str, **how: Any) -> str:
        return typer.style(text, **how) if colours else text

    def line(row: dict[str, Any]) -> str:
        kind = row["kind"]
        parts = [
            style(f"{row['offset']:>10}  {iso(row['ts'])}", dim=True),
            style(f"{kind:<{_KIND_WIDTH}}", fg=_COLOURS.get(kind)),
            f"{row['protocol'] or '-':<8}",
        ]
        if row["channel"] is not None:
            parts.append(style(one_line(row["channel"].encode()), bold=True))
        if row["client"]:
            parts.append(style(f"from {one_line(row['client'].encode(), 60)}", dim=True))
        if row["correlation"]:
            parts.append(style(f"#{one_line(row['correlation'].encode(), 60)}", dim=True))
        if row["headers"]:
            parts.append(one_line(row["headers"].encode()))
        if row["body"]:
            parts.append(one_line(row["body"]))
        return "  ".join(parts)

    return line


class RowPrinter:
    """Prints the rows of a selection. Options that don't go together end the command."""

    def __init__(self, selection: Selection, form: Form, columns: str | None, on_corrupt: OnCorrupt) -> None:
        self._selection = selection
        wanted = _columns(columns, form)
        reaction = "raise" if on_corrupt is OnCorrupt.fail else on_corrupt.value
        self._how: dict[str, Any] = {"columns": wanted, "on_corrupt": reaction}
        self._form = form

    def print_rows(self, place: str, token: str | None, limit: int | None) -> None:
        """The rows of a journal from the oldest on, as many as the limit allows."""
        found = open_place(place, token)
        writer = self._writer()
        for batch in limited(scan(found, self._selection, **self._how), limit):
            writer.write(batch)
        writer.close()

    def print_last(self, place: str, token: str | None, lines: int, *, follow: bool) -> None:
        """The last rows, and then those that come, if they are to be followed."""
        found = open_place(place, token)
        end = found.end_offset
        writer = self._writer()
        for batch in last_rows(found, self._selection, lines, **self._how):
            writer.write(batch)
        if follow:
            for batch in found.follow(from_offset=end, **arguments(self._selection), **self._how):
                writer.write(batch)
        writer.close()

    def _writer(self) -> RowWriter:
        return make_writer(self._form.value, self._how["columns"])


def _columns(text: str | None, form: Form) -> list[str] | None:
    if form is Form.human:
        if text is not None:
            fail("journal", "--columns: lines for people have their own columns; use --format json or arrow", code=2)
        return list(HUMAN_COLUMNS)
    if form is Form.arrow and sys.stdout.isatty():
        fail("journal", "--format arrow: standard output is a terminal; send it into a file or another program", code=2)
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PLAIN_SCHEMA.names:
            fail("journal", f"--columns: {name!r} is none of {', '.join(PLAIN_SCHEMA.names)}", code=2)
    return names
