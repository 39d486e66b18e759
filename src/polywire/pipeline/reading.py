"""Reads one partition in a task: from where it was planned, or from where its rows are by now."""

from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from polywire.pipeline.filters import Pushed
from polywire.pipeline.journals import open_journal
from polywire.pipeline.options import SourceOptions
from polywire.pipeline.planning import JournalPartition


def read_partition(
    partition: JournalPartition, options: SourceOptions, columns: tuple[str, ...], pushed: Pushed | None
) -> Iterator[Any]:
    """The rows of a partition that the options and filters ask for."""
    # A filter of Spark's can only be about a column it sees; ours may need one more, to be dropped again.
    needed = tuple(dict.fromkeys((*columns, "offset")))
    chosen: dict[str, Any] = {
        "columns": needed,
        "channels": options.channels or None,
        "kinds": options.kinds or None,
        "protocols": options.protocols or None,
        "on_corrupt": options.on_corrupt,
    }
    if pushed is not None:
        chosen["from_time"], chosen["to_time"] = pushed.from_time, pushed.to_time
    reached = partition.from_offset
    try:
        for batch in partition.split.read(**chosen):
            if batch.num_rows:
                yield _filtered(batch, columns, pushed)
                reached = pc.max(batch.column("offset")).as_py() + 1
    except FileNotFoundError:
        # Compacted meanwhile: the same rows are in another file.
        opened = open_journal(partition.location, options.token)
        for batch in opened.scan(from_offset=reached, to_offset=partition.to_offset, **chosen):
            if batch.num_rows:
                yield _filtered(batch, columns, pushed)


def _filtered(batch: Any, columns: tuple[str, ...], pushed: Pushed | None) -> Any:
    kept = batch if pushed is None or pushed.expression is None else batch.filter(pushed.expression)
    return kept.select(list(columns))
