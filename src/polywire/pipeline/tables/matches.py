"""Requests matched with what ended them: the part of ``calls`` that keeps state.

A call is ended by its last reply or by an error, if that came within ``timeout`` of the request; else it timed out. A
timeout is reported once the node's rows have gone ``lateness`` beyond it, as no row comes later than that. ``match``
does this for the rows of one node, without Spark: they are a pandas frame with the columns of ``STORED``, and times are
microseconds.

In a stream, rows go by node and a hash of the correlation into buckets, and each bucket keeps what is still open as one
value of Spark's state. A bucket's clock are rows of all kinds, so a timeout is found though the answering side went
quiet; when everything did, the source's ticks are the only rows, and do the same. There are no timers: they would go by
the clock of the machine that computes, and a journal that is read late, or again after a crash, has to give the same
calls.

Spark hands rows to a bucket one by one, at some microseconds each. So thousands of them are packed into one row first:
Arrow in a binary column, which the bucket opens as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from polywire.pipeline.table import schema

REQUEST: Final = 0
OPENING: Final = 1
"""A request that others of the same call follow."""
REPLY: Final = 2
ERROR: Final = 3
CLOCK: Final = 4
"""No part of a call: it says only that the node has come to this time."""
ANSWERED: Final = 5
"""A call that has ended but whose requests may continue, so that the next request is not taken for a new call."""
TIMEOUT: Final = 6

FIRST: Final = ("protocol", "connection", "client", "channel", "size")
"""What a call has from its request."""

END: Final = {"role": "end_role", "at": "end_at", "size": "end_size", "headers": "end_headers"}
"""What it has from its end, and how that is called there."""

_STORED: Final[list[tuple[str, pa.DataType]]] = [
    ("role", pa.int32()),
    ("correlation", pa.utf8()),
    ("offset", pa.int64()),
    ("at", pa.int64()),
    ("protocol", pa.utf8()),
    ("connection", pa.int64()),
    ("client", pa.utf8()),
    ("channel", pa.utf8()),
    ("size", pa.int32()),
    ("headers", pa.utf8()),
]

STORED: Final = pa.schema(_STORED)
"""How rows are kept between two micro-batches."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is kept of a bucket: rows that wait for their other half, and the latest time of the node."""

    rows: pd.DataFrame
    clock: int

    def to_bytes(self) -> bytes:
        """The rows, to be stored."""
        return packed(pa.Table.from_pandas(self.rows, STORED, preserve_index=False)) if len(self.rows) else b""

    @staticmethod
    def from_bytes(data: bytes, clock: int) -> "Waiting":
        """Decode what ``to_bytes`` returned."""
        return Waiting(unpacked([data] if data else []), clock)


