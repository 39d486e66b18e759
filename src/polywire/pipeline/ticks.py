"""Ticks: rows that say how late it is, so that a stateful query notices what did not happen when all is quiet.

A tick is part of a stream's place, so a step that is run again has the same one. It comes only when every journal has
been read to its end, and bears a time at which that end was not yet looked up: what is older has been read.

Where a query wants some kinds of rows only, each task ends with a tick too: of the latest row it has read, of any kind.
So a query needs no other rows just to know the time.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from polywire.journal.reader import Journal
from polywire.journal.schema import PLAIN_SCHEMA
from polywire.pipeline.offsets import TICK, Place, placed
from polywire.pipeline.options import COLUMNS, SourceOptions
from polywire.pipeline.planning import JournalPartition
from polywire.pipeline.reading import read_partition

KIND: Final = "tick"


@dataclass
class TickPartition(InputPartition):
    """A tick: its time in microseconds, and for each node where its journal ended."""

    time: int
    nodes: dict[str, int]


def now() -> int:
    """The time in microseconds, as ticks have it."""
    return time.time_ns() // 1000


class Clock:
    """When a stream gets its next tick: after ``interval`` seconds without rows; never where that is None."""

    def __init__(self, interval: float | None) -> None:
        self._interval = interval
        self._moved = 0
        self._last: int | None = None

    def finish_at(self, moment: int) -> None:
        """The stream ends once it has read what is there now: then it gets one tick, of this time."""
        self._last = moment

    def next_tick(self, start: Place, end: Place, moment: int) -> Place:
        """The place ``end``, with a tick where one is due; ``moment`` is before the ends were looked up."""
        if self._interval is None:
            return end
        if end != start:
            self._moved = moment
            return end
        told = start.get(TICK, 0)
        if self._last is not None:
            return placed({**end, TICK: self._last}) if told < self._last else end
        due = max(told, self._moved) + int(self._interval * 1_000_000)
        return placed({**end, TICK: moment}) if moment >= due else end


def tick_between(start: Place, end: Place, journals: dict[str, Journal]) -> list[TickPartition]:
    """The tick of a step, if it has one."""
    if TICK not in end or end[TICK] == start.get(TICK):
        return []
    nodes: dict[str, int] = {}
    for name, opened in journals.items():
        behind = end.get(name, 0)
        if behind == 0:
            continue  # nothing was ever written there
        for batch in opened.scan(["node"], from_offset=behind - 1, to_offset=behind, on_corrupt="skip"):
            nodes[batch.column("node")[0].as_py()] = behind
    return [TickPartition(end[TICK], nodes)]


def tick_rows(partition: TickPartition) -> Any:
    """The rows of a tick, with all columns."""
    return _rows({node: (offset, partition.time) for node, offset in partition.nodes.items()})


def read_with_ticks(partition: JournalPartition, options: SourceOptions, columns: tuple[str, ...]) -> Iterator[Any]:
    """The rows of a partition that are of the kinds wanted, and a tick for each node there are rows of, of any kind."""
    needed = tuple(name for name in COLUMNS if name in {*columns, "offset", "ts", "node", "kind"})
    wanted = pa.array(options.kinds, pa.utf8())
    latest: dict[str, tuple[int, int]] = {}
    for batch in read_partition(partition, replace(options, kinds=()), needed, None):
        ends = pa.Table.from_batches([batch]).group_by("node").aggregate([("offset", "max"), ("ts", "max")])
        columns_of_ends = (ends[name].cast(kind).to_pylist() for name, kind in _ENDS)
        for node, offset, moment in zip(*columns_of_ends, strict=True):
            before = latest.get(node, (0, moment))
            latest[node] = max(before[0], offset + 1), max(before[1], moment)
        yield batch.filter(pc.is_in(batch.column("kind"), wanted))
    yield _rows(latest)


_ENDS: Final = (("node", pa.utf8()), ("offset_max", pa.int64()), ("ts_max", pa.int64()))


def _rows(ticks: Mapping[str, tuple[int, int]]) -> Any:
    """Of each node a tick: where its journal ended, and the time."""
    rows = [
        {"offset": offset, "ts": moment, "node": node, "kind": KIND, "connection": 0}
        | {"body": b"", "size": 0, "flags": 0}
        for node, (offset, moment) in sorted(ticks.items())
    ]
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in PLAIN_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=PLAIN_SCHEMA)
