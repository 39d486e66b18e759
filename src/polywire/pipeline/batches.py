"""What is done with a micro-batch: the rows of each table made of it and written to the lake.

A streaming query runs either all tables that need no state, or one that does; tables that are made of another one's
rows are written with that one.
"""

from collections.abc import Callable, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from polywire.pipeline.lake import Lake
from polywire.pipeline.table import Table


def batch_writer(
    lake: Lake, tables: Sequence[Table], query: str, followers: Sequence[Table] = ()
) -> Callable[[DataFrame, int], None]:
    """For ``foreachBatch``: write these tables of the journal's rows.

    With one stateful table the batch is its rows already. ``followers`` are tables made after one of the others.
    """

    def write(batch: DataFrame, batch_id: int) -> None:
        several = len(tables) + len(followers) > 1
        if several:
            batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for table in tables:
                rows = batch if table.stateful else table.rows(batch)
                lake.write_batch(table.name, rows, batch_id, query)
                for follower in followers:
                    if follower.after == table.name:
                        lake.write_batch(follower.name, follower.rows(rows), batch_id, query)
        finally:
            if several:
                batch.unpersist()

    return write
