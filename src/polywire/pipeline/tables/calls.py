"""The table ``calls``: each request with what ended it, how long that took, and the timeouts.

The outcome follows from the times in the rows alone, so it is the same in batch and streaming: a call is ended by its
last reply or an error, if that came within the timeout, else it timed out. Of rows at rest that is a plain aggregate.
Of a stream it is found in ``matches``, as rows come.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from polywire.journal.kinds import LAST_FLAG
from polywire.pipeline.table import Table, schema
from polywire.pipeline.tables import matches
from polywire.pipeline.tables.expressions import MICROSECONDS, day_of, has_flag, micros, moment, protocol
from polywire.pipeline.tables.matches import PAIRS, matched

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

PART_KINDS: Final = ("request", "reply", "error")
"""Rows that are parts of calls; the time comes with the source's ticks."""

BUCKETS: Final = 8
"""Of each node: a bucket is the least that one task can have, and costs some milliseconds a micro-batch."""


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
    slim = _slim(rows, options.buckets)
    return _finish(
        matched(slim, _micros(options.timeout), _micros(options.lateness), options.buckets)
        if rows.isStreaming
        else _at_rest(slim, options)
    )


def calls_table(options: Options = USUAL) -> Table:
    """The table, with other times than the usual ones."""

    def build(rows: DataFrame) -> DataFrame:
        return calls(rows, options)

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
        keys=("node", "correlation"),
        varied=("correlation", "offset", "requested", "ended"),
    )


TABLE: Final = calls_table()


def _slim(rows: DataFrame, buckets: int) -> DataFrame:
    """Parts of calls with what is needed of them; of other rows only node and time are left."""
    whole = sf.col("correlation").isNotNull() & sf.col("channel").contains("/")
    last = has_flag(LAST_FLAG)
    kind = sf.col("kind")
    role = (
        sf.when(~whole, matches.CLOCK)
        .when(kind == "request", sf.when(last, matches.REQUEST).otherwise(matches.OPENING))
        .when((kind == "reply") & last, matches.REPLY)
        .when(kind == "error", matches.ERROR)
        .otherwise(matches.CLOCK)
    )
    role = sf.coalesce(role, sf.lit(matches.CLOCK))
    request = sf.col("role") < matches.REPLY
    part = sf.col("role") < matches.CLOCK
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


def _at_rest(slim: DataFrame, options: Options) -> DataFrame:
    """Pairs, of all rows at once."""
    timeout, lateness = _micros(options.timeout), _micros(options.lateness)
    role = sf.col("role")
    request, end = role < matches.REPLY, role.isin(matches.REPLY, matches.ERROR)
    first = sf.struct("offset", "at", *matches.FIRST)
    last = sf.struct(
        sf.col("role").alias("end_role"),
        sf.col("at").alias("end_at"),
        sf.col("size").alias("end_size"),
        sf.col("headers").alias("end_headers"),
    )
    grouped = slim.groupBy("node", "correlation").agg(
        sf.min_by(sf.when(request, first), sf.when(request, sf.col("offset"))).alias("first"),
        sf.min_by(sf.when(end, last), sf.when(end, sf.col("offset"))).alias("last"),
        sf.max("at").alias("newest"),
    )
    clocks = grouped.groupBy("node").agg(sf.max("newest").alias("clock"))
    now = sf.lit(_micros(options.now) if options.now is not None else 0)
    pairs = (
        grouped.filter(sf.col("first").isNotNull() & sf.col("correlation").isNotNull())
        .join(sf.broadcast(clocks), "node")
        .select("node", "correlation", "first.*", "last.*", sf.greatest("clock", now).alias("clock"))
    )
    in_time = sf.col("end_at") <= sf.col("at") + timeout
    came = sf.col("end_at").isNotNull()
    settled = sf.col("at") <= sf.col("clock") - timeout - lateness
    told = pairs.filter(came | settled).withColumn("in_time", came & in_time)
    return told.select(
        *[name for name in PAIRS.names if not name.startswith("end_")],
        sf.when(sf.col("in_time"), sf.col("end_role")).otherwise(matches.TIMEOUT).alias("end_role"),
        sf.when(sf.col("in_time"), sf.col("end_at")).otherwise(sf.col("at") + timeout).alias("end_at"),
        sf.when(sf.col("in_time"), sf.col("end_size")).otherwise(0).alias("end_size"),
        sf.when(sf.col("in_time"), sf.col("end_headers")).alias("end_headers"),
    )


def _finish(pairs: DataFrame) -> DataFrame:
    """The table's own columns."""
    code = sf.get_json_object("end_headers", "$.code").try_cast("int")
    tag = sf.get_json_object("end_headers", "$.tag")
    text = sf.get_json_object("end_headers", "$.text")
    return (
        pairs.withColumn("requested", moment(sf.col("at")))
        .withColumn("tag", tag)
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
            ((sf.col("end_at") - sf.col("at")) / sf.lit(1000.0)).alias("latency_ms"),
            _outcome().alias("outcome"),
            code.alias("code"),
            "tag",
            text.alias("text"),
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
