"""What is done with a micro-batch: the rows of each table made of it and written to the lake.

A streaming query runs either all tables that need no state, or one that does; tables that are made of another one's
rows are written with that one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark import StorageLevel, inheritable_thread_target
from pyspark.sql import DataFrame

from polywire.pipeline.lake import Lake
from polywire.pipeline.table import Table


def batch_writer(
    lake: Lake, tables: Sequence[Table], query: str, followers: Sequence[Table] = ()
) -> Callable[[DataFrame, int], None]:
    """For ``foreachBatch``: write these tables of the journal's rows.

    With one stateful table the batch is its rows already. ``followers`` are tables made after one of the others. The
    first table is written before the others, which then are written side by side: writing a few rows is mostly waiting.
    """

    def write(batch: DataFrame, batch_id: int) -> None:
        several = len(tables) + len(followers) > 1
        if several:
            batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            write_table(tables[0], batch, batch_id)
            with ThreadPoolExecutor(max(len(tables) - 1, 1)) as pool:
                # So that they belong to the query, and end with it.
                target = inheritable_thread_target(batch.sparkSession)(write_table)
                for done in [pool.submit(target, table, batch, batch_id) for table in tables[1:]]:
                    done.result()
        finally:
            if several:
                batch.unpersist()

    def write_table(table: Table, batch: DataFrame, batch_id: int) -> None:
        rows = batch if table.stateful else table.rows(batch)
        lake.write_batch(table.name, rows, batch_id, query)
        for follower in followers:
            if follower.after == table.name:
                lake.write_batch(follower.name, follower.rows(rows), batch_id, query)

    return write
