"""Reads one partition in a task: the columns and rows that the options and Spark's filters ask for."""

from collections.abc import Iterator
from typing import Any

from polywire.pipeline.filters import Pushed
from polywire.pipeline.options import SourceOptions
from polywire.pipeline.planning import JournalPartition


def read_partition(
    partition: JournalPartition, options: SourceOptions, columns: tuple[str, ...], pushed: Pushed | None
) -> Iterator[Any]:
    """The rows of a partition, as record batches of the journal."""
    batches = partition.split.read(
        columns,
        channels=options.channels or None,
        kinds=options.kinds or None,
        protocols=options.protocols or None,
        from_time=None if pushed is None else pushed.from_time,
        to_time=None if pushed is None else pushed.to_time,
        on_corrupt=options.on_corrupt,
    )
    if pushed is None or pushed.expression is None:
        return batches
    return (batch.filter(pushed.expression) for batch in batches)
