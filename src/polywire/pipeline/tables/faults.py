"""The table ``faults``: what was discarded and why, with the raw bytes; and rows the pipeline itself can't use.

A bad row never stops a query: it is listed here, and what can be read of it is in the other tables as well.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from polywire.journal.kinds import KINDS
from polywire.pipeline.table import TICK, Table, day_of, headers, protocol, schema

SCHEMA: Final = schema(
    "day date, protocol string, ts timestamp, node string, offset bigint, fault string, rule string, reason string, "
    "connection bigint, client string, channel string, correlation string, headers string, raw binary, size int"
)

DISCARDED: Final = "discarded"
GAP: Final = "gap"
BAD_HEADERS: Final = "bad-headers"
BAD_CALL: Final = "bad-call"
UNKNOWN_KIND: Final = "unknown-kind"

_CALL_KINDS: Final = ("request", "reply", "error")


def _fault(found: Column) -> Column:
    """What is wrong with a row; null where nothing is."""
    kind, channel, correlation = sf.col("kind"), sf.col("channel"), sf.col("correlation")
    return (
        sf.when(kind == "discard", DISCARDED)
        .when(kind == "gap", GAP)
        .when(~kind.isin(*KINDS, TICK), UNKNOWN_KIND)
        .when(sf.col("headers").isNotNull() & found.isNull(), BAD_HEADERS)
        .when(
            kind.isin(*_CALL_KINDS) & (correlation.isNull() | channel.isNull() | ~channel.contains("/")),
            BAD_CALL,
        )
    )


def _reason(found: Column) -> Column:
    fault = sf.col("fault")
    return (
        sf.when(fault == UNKNOWN_KIND, sf.concat(sf.lit("no such kind: "), sf.col("kind")))
        .when(fault == BAD_HEADERS, "the headers are not a JSON object")
        .when(fault == BAD_CALL, "a part of a call needs a correlation and a channel <service>/<method>")
        .otherwise(found["reason"])
    )


def faults(rows: DataFrame) -> DataFrame:
    """What was discarded and why, gaps in the journal, and rows that are not as they should be."""
    found = sf.col("found")
    return (
        rows.withColumn("found", headers("headers"))
        .withColumn("fault", _fault(found))
        .filter(sf.col("fault").isNotNull())
        .select(
            day_of(sf.col("ts")).alias("day"),
            protocol().alias("protocol"),
            "ts",
            "node",
            "offset",
            "fault",
            found["rule"].alias("rule"),
            _reason(found).alias("reason"),
            "connection",
            "client",
            "channel",
            "correlation",
            "headers",
            sf.col("body").alias("raw"),
            "size",
        )
    )


TABLE: Final = Table(
    "faults",
    faults,
    "what was discarded and why, raw bytes kept",
    schema=SCHEMA,
    partition_by=("day", "protocol"),
    watermark="none: a row counts whenever it comes",
    keys=("node", "offset"),
)
