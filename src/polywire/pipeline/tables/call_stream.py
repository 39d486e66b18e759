"""Requests matched with what ended them while rows come in: ``matching`` in the words of Spark.

Rows go by node and a hash of the correlation into buckets, and each bucket keeps what is still open as one value of
Spark's state. A bucket's clock are rows of all kinds, so a timeout is found though the answering side went quiet; when
everything did, the source's ticks are the only rows, and do the same. There are no timers: they would go by the
clock of whoever computes, and a journal that is read late, or again after a crash, has to give the same calls.
"""

from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from polywire.pipeline.tables import matching

SLIM: Final = StructType(
    [
        StructField("node", StringType()),
        StructField("bucket", IntegerType()),
        StructField("role", IntegerType()),
        StructField("correlation", StringType()),
        StructField("offset", LongType()),
        StructField("at", LongType()),
        StructField("protocol", StringType()),
        StructField("connection", LongType()),
        StructField("client", StringType()),
        StructField("channel", StringType()),
        StructField("size", IntegerType()),
        StructField("headers", StringType()),
    ]
)
"""Parts of calls, and clocks, as buckets get them."""

PAIRS: Final = StructType(
    [
        StructField("node", StringType()),
        StructField("correlation", StringType()),
        StructField("offset", LongType()),
        StructField("at", LongType()),
        StructField("protocol", StringType()),
        StructField("connection", LongType()),
        StructField("client", StringType()),
        StructField("channel", StringType()),
        StructField("size", IntegerType()),
        StructField("end_role", IntegerType()),
        StructField("end_at", LongType()),
        StructField("end_size", IntegerType()),
        StructField("end_headers", StringType()),
    ]
)
"""A request and its end."""

STATE: Final = StructType([StructField("clock", LongType()), StructField("rows", BinaryType())])


def matched(slim: DataFrame, timeout: int, lateness: int, buckets: int) -> DataFrame:
    """Pairs, as the rows come. Times are microseconds."""
    keyed = slim.mapInArrow(Clocks(buckets), SLIM).groupBy("node", "bucket")
    return keyed.transformWithStateInPandas(
        statefulProcessor=Matcher(timeout, lateness),
        outputStructType=PAIRS,
        outputMode="Append",
        timeMode="None",
    )


class Clocks:
    """Passes parts of calls on, and at the end tells every bucket how far each node has come."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """One partition of the source."""
        clocks: dict[str, int] = {}
        schema = None
        for batch in batches:
            schema = batch.schema
            latest = pa.Table.from_batches([batch]).group_by("node").aggregate([("at", "max")])
            for node, at in zip(latest["node"].to_pylist(), latest["at_max"].to_pylist(), strict=True):
                clocks[node] = max(clocks.get(node, at), at)
            parts = batch.filter(pc.less(batch.column("role"), matching.CLOCK))
            if parts.num_rows:
                yield parts
        if clocks:
            told = {"role": matching.CLOCK, "offset": -1, "connection": 0, "size": 0}
            rows = [
                {"node": node, "bucket": bucket, "at": at, **told}
                for node, at in clocks.items()
                for bucket in range(self._buckets)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema)


class Matcher(StatefulProcessor):
    """A bucket of one node. Names of methods and parameters are Spark's."""

    def __init__(self, timeout: int, lateness: int) -> None:
        self._timeout = timeout
        self._lateness = lateness

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark begins a task."""
        self._state = handle.getValueState("waiting", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
        """Rows of a bucket have come."""
        found = self._state.get()
        before = matching.nothing() if found is None else matching.Waiting.from_bytes(found[1], found[0])
        pairs, after = matching.match(before, pd.concat(list(rows), ignore_index=True), self._timeout, self._lateness)
        self._state.update((after.clock, after.to_bytes()))
        if len(pairs):
            pairs.insert(0, "node", key[0])
            yield pairs[PAIRS.names]

    def close(self) -> None:
        """Spark ends a task."""
