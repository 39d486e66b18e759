"""Rows of the journal on standard output: lines for people, JSON lines and an Arrow stream for programs."""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pyarrow as pa
import typer

from polywire.journal.schema import PLAIN_SCHEMA

FORMATS: Final = ("human", "json", "arrow")
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

    def write(self, batch: Any) -> None:
        """Write the rows of a batch."""

    def close(self) -> None:
        """There are no more."""


def make_writer(form: str, columns: list[str] | None) -> RowWriter:
    """A writer to standard output, of ``FORMATS``. ``columns`` are those wanted, None for all."""
    if form == "arrow":
        return ArrowRows(columns)
    line = json_line if form == "json" else _human_line(colours=sys.stdout.isatty())
    return TextRows(line)


class TextRows:
    """A line for each row."""

    def __init__(self, line: Callable[[dict[str, Any]], str]) -> None:
        self._line = line

    def write(self, batch: Any) -> None:
        """All lines of a batch at once: who follows the journal sees them as they come."""
        sys.stdout.write("".join([self._line(row) + "\n" for row in rows_of(batch)]))
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is held back."""


class ArrowRows:
    """An Arrow IPC stream. It is one even where no row is found."""

    def __init__(self, columns: list[str] | None) -> None:
        fields = [PLAIN_SCHEMA.field(name) for name in columns or PLAIN_SCHEMA.names]
        self._schema = pa.schema(fields, metadata=PLAIN_SCHEMA.metadata)
        self._stream = sys.stdout.buffer
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._stream, mode="w"), self._schema)

    def write(self, batch: Any) -> None:
        """One batch as one batch."""
        self._writer.write_batch(batch.select(self._schema.names))
        self._stream.flush()

    def close(self) -> None:
        """The mark of the end."""
        self._writer.close()
        self._stream.flush()


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """The rows of a batch as dictionaries, a part of them at a time: bodies may be large."""
    for start in range(0, batch.num_rows, 1024):
        yield from batch.slice(start, 1024).to_pylist()


def json_line(row: dict[str, Any]) -> str:
    """A row as JSON. What is null is left out; octets that are no text are in ``body_base64`` instead of ``body``."""
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
