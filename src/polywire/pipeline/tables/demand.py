"""The table ``demand``: per minute and topic the number of subscribers, and messages published without any.

Subscribers are counted by the exact pattern they asked for, once per connection, as the hub does. A client that does
not unsubscribe leaves when it disconnects, or with the next start of the hub; so parts keep the single events, and
joins and leaves are computed when the table is read. Published messages are counted per minute.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from polywire.journal.kinds import PERSISTENT_FLAG, UNHEARD_FLAG
from polywire.pipeline.table import LIGHT_COLUMNS, Parts, Table, day_of, has_flag, is_start, minute_of, of_parts, schema

SCHEMA: Final = schema(
    "day date, minute timestamp, channel string, joined bigint, left bigint, subscribers bigint, published bigint, "
    "unheard bigint"
)

START: Final = "start"
KEYS: Final = ("day", "minute", "event", "node", "channel", "connection", "offset")


def build(rows: DataFrame) -> DataFrame:
    """Publications per minute and topic, and each event that changes who is subscribed."""
    published = (
        rows.filter(sf.col("kind") == "publish")
        .groupBy(minute_of(sf.col("ts")).alias("minute"), "channel")
        .agg(
            sf.count("*").alias("published"),
            sf.sum(sf.when(has_flag(UNHEARD_FLAG), 1).otherwise(0)).alias("unheard"),
        )
        .withColumn("event", sf.lit("publish"))
    )
    event = (
        sf.when(sf.col("kind") == "disconnect", sf.col("kind"))
        .when(sf.col("kind").isin("subscribe", "unsubscribe") & ~has_flag(PERSISTENT_FLAG), sf.col("kind"))
        .when(is_start(), START)
    )
    events = (
        rows.withColumn("event", event)
        .filter(sf.col("event").isNotNull())
        .select(minute_of(sf.col("ts")).alias("minute"), "event", "node", "channel", "connection", "offset")
    )
    return published.unionByName(events, allowMissingColumns=True).withColumn("day", day_of(sf.col("minute")))


def merge(parts: DataFrame) -> DataFrame:
    """One row for each minute and topic that was published to, and each event."""
    return parts.groupBy(*KEYS).agg(sf.sum("published").alias("published"), sf.sum("unheard").alias("unheard"))


def finish(parts: DataFrame) -> DataFrame:
    """The table itself: who joined and left in each minute, and how many are subscribed then."""
    counted = parts.filter(sf.col("event") == "publish").select("minute", "channel", "published", "unheard")
    changes = _changes(parts)
    nothing = sf.lit(0).cast("long")
    rows = counted.select("minute", "channel", nothing.alias("joined"), nothing.alias("left"), "published", "unheard")
    rows = rows.unionByName(
        changes.select("minute", "channel", "joined", "left", nothing.alias("published"), nothing.alias("unheard"))
    )
    per_minute = rows.groupBy("minute", "channel").agg(
        *[sf.sum(name).alias(name) for name in ("joined", "left", "published", "unheard")]
    )
    so_far = Window.partitionBy("channel").orderBy("minute")
    return (
        per_minute.withColumn("subscribers", sf.sum(sf.col("joined") - sf.col("left")).over(so_far))
        .withColumn("day", day_of(sf.col("minute")))
        .select(*SCHEMA.names)
    )


def _changes(parts: DataFrame) -> DataFrame:
    """Each join and each leave: minute, channel, joined, left."""
    own = Window.partitionBy("node", "connection", "channel").orderBy("offset")
    events = (
        parts.filter(sf.col("event").isin("subscribe", "unsubscribe"))
        .withColumn("before", sf.lag("event").over(own))
        .withColumn("after", sf.lead("event").over(own))
    )
    subscribes = sf.col("event") == "subscribe"
    # Who subscribes twice is counted once.
    joins = events.filter(subscribes & (sf.col("before").isNull() | (sf.col("before") == "unsubscribe")))
    leaves = events.filter((sf.col("event") == "unsubscribe") & (sf.col("before") == "subscribe"))
    staying = events.filter(subscribes & sf.col("after").isNull())
    gone = _gone(parts, staying)
    one, none = sf.lit(1).cast("long"), sf.lit(0).cast("long")
    joined = joins.select("minute", "channel", one.alias("joined"), none.alias("left"))
    return joined.unionByName(_left(leaves, none, one)).unionByName(_left(gone, none, one))


def _left(rows: DataFrame, none: Column, one: Column) -> DataFrame:
    return rows.select("minute", "channel", none.alias("joined"), one.alias("left"))


def _gone(parts: DataFrame, staying: DataFrame) -> DataFrame:
    """Of those who never unsubscribed: when their connection ended, if it did."""
    ends = (
        parts.filter(sf.col("event") == "disconnect")
        .groupBy("node", "connection")
        .agg(sf.min("minute").alias("disconnected"))
    )
    starts = (
        parts.filter(sf.col("event") == START)
        .groupBy("node")
        .agg(sf.array_sort(sf.collect_list(sf.struct("offset", "minute"))).alias("starts"))
    )
    mine = sf.col("offset")
    next_start = sf.filter("starts", lambda start: start["offset"] > mine)
    return (
        staying.select("node", "connection", "channel", "offset")
        .join(ends, ["node", "connection"], "left")
        .join(sf.broadcast(starts), "node", "left")
        .withColumn("minute", sf.coalesce("disconnected", sf.get(next_start, sf.lit(0))["minute"]))
        .filter(sf.col("minute").isNotNull())
    )


PARTS: Final = Parts(build, merge, finish)

TABLE: Final = Table(
    "demand",
    of_parts(PARTS),
    "per topic: subscribers over time, and messages published with nobody listening",
    schema=SCHEMA,
    partition_by=("day",),
    columns=LIGHT_COLUMNS,
    watermark="none: a row counts whenever it comes",
    parts=PARTS,
    keys=("minute", "channel"),
)
