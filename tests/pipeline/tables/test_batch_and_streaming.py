"""Each table is the same of rows at rest, of a stream in any order, and computed without Spark."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from polywire.pipeline.lake import Lake
from polywire.pipeline.runner import batch_writer
from polywire.pipeline.tables import TABLES
from tests.pipeline.tables.made_traffic import made, shuffled
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import batched, collected, frame, ordered

pytestmark = pytest.mark.timeout(900)


def to_the_end(writer: DataStreamWriter) -> None:
    """Run a query until it has read everything; once more where the machine was too busy to start a worker in time."""
    for left in (2, 1, 0):
        try:
            assert writer.start().awaitTermination(400)
        except StreamingQueryException as error:
            if not left or "failed to connect back" not in str(error):
                raise
        else:
            return


def test_every_table_has_the_schema_it_is_documented_with(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame(spark, tmp_path / "rows", made(1, steps=10))
    for table in TABLES.values():
        assert table.schema is not None
        made_fields = [(field.name, field.dataType) for field in table.build(rows).schema]
        assert made_fields == [(field.name, field.dataType) for field in table.schema], table.name


def test_rows_at_rest_give_the_tables_that_plain_python_gives(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(2)
    wanted = tables(rows)
    at_rest = frame(spark, tmp_path / "rows", rows)
    for name, table in TABLES.items():
        assert collected(table.build(at_rest)) == ordered(wanted[name]), name


def test_a_shuffled_and_late_stream_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(3, steps=250)
    lake = Lake(tmp_path / "lake", durable=False)
    batches = shuffled(rows, 3, 3)
    stateless = [table for table in TABLES.values() if not table.stateful and table.after is None]
    stream = batched(spark, tmp_path / "rows", batches, stream=True)
    plain = stream.writeStream.foreachBatch(batch_writer(lake, stateless, "plain"))
    matched = (
        TABLES["calls"]
        .build(stream)
        .writeStream.foreachBatch(batch_writer(lake, [TABLES["calls"]], "calls", [TABLES["latency"]]))
    )
    for name, writer in (("plain", plain), ("calls", matched)):
        to_the_end(writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True))
    wanted = tables(rows)
    for name in TABLES:
        assert collected(lake.read(name, spark)) == ordered(wanted[name]), name
