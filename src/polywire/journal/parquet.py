"""Segments that were compacted: the same rows as Parquet."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from polywire.journal.schema import SCHEMA

OFFSET_COLUMN = SCHEMA.names.index("offset")
TS_COLUMN = SCHEMA.names.index("ts")


def parquet_end_offset(path: Path) -> int:
    """The offset behind the last row of a compacted segment; 0 where it has none."""
    with pq.ParquetFile(path) as file:
        return end_offset_of(file.metadata)


def end_offset_of(metadata: Any) -> int:
    """The same, from what stands in the file's foot."""
    if not metadata.num_row_groups:
        return 0
    last = metadata.row_group(metadata.num_row_groups - 1).column(OFFSET_COLUMN)
    return int(last.statistics.max) + 1
