"""The table ``sessions``: each connection from connect to disconnect.

A part has, of each connection a micro-batch mentions, what is known of it from there: smallest, largest and sums, so
that parts can be merged in any order. The hub's starts are among them: a session without an end that began before
one is lost.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from polywire.pipeline.table import (
    LIGHT_COLUMNS,
    MICROSECONDS,
    Parts,
    Table,
    day_of,
    headers,
    is_message,
    is_start,
    micros,
    of_parts,
    protocol,
    schema,
)

SCHEMA: Final = schema(
    "day date, protocol string, node string, connection bigint, client string, user string, address string, "
    "connected timestamp, ended timestamp, seconds double, state string, reason string, messages bigint, "
    "bytes bigint"
)

OPEN: Final = "open"
CLOSED: Final = "closed"
LOST: Final = "lost"

LOST_REASON: Final = "the hub was lost"
"""The reason of sessions that ended with a killed hub."""

KEYS: Final = ("node", "connection", "start")


def _of(kind: str, value: Column) -> Column:
    """The value, in rows of this kind only."""
    return sf.when(sf.col("kind") == kind, value)


def _header(name: str) -> Column:
    return headers("headers")[name]


def build(rows: DataFrame) -> DataFrame:
    """What the rows say about each connection, and one row per start of the hub.

    Texts stay one row per event, and only numbers are aggregated: Spark sorts all rows to find the maximum of texts.
    """
    counted = (
        rows.filter(sf.col("connection") > 0)
        .groupBy(day_of(sf.col("ts")).alias("day"), "node", "connection")
        .agg(
            sf.max("ts").alias("seen"),
            sf.sum(sf.when(is_message(), 1).otherwise(0)).alias("messages"),
            sf.sum(sf.when(is_message(), sf.col("size")).otherwise(0)).alias("bytes"),
        )
    )
    events = rows.filter(sf.col("kind").isin("connect", "disconnect") | is_start()).select(
        day_of(sf.col("ts")).alias("day"),
        "node",
        "connection",
        sf.when(is_start(), sf.col("offset")).alias("start"),
        _of("connect", protocol()).alias("protocol"),
        _of("connect", sf.col("client")).alias("client"),
        _of("connect", _header("user")).alias("user"),
        _of("connect", _header("address")).alias("address"),
        _of("connect", sf.col("ts")).alias("connected"),
        _of("connect", sf.col("offset")).alias("first"),
        _of("disconnect", sf.col("ts")).alias("disconnected"),
        _of("disconnect", _header("reason")).alias("reason"),
    )
    return events.unionByName(counted, allowMissingColumns=True)


def merge(parts: DataFrame) -> DataFrame:
    """One row for each connection and each start."""
    return parts.groupBy(*KEYS).agg(
        *[sf.max(name).alias(name) for name in ("protocol", "client", "user", "address")],
        *[sf.min(name).alias(name) for name in ("connected", "first", "disconnected")],
        sf.max("reason").alias("reason"),
        sf.max("seen").alias("seen"),
        sf.coalesce(sf.sum("messages"), sf.lit(0)).alias("messages"),
        sf.coalesce(sf.sum("bytes"), sf.lit(0)).alias("bytes"),
        sf.min("day").alias("day"),
    )


def finish(parts: DataFrame) -> DataFrame:
    """The table itself: of each session whether it is open, closed or lost."""
    starts = parts.filter(sf.col("start").isNotNull()).groupBy("node").agg(sf.max("start").alias("last_start"))
    found = parts.filter(sf.col("connected").isNotNull()).join(sf.broadcast(starts), "node", "left")
    state = (
        sf.when(sf.col("disconnected").isNotNull(), CLOSED)
        .when(sf.col("last_start") > sf.col("first"), LOST)
        .otherwise(OPEN)
    )
    # Nobody saw a lost session end: its last row is what is known.
    ended = sf.when(sf.col("state") == CLOSED, sf.col("disconnected")).when(sf.col("state") == LOST, sf.col("seen"))
    seconds = (micros(sf.col("ended")) - micros(sf.col("connected"))) / sf.lit(float(MICROSECONDS))
    return (
        found.withColumn("day", day_of(sf.col("connected")))
        .withColumn("state", state)
        .withColumn("ended", ended)
        .withColumn("reason", sf.when(sf.col("state") == LOST, LOST_REASON).otherwise(sf.col("reason")))
        .withColumn("seconds", seconds)
        .select(*SCHEMA.names)
    )


PARTS: Final = Parts(build, merge, finish)

TABLE: Final = Table(
    "sessions",
    of_parts(PARTS),
    "connect to disconnect: duration, messages, bytes, reason",
    schema=SCHEMA,
    partition_by=("day", "protocol"),
    columns=LIGHT_COLUMNS,
    watermark="none: a row counts whenever it comes",
    parts=PARTS,
    keys=("node", "connection"),
)
