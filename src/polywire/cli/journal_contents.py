"""What the commands of ``polywire journal`` find in a journal, and how they print it.

``cat`` and ``tail`` print rows: lines for people, JSON lines, or an Arrow stream for programs. ``ls``, ``stats``,
``verify`` and ``compact`` are about the journal as a whole.
"""

import base64
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import typer

from polywire import journal
from polywire.cli.options import Form, OnCorrupt, Selection, fail
from polywire.cli.output import progress
from polywire.journal.compaction import compact, compactable
from polywire.journal.errors import CorruptBatch, NoJournal
from polywire.journal.format import PLAIN_SCHEMA, values
from polywire.journal.housekeeping import clear_leftovers, housekeeping_lock
from polywire.journal.reader import Journal, Segment, open_journal
from polywire.journal.readers import NamedReaders
from polywire.journal.verify import Verified, verify_storage

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


HEADINGS = ("segment", "offsets", "rows", "bytes", "from", "to", "state")


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
    console.print(f"{len(segments)} segments, {sum(segment.rows for segment in segments)} rows, {total} bytes")
    for reader in readers:
        console.print(f"reader {reader.name} needs rows from offset {reader.offset} on{_problem(reader.problem)}")


def is_terminal() -> bool:
    """Whether the output is a terminal."""
    return sys.stdout.isatty()


def segment_json(segment: Segment) -> dict[str, Any]:
    """A segment for programs."""
    first, last = segment.min_time, segment.max_time
    times = {"min_time": None if first is None else iso(first), "max_time": None if last is None else iso(last)}
    return asdict(segment) | times


def _row(segment: Segment) -> tuple[str, ...]:
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


COLUMNS: Final = ["offset", "ts", "kind", "protocol", "channel", "size"]
MESSAGES: Final = ("publish", "enqueue")


@dataclass(slots=True)
class Statistics:
    """Counted so far; ``octets`` are those of bodies and attachments."""

    rows: int = 0
    octets: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_time: datetime | None = None
    last_time: datetime | None = None
    kinds: Counter[str] = field(default_factory=Counter)
    protocols: Counter[str] = field(default_factory=Counter)
    channels: Counter[str] = field(default_factory=Counter)
    channel_octets: Counter[str] = field(default_factory=Counter)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch with ``COLUMNS``."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self.octets += pc.sum(batch.column("size").cast(pa.int64())).as_py()
        offsets, times = pc.min_max(batch.column("offset")), pc.min_max(batch.column("ts"))
        first_time, last_time = times["min"].as_py(), times["max"].as_py()
        self.first_offset = offsets["min"].as_py() if self.first_offset is None else self.first_offset
        self.last_offset = offsets["max"].as_py()
        self.first_time = first_time if self.first_time is None else min(self.first_time, first_time)
        self.last_time = last_time if self.last_time is None else max(self.last_time, last_time)
        for name, counter in (("kind", self.kinds), ("protocol", self.protocols)):
            counts = pc.value_counts(batch.column(name))
            for value, count in zip(values(counts.field(0)), values(counts.field(1)), strict=True):
                counter[value or "-"] += count
        messages = batch.filter(pc.is_in(batch.column("kind"), value_set=pa.array(MESSAGES)))
        if messages.num_rows:
            table = (
                pa.Table.from_batches([messages]).group_by("channel").aggregate([("size", "sum"), ("size", "count")])
            )
            for row in table.to_pylist():
                self.channels[row["channel"]] += row["size_count"]
                self.channel_octets[row["channel"]] += row["size_sum"]

    def as_json(self, top: int) -> dict[str, Any]:
        """The statistics for JSON."""
        return {
            "rows": self.rows,
            "octets": self.octets,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "first_time": None if self.first_time is None else iso(self.first_time),
            "last_time": None if self.last_time is None else iso(self.last_time),
            "kinds": dict(self.kinds.most_common()),
            "protocols": dict(self.protocols.most_common()),
            "channels": len(self.channels),
            "top_channels": [
                {"channel": name, "messages": count, "octets": self.channel_octets[name]}
                for name, count in self.channels.most_common(top)
            ],
        }

    def lines(self, top: int) -> Iterator[str]:
        """The statistics as text."""
        yield f"rows      {self.rows}"
        yield f"bytes     {self.octets}"
        if self.first_time is None or self.last_time is None:
            return
        seconds = (self.last_time - self.first_time).total_seconds()
        rate = f", {self.rows / seconds:.1f} rows a second" if seconds > 0 else ""
        yield f"offsets   {self.first_offset} to {self.last_offset}"
        yield f"times     {iso(self.first_time)} to {iso(self.last_time)}{rate}"
        for title, counter in (("kind", self.kinds), ("protocol", self.protocols)):
            yield ""
            yield f"{title:<12}  {'rows':>12}"
            for name, count in counter.most_common():
                yield f"{name:<12}  {count:>12}"
        yield ""
        yield f"{'messages':>12}  {'bytes':>14}  channel (the busiest of {len(self.channels)})"
        for name, count in self.channels.most_common(top):
            yield f"{count:>12}  {self.channel_octets[name]:>14}  {name}"


