"""The journal's columns as Spark knows them, and record batches in exactly that form."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from polywire.journal.schema import PLAIN_SCHEMA

BATCH_ROWS: Final = 16_384
BATCH_OCTETS: Final = 32 << 20
"""A batch for Spark: small ones cost a message between two processes each, large ones are held in memory twice."""

_TYPES: Final[dict[Any, DataType]] = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.utf8(): StringType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    pa.list_(pa.binary()): ArrayType(BinaryType()),
}


def spark_schema(columns: Iterable[str]) -> StructType:
    """These columns of the journal, as a schema of Spark."""
    return StructType([StructField(name, _TYPES[PLAIN_SCHEMA.field(name).type]) for name in columns])


def arrow_schema(columns: Iterable[str]) -> Any:
    """The same as a schema of Arrow. Spark compares it with its own to the letter: all columns may be null there."""
    fields = []
    for name in columns:
        kind = PLAIN_SCHEMA.field(name).type
        # The items of a list are called differently by the two.
        fields.append(pa.field(name, pa.list_(pa.field("element", pa.binary())) if pa.types.is_list(kind) else kind))
    return pa.schema(fields)


def for_spark(batches: Iterable[Any], columns: tuple[str, ...]) -> Iterator[Any]:
    """Batches with these columns, as Spark takes them: neighbours put together until they are worth sending."""
    schema = arrow_schema(columns)
    held: list[Any] = []
    rows = octets = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(_fitted(batch, schema))
        rows += batch.num_rows
        octets += held[-1].get_total_buffer_size()
        if rows >= BATCH_ROWS or octets >= BATCH_OCTETS:
            yield _joined(held)
            held, rows, octets = [], 0, 0
    if held:
        yield _joined(held)


def _fitted(batch: Any, schema: Any) -> Any:
    arrays = []
    for field in schema:
        column = batch.column(field.name)
        arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
