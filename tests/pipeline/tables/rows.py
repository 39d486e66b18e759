"""Rows as the source gives them, written down in tests or made at random, and tables as lists of rows."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from polywire.journal.format import PLAIN_SCHEMA
from polywire.pipeline.source import spark_schema

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

Row = Mapping[str, Any]


def row(kind: str, at: float, **more: Any) -> dict[str, Any]:
    """A row of a kind, so many seconds after the start; what is not given is something plain."""
    plain: dict[str, Any] = {
        "ts": START + timedelta(microseconds=round(at * 1_000_000)),
        "node": "n1",
        "kind": kind,
        "protocol": "mqtt",
        "connection": 1,
        "body": b"",
        "flags": 0,
    }
    plain |= more
    plain.setdefault("size", len(plain["body"]))
    return plain


def numbered(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows with their offsets: per node, in the order given."""
    next_offset: dict[str, int] = {}
    found = []
    for one in rows:
        offset = next_offset.get(one["node"], 0)
        next_offset[one["node"]] = offset + 1
        found.append({"offset": offset, **one})
    return found


def arrow(rows: Sequence[Row]) -> Any:
    """Numbered rows as an Arrow table."""
    columns = [pa.array([one.get(field.name) for one in rows], field.type) for field in PLAIN_SCHEMA]
    return pa.Table.from_arrays(columns, schema=PLAIN_SCHEMA)


def frame(spark: SparkSession, folder: Path, rows: Sequence[Row]) -> DataFrame:
    """Numbered rows as a DataFrame."""
    return batched(spark, folder, [rows])


def batched(spark: SparkSession, folder: Path, batches: Sequence[Sequence[Row]], *, stream: bool = False) -> DataFrame:
    """Numbered rows as a DataFrame, or as a stream with so many micro-batches."""
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(batches):
        path = folder / f"{number:05d}.parquet"
        pq.write_table(arrow(rows), path)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    schema = spark_schema(PLAIN_SCHEMA.names)
    if stream:
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return spark.read.schema(schema).parquet(str(folder))


def collected(table: DataFrame, *columns: str) -> list[dict[str, Any]]:
    """The rows of a table, in an order that is always the same. With columns: those only."""
    found = table.select(*columns) if columns else table
    taken = found.toArrow().to_pylist()
    return sorted((_plain(one) for one in taken), key=repr)


def ordered(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table made otherwise, in the same order."""
    return sorted((_plain(one) for one in rows), key=repr)


def _plain(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(one[name]) for name in sorted(one)}


def _value(value: Any) -> Any:
    """Times in UTC; numbers with the digits that count; a map, which Arrow gives as pairs, as such."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list) and value and all(isinstance(pair, tuple) for pair in value):
        return dict(value)
    return value