def print_statistics(place: str, token: str | None, selection: Selection, top: int, *, as_json: bool) -> None:
    """Count what is selected, with a bar, and print it with so many of the busiest channels."""
    found = open_place(place, token)
    counted = Statistics()
    begin = found.first_offset
    with progress("counting", found.end_offset - begin) as advance:
        for batch in scan(found, selection, columns=COLUMNS, on_corrupt="skip"):
            counted.add(batch)
            advance((counted.last_offset or begin) - begin, f"{counted.rows} rows")
    typer.echo(json.dumps(counted.as_json(top)) if as_json else "\n".join(counted.lines(top)))


def print_verification(place: str, token: str | None, *, as_json: bool) -> bool:
    """Print what was found, as JSON a line for each segment. Returns whether no row is damaged or lost."""
    storage = open_place(place, token).storage
    checked: list[Verified] = []
    octets = 0
    with progress("verifying", sum(storage.sizes().values())) as advance:
        for segment in verify_storage(storage):
            checked.append(segment)
            octets += segment.octets
            advance(octets, segment.name)
            if as_json:
                typer.echo(json.dumps({**asdict(segment), "sound": segment.sound, "lost_rows": segment.lost_rows}))
            else:
                for finding in segment.findings:
                    typer.echo(f"{segment.name}: {finding}")
    damaged = sum(not segment.sound for segment in checked)
    if not as_json:
        rows = sum(segment.rows for segment in checked)
        lost = sum(segment.lost_rows for segment in checked)
        words = f"{damaged} of them damaged, {lost} rows lost" if damaged else "no damage, nothing missing"
        typer.echo(f"{place}: {rows} rows in {len(checked)} segments, {words}")
    return not damaged


MIB = 1 << 20


def compact_folder(folder: Path) -> bool:
    """Compact what can be. Returns whether all of it could."""
    if not folder.is_dir():
        raise FileNotFoundError(2, "there is no such folder", str(folder))
    if not open_journal(folder).exists:
        raise NoJournal(str(folder))
    whole = True
    with housekeeping_lock(folder):
        clear_leftovers(folder)
        paths = compactable(folder)
        if not paths:
            typer.echo(f"{folder}: nothing to compact; the newest segment is left as it is")
        for number, path in enumerate(paths, 1):
            try:
                with progress(f"{path.name} ({number} of {len(paths)})", None) as advance:
                    done = compact(path, told=lambda rows: advance(rows, f"{rows} rows"))
            except CorruptBatch as error:
                typer.echo(f"polywire journal: {error}; this segment stays as it is", err=True)
                whole = False
                continue
            typer.echo(
                f"{path.name}: {done.rows} rows, {done.octets_before / MIB:.1f} MiB became {done.octets / MIB:.1f}, "
                f"{done.rows / max(done.seconds, 1e-9):.0f} rows a second"
            )
    return whole
