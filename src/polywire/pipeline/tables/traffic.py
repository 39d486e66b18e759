"""The table ``traffic``: per minute, protocol and channel how many messages, how many bytes, how many publishers.

Its parts have one row more per publisher, so that publishers can be distinguished across micro-batches.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from polywire.pipeline.table import (
    LIGHT_COLUMNS,
    Parts,
    Table,
    day_of,
    is_message,
    minute_of,
    of_parts,
    protocol,
    schema,
)

SCHEMA: Final = schema(
    "day date, protocol string, minute timestamp, channel string, messages bigint, bytes bigint, publishers bigint"
)

KEYS: Final = ("day", "minute", "protocol", "channel")


def build(rows: DataFrame) -> DataFrame:
    """What each publisher sent to each channel in each minute."""
    nameless = sf.concat("node", sf.lit("#"), sf.col("connection").cast("string"))
    publisher = sf.coalesce("client", nameless)
    counted = (
        rows.filter(is_message())
        .groupBy(
            minute_of(sf.col("ts")).alias("minute"),
            protocol().alias("protocol"),
            "channel",
            publisher.alias("publisher"),
        )
        .agg(sf.count("*").alias("messages"), sf.sum("size").alias("bytes"))
    )
    return counted.select(
        day_of(sf.col("minute")).alias("day"), "minute", "protocol", "channel", "publisher", "messages", "bytes"
    )


def merge(parts: DataFrame) -> DataFrame:
    """One row for each publisher, channel and minute."""
    return parts.groupBy(*KEYS, "publisher").agg(sf.sum("messages").alias("messages"), sf.sum("bytes").alias("bytes"))


def finish(parts: DataFrame) -> DataFrame:
    """The table itself: publishers are counted."""
    return (
        parts.groupBy(*KEYS)
        .agg(
            sf.sum("messages").alias("messages"),
            sf.sum("bytes").alias("bytes"),
            sf.count("publisher").alias("publishers"),
        )
        .select(*SCHEMA.names)
    )


PARTS: Final = Parts(build, merge, finish, daily=True)

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
)
