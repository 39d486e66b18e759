"""The table ``traffic``: per minute, protocol and channel how many messages, how many bytes, how many publishers.

Its parts have one row more per publisher, so that publishers can be distinguished across micro-batches.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.format import Array
from polywire.pipeline.columns import LIGHT_COLUMNS, Coded, Groups, Rows, coded, fitted, merged
from polywire.pipeline.table import Kernel, Table, arrow_of, of_parts, parts_of, schema

SCHEMA: Final = schema(
    "day date, protocol string, minute timestamp, channel string, messages bigint, bytes bigint, publishers bigint"
)
ARROW: Final = arrow_of(SCHEMA)

PART_SCHEMA: Final = schema(
    "day date, minute timestamp, protocol string, channel string, publisher string, messages bigint, bytes bigint"
)
PART: Final = arrow_of(PART_SCHEMA)

KEYS: Final = ("day", "minute", "protocol", "channel")


def part(rows: Rows) -> pa.RecordBatch:
    """What each publisher sent to each channel in each minute."""
    rows = rows.chosen(rows.messages)
    keys = (rows.minutes, coded(rows.protocols), rows.coded("channel"), _publishers(rows))
    found = Groups(*keys).aggregated(bytes=(rows["size"].to_numpy(), "sum"))
    names = ("minute", "protocol", "channel", "publisher", "messages", "bytes")
    columns = dict(zip(names, found, strict=True))
    return fitted(PART, {**columns, "day": columns["minute"].cast(pa.date32())})


def _publishers(rows: Rows) -> Coded:
    """The clients; those without a name by their connections."""
    if not rows["client"].null_count:
        return rows.coded("client")
    join: Any = pc.binary_join_element_wise  # the stubs don't know that columns and scalars go together
    nameless: Array = join(rows["node"].cast(pa.utf8()), rows["connection"].cast(pa.utf8()), "#")
    return coded(pc.coalesce(rows["client"], nameless))


def merge(parts: pa.Table) -> pa.Table:
    """One row for each publisher, channel and minute."""
    return merged(parts, (*KEYS, "publisher"), {"messages": "sum", "bytes": "sum"}).cast(PART)


def finish(parts: pa.Table) -> pa.Table:
    """The table itself: publishers are counted."""
    one = pa.array(np.ones(parts.num_rows, np.int64))
    counted = parts.set_column(parts.schema.get_field_index("publisher"), "publishers", one)
    how = {"messages": "sum", "bytes": "sum", "publishers": "sum"}
    return merged(counted, KEYS, how).select(SCHEMA.names).cast(ARROW)


KERNEL: Final = Kernel(part, PART_SCHEMA, LIGHT_COLUMNS, merge, finish)
PARTS: Final = parts_of(KERNEL, SCHEMA, daily=True)

TABLE: Final = Table(
    "traffic",
    of_parts(PARTS),
    "per minute, protocol and channel: messages, bytes, distinct publishers",
    schema=SCHEMA,
    partition_by=("day", "protocol"),
    columns=LIGHT_COLUMNS,
    watermark="none: a row counts whenever it comes",
    parts=PARTS,
    keys=KEYS,
    kernel=KERNEL,
)
