"""Requests matched with what ended them while rows come in: ``matching`` in the words of Spark.

Rows go by node and a hash of the correlation into buckets, and each bucket keeps what is still open as one value of
Spark's state. A bucket's clock are rows of all kinds, so a timeout is found though the answering side went quiet; when
everything did, the source's ticks are the only rows, and do the same. There are no timers: they would go by the
clock of whoever computes, and a journal that is read late, or again after a crash, has to give the same calls.

Spark hands rows to a bucket one by one, at some microseconds each. So thousands of them are packed into one row first:
Arrow in a binary column, which the bucket opens as a whole.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from polywire.pipeline.tables import matching

PACKED: Final = StructType(
    [
        StructField("node", StringType()),
        StructField("bucket", IntegerType()),
        StructField("clock", LongType()),
        StructField("parts", BinaryType()),
    ]
)
"""What buckets get: parts of calls as Arrow has them, or nothing, and how far the node has come."""

HELD: Final = 50_000
"""Parts that are packed at once: a few megabytes."""

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
    keyed = slim.mapInArrow(Packer(buckets), PACKED).groupBy("node", "bucket")
    return keyed.transformWithStateInPandas(
        statefulProcessor=Matcher(timeout, lateness),
        outputStructType=PAIRS,
        outputMode="Append",
        timeMode="None",
    )


class Packer:
    """Packs parts of calls by node and bucket, and at the end tells every bucket how far each node has come."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """One partition of the source."""
        clocks: dict[str, int] = {}
        held: list[Any] = []
        rows = 0
        for batch in batches:
            latest = pa.Table.from_batches([batch]).group_by("node").aggregate([("at", "max")])
            for node, at in zip(latest["node"].to_pylist(), latest["at_max"].to_pylist(), strict=True):
                clocks[node] = max(clocks.get(node, at), at)
            held.append(batch.filter(pc.less(batch.column("role"), matching.CLOCK)))
            rows += held[-1].num_rows
            if rows >= HELD:
                yield self._packed(held, clocks)
                held, rows = [], 0
        if clocks:
            yield self._packed(held, clocks)

    def _packed(self, held: list[Any], clocks: dict[str, int]) -> Any:
        """A row for each node and bucket, with the parts that are held of it."""
        parts = pa.Table.from_batches(held) if held else None
        found: list[dict[str, Any]] = []
        for node, clock in clocks.items():
            of_node = None if parts is None else parts.filter(pc.equal(parts["node"], node))
            for bucket in range(self._buckets):
                mine = None if of_node is None else of_node.filter(pc.equal(of_node["bucket"], bucket))
                octets = matching.packed(mine) if mine is not None and mine.num_rows else b""
                found.append({"node": node, "bucket": bucket, "clock": clock, "parts": octets})
        return pa.RecordBatch.from_pylist(found, _PACKED)


_PACKED: Final[Any] = pa.schema(
    [("node", pa.utf8()), ("bucket", pa.int32()), ("clock", pa.int64()), ("parts", pa.binary())]
)


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
        clock, packed = before.clock, []
        for frame in rows:
            clock = max(clock, int(frame["clock"].max()))
            packed += [octets for octets in frame["parts"] if octets]
        now = matching.Waiting(before.rows, clock)
        pairs, after = matching.match(now, matching.unpacked(packed), self._timeout, self._lateness)
        self._state.update((after.clock, after.to_bytes()))
        if len(pairs):
            pairs.insert(0, "node", key[0])
            yield pairs[PAIRS.names]

    def close(self) -> None:
        """Spark ends a task."""
