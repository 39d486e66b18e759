"""The table ``calls``: each request with what ended it, how long that took, and the timeouts.

The outcome follows from the times in the rows alone, so it is the same in batch and streaming: a call is ended by its
last reply or an error, if that came within the timeout, else it timed out. ``matches`` finds that, for rows at rest and
for a stream as its rows come.

Calls between MQTT clients are publications on service topics in the journal. The source decodes them where it reads
(the kind ``rpc``), so that no other body is moved; rows that have come in another way and have bodies are decoded here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from polywire.journal.kinds import LAST_FLAG
from polywire.pipeline.rpc import OWN, RPC, parts
from polywire.pipeline.source import spark_schema
from polywire.pipeline.table import MICROSECONDS, Table, day_of, has_flag, headers, micros, moment, protocol, schema
from polywire.pipeline.tables import matches
from polywire.pipeline.tables.matches import matched, matched_at_rest

SCHEMA: Final = schema(
    "day date, protocol string, node string, correlation string, offset bigint, service string, method string, "
    "connection bigint, client string, requested timestamp, ended timestamp, latency_ms double, outcome string, "
    "code int, tag string, text string, request_size int, reply_size int"
)

OK: Final = "ok"
ERROR: Final = "error"
TIMEOUT: Final = "timeout"

TIMEOUT_TAG: Final = "timeout"
"""What the hub calls its own timeouts."""

COLUMNS: Final = (
    *("offset", "ts", "node", "kind", "protocol", "connection", "client", "channel", "correlation", "headers"),
    *("size", "flags"),
)
"""Of the journal, what is needed."""

PART_KINDS: Final = ("request", "reply", "error", RPC)
"""Rows that are parts of calls; the time comes with the source's ticks."""

BUCKETS: Final = 8
"""Of each node: a bucket is the least that one task can have, and costs some milliseconds a micro-batch."""

BUCKETS_AT_REST: Final = 64
"""There a bucket is held in memory as a whole."""


@dataclass(frozen=True, slots=True)
class Options:
    """How long a call may take, and how late a row may come, in seconds.

    A row may be up to ``lateness`` behind the newest one of its node; nodes may differ by any time. ``now``, in seconds
    since 1970, is for batches: rows are handled as if each node had reached that time. In a running stream the source's
    ticks do that.
    """

    timeout: float = 60.0
    lateness: float = 10.0
    now: float | None = None
    buckets: int = BUCKETS


USUAL: Final = Options()


def calls(rows: DataFrame, options: Options = USUAL) -> DataFrame:
    """Each call that has ended or timed out."""
    timeout, lateness = _micros(options.timeout), _micros(options.lateness)
    if "body" in rows.columns:
        rows = _decoded(rows)
    if rows.isStreaming:
        return _finish(matched(_slim(rows, options.buckets), timeout, lateness, options.buckets))
    now = 0 if options.now is None else _micros(options.now)
    return _finish(matched_at_rest(_slim(rows, BUCKETS_AT_REST), timeout, lateness, BUCKETS_AT_REST, now))


def calls_table(options: Options = USUAL) -> Table:
    """The table, with other times than the usual ones."""

    def build(rows: DataFrame) -> DataFrame:
        return calls(rows, options)

    def build_again(rows: DataFrame, now: float) -> DataFrame:
        return calls(rows, replace(options, now=now))

    return Table(
        "calls",
        build,
        "each request with its reply: latency, outcome, timeouts",
        schema=SCHEMA,
        partition_by=("day", "protocol"),
        columns=COLUMNS,
        kinds=PART_KINDS,
        watermark=f"{options.lateness:g} s behind the newest row of the same node",
        stateful=True,
        build_again=build_again,
        keys=("node", "offset"),
        varied=("correlation", "offset", "requested", "ended"),
    )


TABLE: Final = calls_table()


def _decoded(rows: DataFrame) -> DataFrame:
    """The rows that are needed, with calls between MQTT clients as such; of the bodies only theirs are moved."""
    on_topic = (sf.col("kind") == "publish") & sf.col("channel").startswith("/")
    body = sf.when(on_topic, sf.col("body")).alias("body")
    needed = [*COLUMNS, "body"]
    return rows.select(*COLUMNS, body).mapInArrow(_decode, spark_schema(needed)).drop("body")


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        found = parts(batch)
        if found.num_rows:
            yield found


def _slim(rows: DataFrame, buckets: int) -> DataFrame:
    """Parts of calls with what is needed of them; of other rows only node and time are left."""
    whole = sf.col("correlation").isNotNull() & sf.col("channel").contains("/")
    last = has_flag(LAST_FLAG)
    kind = sf.col("kind")
    on_topic = sf.col("correlation").startswith("/")
    role = (
        sf.when(whole.isNull() | ~whole, matches.CLOCK)
        .when(kind == "request", sf.when(last, matches.REQUEST).otherwise(matches.OPENING))
        .when((kind == "reply") & on_topic & (sf.col("protocol") == OWN), matches.PASSED)
        .when((kind == "reply") & last, matches.REPLY)
        .when((kind == "reply") & on_topic, matches.SINGLE)
        .when(kind == "error", matches.ERROR)
    )
    role = sf.coalesce(role, sf.lit(matches.CLOCK))
    request = sf.col("role").isin(matches.REQUEST, matches.OPENING)
    part = sf.col("role") != matches.CLOCK
    return rows.withColumn("role", role).select(
        "node",
        sf.pmod(sf.xxhash64("correlation"), sf.lit(buckets)).cast("int").alias("bucket"),
        "role",
        sf.when(part, sf.col("correlation")).alias("correlation"),
        "offset",
        micros(sf.col("ts")).alias("at"),
        sf.when(request, protocol()).alias("protocol"),
        "connection",
        sf.when(request, sf.col("client")).alias("client"),
        sf.when(request, sf.col("channel")).alias("channel"),
        "size",
        sf.when(sf.col("role") == matches.ERROR, sf.col("headers")).alias("headers"),
    )


def _finish(pairs: DataFrame) -> DataFrame:
    """The table's own columns."""
    words = sf.col("words")
    # A clock that was set back between the two leaves nothing to measure.
    latency = sf.when(sf.col("end_at") >= sf.col("at"), (sf.col("end_at") - sf.col("at")) / sf.lit(1000.0))
    return (
        pairs.withColumn("requested", moment(sf.col("at")))
        .withColumn("words", headers("end_headers"))
        .withColumn("tag", words["tag"])
        .withColumn("method", sf.substring_index("channel", "/", -1))
        .select(
            day_of(sf.col("requested")).alias("day"),
            "protocol",
            "node",
            "correlation",
            "offset",
            sf.substring("channel", sf.lit(1), sf.length("channel") - sf.length("method") - 1).alias("service"),
            "method",
            "connection",
            "client",
            "requested",
            moment(sf.col("end_at")).alias("ended"),
            latency.alias("latency_ms"),
            _outcome().alias("outcome"),
            words["code"].try_cast("int").alias("code"),
            "tag",
            words["text"].alias("text"),
            sf.col("size").alias("request_size"),
            sf.col("end_size").alias("reply_size"),
        )
    )


def _outcome() -> Column:
    role = sf.col("end_role")
    timeout = (role == matches.TIMEOUT) | ((role == matches.ERROR) & sf.col("tag").eqNullSafe(TIMEOUT_TAG))
    return sf.when(timeout, TIMEOUT).when(role == matches.ERROR, ERROR).otherwise(OK)


def _micros(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