def packed(rows: pa.Table) -> bytes:
    """Rows of an Arrow table that has at least the columns of ``STORED``, as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED) as writer:
        writer.write_table(rows.select(STORED.names).combine_chunks().cast(STORED))
    return bytes(sink.getvalue())


def unpacked(several: list[bytes]) -> pd.DataFrame:
    """The rows of all of them, as a pandas frame."""
    tables = []
    for data in several:
        with pa.ipc.open_stream(data) as reader:
            tables.append(reader.read_all())
    return (pa.concat_tables(tables) if tables else STORED.empty_table()).to_pandas()


def nothing() -> Waiting:
    """What a bucket begins with."""
    return Waiting(unpacked([]), 0)


def match(before: Waiting, rows: pd.DataFrame, timeout: int, lateness: int) -> tuple[pd.DataFrame, Waiting]:
    """The calls these rows bring to an end, and what waits from now on."""
    clock = max(before.clock, int(rows["at"].max())) if len(rows) else before.clock
    settled = clock - timeout - lateness
    parts = rows.loc[rows["role"].to_numpy() != CLOCK, STORED.names]
    if len(before.rows):
        parts = pd.concat([before.rows, parts], ignore_index=True)
    if not len(parts):  # a clock, and nothing it could settle: most buckets of a small micro-batch
        return parts, Waiting(parts, clock)
    role = parts["role"].to_numpy()
    answered = parts[role == ANSWERED]
    asked = parts[role <= OPENING]
    if len(answered):
        asked = asked[~asked["correlation"].isin(answered["correlation"])]
    ends = _earliest(parts[(role == REPLY) | (role == ERROR)])
    pairs = _earliest(asked).merge(ends[["correlation", *END]].rename(columns=END), on="correlation", how="left")
    at, end_at = pairs["at"].to_numpy(), pairs["end_at"].to_numpy(dtype=np.float64, na_value=np.nan)
    came = ~np.isnan(end_at)
    over = came | (at <= settled)
    # What ends a call may come before its request; it waits as long as the request could.
    lone = ends[(ends["at"].to_numpy() > settled) & ~ends["correlation"].isin(parts["correlation"][role <= OPENING])]
    kept = [
        asked[asked["correlation"].isin(pairs["correlation"][~over])],
        lone,
        answered[answered["at"].to_numpy() > settled],
        _streaming(pairs[over], clock),
    ]
    return _ended(pairs[over], came[over], timeout), Waiting(_together(kept, parts), clock)


def _streaming(ended: pd.DataFrame, clock: int) -> pd.DataFrame:
    """Ended calls whose requests may continue."""
    found = ended[ended["role"].to_numpy() == OPENING]
    return found.assign(role=np.int32(ANSWERED), at=np.int64(clock))


def _together(frames: list[pd.DataFrame], like: pd.DataFrame) -> pd.DataFrame:
    """The rows of all frames, with the columns that are stored."""
    some = [frame[STORED.names] for frame in frames if len(frame)]
    return pd.concat(some, ignore_index=True) if some else like.iloc[:0]


def _earliest(rows: pd.DataFrame) -> pd.DataFrame:
    """The first row of each call, by its place in the journal."""
    if rows["correlation"].is_unique:
        return rows
    return rows.sort_values("offset", kind="stable").drop_duplicates("correlation")


def _ended(pairs: pd.DataFrame, came: "np.ndarray[Any, np.dtype[np.bool_]]", timeout: int) -> pd.DataFrame:
    """Calls that are over: the columns of the request, and those of the end where it came in time."""
    limit = pairs["at"].to_numpy() + timeout
    in_time = came & (np.where(came, pairs["end_at"], 0) <= limit)
    calls = pairs[["correlation", "offset", "at", *FIRST]].copy()
    calls["end_role"] = np.where(in_time, pairs["end_role"], TIMEOUT).astype(np.int32)
    calls["end_at"] = np.where(in_time, pairs["end_at"], limit).astype(np.int64)
    calls["end_size"] = np.where(in_time, pairs["end_size"], 0).astype(np.int32)
    calls["end_headers"] = np.where(in_time, pairs["end_headers"], None)
    return calls


PACKED: Final = schema("node string, bucket int, clock bigint, parts binary")
"""What buckets get: parts of calls as Arrow has them, or nothing, and how far the node has come."""

HELD: Final = 50_000
"""Parts that are packed at once: a few megabytes."""

PAIRS: Final = schema(
    "node string, correlation string, offset bigint, at bigint, protocol string, connection bigint, client string, "
    "channel string, size int, end_role int, end_at bigint, end_size int, end_headers string"
)
"""A request and its end."""

STATE: Final = schema("clock bigint, rows binary")


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
    """Packs parts of calls by node and bucket, and at the end sends every bucket the progress of each node."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One partition of the source."""
        clocks: dict[str, int] = {}
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            latest = pa.Table.from_batches([batch]).group_by("node").aggregate([("at", "max")])
            for row in latest.to_pylist():
                clocks[row["node"]] = max(clocks.get(row["node"], row["at_max"]), row["at_max"])
            held.append(batch.filter(pc.less(batch.column("role"), pa.scalar(CLOCK))))
            rows += held[-1].num_rows
            if rows >= HELD:
                yield self._packed(held, clocks)
                held, rows = [], 0
        if clocks:
            yield self._packed(held, clocks)

    def _packed(self, held: list[pa.RecordBatch], clocks: dict[str, int]) -> pa.RecordBatch:
        """A row for each node and bucket, with the parts that are held of it."""
        parts = pa.Table.from_batches(held) if held else None
        found: list[dict[str, Any]] = []
        for node, clock in clocks.items():
            of_node = None if parts is None else parts.filter(pc.equal(parts["node"], pa.scalar(node)))
            for bucket in range(self._buckets):
                mine = None if of_node is None else of_node.filter(pc.equal(of_node["bucket"], pa.scalar(bucket)))
                octets = packed(mine) if mine is not None and mine.num_rows else b""
                found.append({"node": node, "bucket": bucket, "clock": clock, "parts": octets})
        return pa.RecordBatch.from_pylist(found, _PACKED)


_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("node", pa.utf8()),
    ("bucket", pa.int32()),
    ("clock", pa.int64()),
    ("parts", pa.binary()),
]
_PACKED: Final = pa.schema(_COLUMNS)


class Matcher(StatefulProcessor):
    """A bucket of one node. Names of methods and parameters are Spark's."""

    def __init__(self, timeout: int, lateness: int) -> None:
        self._timeout = timeout
        self._lateness = lateness

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark begins a task."""
        self._state = handle.getValueState("waiting", STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: tuple[str, int],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: ARG002, N803 - as above
    ) -> Iterator[pd.DataFrame]:
        """Rows of a bucket have come."""
        found = self._state.get()
        before = nothing() if found is None else Waiting.from_bytes(found[1], found[0])
        clock, parts = before.clock, []
        for frame in rows:
            clock = max(clock, int(frame["clock"].max()))
            parts += [octets for octets in frame["parts"] if octets]
        now = Waiting(before.rows, clock)
        pairs, after = match(now, unpacked(parts), self._timeout, self._lateness)
        self._state.update((after.clock, after.to_bytes()))
        if len(pairs):
            pairs.insert(0, "node", key[0])
            yield pairs[PAIRS.names]

    def close(self) -> None:
        """Spark ends a task."""
