"""What ``polywire journal ls``, ``stats``, ``verify`` and ``compact`` do: commands about a whole journal."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import typer

from polywire.cli.journal_options import Selection
from polywire.cli.journal_rows import iso, open_place, scan
from polywire.cli.output import progress
from polywire.journal.compaction import compact, compactable
from polywire.journal.errors import CorruptBatch, NoJournal
from polywire.journal.format import values
from polywire.journal.housekeeping import clear_leftovers, housekeeping_lock
from polywire.journal.reader import Segment, open_journal
from polywire.journal.readers import NamedReaders
from polywire.journal.verify import Verified, verify_storage

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
