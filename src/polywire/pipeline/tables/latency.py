"""The table ``latency``: per minute, service and method how long calls took and how many failed. Made of ``calls``.

Its parts are histograms: how many calls took about so long. A time is kept with its eight leading bits, so a
percentile is at most 0.4 % off, and is the same whichever way the calls were cut into parts.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from polywire.pipeline.table import LIGHT_COLUMNS, Parts, Table, day_of, minute_of, schema
from polywire.pipeline.tables import calls

SCHEMA: Final = schema(
    "day date, minute timestamp, service string, method string, calls bigint, errors bigint, timeouts bigint, "
    "error_rate double, p50_ms double, p95_ms double, p99_ms double, max_ms double"
)

KEYS: Final = ("day", "minute", "service", "method")
BITS: Final = 8


def about(us: Column) -> Column:
    """A number of microseconds with its leading bits only: the middle of those that look alike."""
    spare = sf.greatest(sf.length(sf.bin(us)) - BITS, sf.lit(0))
    step = sf.call_function("shiftleft", sf.lit(1).cast("long"), spare)
    return us - us % step + sf.floor(step / 2)


def build(made: DataFrame) -> DataFrame:
    """How many calls of each outcome took about how long.

    Those that timed out took no time at all, nor did those whose time could not be measured.
    """
    timed = (sf.col("outcome") != calls.TIMEOUT) & (sf.col("latency_ms") >= 0)
    us = sf.when(timed, about(sf.round(sf.col("latency_ms") * 1000).cast("long")))
    return (
        made.groupBy(
            minute_of(sf.col("requested")).alias("minute"), "service", "method", "outcome", us.alias("about_us")
        )
        .agg(sf.count("*").alias("calls"), sf.max(sf.when(timed, sf.col("latency_ms"))).alias("max_ms"))
        .withColumn("day", day_of(sf.col("minute")))
    )


def merge(parts: DataFrame) -> DataFrame:
    """One row for each bar of the histogram."""
    return parts.groupBy(*KEYS, "outcome", "about_us").agg(
        sf.sum("calls").alias("calls"), sf.max("max_ms").alias("max_ms")
    )


def finish(parts: DataFrame) -> DataFrame:
    """The table itself: percentiles of the calls that were answered, with a result or an error."""
    whole = Window.partitionBy(*KEYS)
    answered = sf.when(sf.col("about_us").isNotNull(), sf.col("calls")).otherwise(0)
    ranked = parts.withColumn("so_far", sf.sum(answered).over(whole.orderBy("about_us"))).withColumn(
        "answered", sf.sum(answered).over(whole)
    )

    def percentile(share: float) -> Column:
        reached = sf.col("about_us").isNotNull() & (sf.col("so_far") >= sf.ceil(sf.col("answered") * share))
        # The middle of the last bar may be beyond the longest time.
        return sf.least(sf.min(sf.when(reached, sf.col("about_us"))) / 1000, sf.max("max_ms"))

    def having(outcome: str) -> Column:
        return sf.sum(sf.when(sf.col("outcome") == outcome, sf.col("calls")).otherwise(0))

    return (
        ranked.groupBy(*KEYS)
        .agg(
            sf.sum("calls").alias("calls"),
            having(calls.ERROR).alias("errors"),
            having(calls.TIMEOUT).alias("timeouts"),
            percentile(0.50).alias("p50_ms"),
            percentile(0.95).alias("p95_ms"),
            percentile(0.99).alias("p99_ms"),
            sf.max("max_ms").alias("max_ms"),
        )
        .withColumn("error_rate", (sf.col("errors") + sf.col("timeouts")) / sf.col("calls"))
        .select(*SCHEMA.names)
    )


PARTS: Final = Parts(build, merge, finish, daily=True)


def latency(rows: DataFrame) -> DataFrame:
    """The whole table of the journal's rows."""
    return finish(merge(build(calls.calls(rows))))


TABLE: Final = Table(
    "latency",
    latency,
    "per minute, service and method: p50, p95, p99, error rate",
    schema=SCHEMA,
    partition_by=("day",),
    columns=LIGHT_COLUMNS,
    watermark="that of calls",
    after="calls",
    parts=PARTS,
    keys=KEYS,
)
