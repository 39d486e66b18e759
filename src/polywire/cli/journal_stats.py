"""What is in a journal, counted: rows by kind and protocol, and the channels with most of them."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import typer

from polywire.cli.journal_options import Selection
from polywire.cli.progress import progress
from polywire.cli.rows import iso
from polywire.cli.scanning import open_place, scan

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

    def add(self, batch: Any) -> None:
        """Count the rows of a batch with ``COLUMNS``."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self.octets += pc.sum(batch.column("size").cast("int64")).as_py()
        offsets, times = pc.min_max(batch.column("offset")).as_py(), pc.min_max(batch.column("ts")).as_py()
        self.first_offset = offsets["min"] if self.first_offset is None else self.first_offset
        self.last_offset = offsets["max"]
        self.first_time = times["min"] if self.first_time is None else min(self.first_time, times["min"])
        self.last_time = times["max"] if self.last_time is None else max(self.last_time, times["max"])
        for name, counter in (("kind", self.kinds), ("protocol", self.protocols)):
            for pair in pc.value_counts(batch.column(name)).to_pylist():
                counter[pair["values"] or "-"] += pair["counts"]
        messages = batch.filter(pc.is_in(batch.column("kind"), value_set=pa.array(MESSAGES)))
        if messages.num_rows:
            table = (
                pa.Table.from_batches([messages]).group_by("channel").aggregate([("size", "sum"), ("size", "count")])
            )
            for row in table.to_pylist():
                self.channels[row["channel"]] += row["size_count"]
                self.channel_octets[row["channel"]] += row["size_sum"]

    def as_json(self, top: int) -> dict[str, Any]:
        """For programs."""
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
        """For people."""
        yield f"rows      {self.rows}"
        yield f"octets    {self.octets}"
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
        yield f"{'messages':>12}  {'octets':>14}  channel (the busiest of {len(self.channels)})"
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
