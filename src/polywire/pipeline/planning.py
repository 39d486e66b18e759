"""Cuts what is to be read into partitions: one task of Spark each, planned from the index without reading rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from polywire.journal.reader import Journal, Split
from polywire.pipeline.errors import DataLossError
from polywire.pipeline.offsets import Place

LEAST_ROWS: Final = 100_000
"""A task costs some milliseconds, and some more for each file it writes: fewer rows are not worth one of their own."""

TASKS: Final = 8
"""How many tasks a step is cut into where it has rows enough: a few for each core of a small machine."""


@dataclass
class JournalPartition(InputPartition):
    """Rows of one segment of a journal."""

    split: Split


@dataclass(frozen=True, slots=True)
class Range:
    """A stretch of one journal."""

    journal: Journal
    from_offset: int
    to_offset: int


def ranges(journals: dict[str, Journal], start: Place, end: Place, *, fail_on_data_loss: bool) -> Iterator[Range]:
    """What lies between two places, journal by journal."""
    for name, opened in journals.items():
        if name not in end:
            continue
        begin, stop = start.get(name, opened.first_offset), end[name]
        first, safe = opened.first_offset, opened.end_offset
        if begin < min(first, stop) or (begin < stop and stop > safe):
            if fail_on_data_loss:
                raise DataLossError(name, begin if begin < first else safe, first if begin < first else stop)
            begin, stop = max(begin, first), min(stop, safe)
        if begin < stop:
            yield Range(opened, begin, stop)


def plan(found: list[Range], rows_per_partition: int) -> list[JournalPartition]:
    """The partitions of all ranges, in order."""
    total = sum(part.to_offset - part.from_offset for part in found)
    rows = min(rows_per_partition, max(LEAST_ROWS, -(-total // TASKS)))
    partitions = []
    for part in found:
        for split in part.journal.splits(part.from_offset, part.to_offset, rows):
            partitions.append(JournalPartition(split))
    return partitions
