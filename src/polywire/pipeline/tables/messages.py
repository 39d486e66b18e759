"""The table ``messages``: every message, decoded. A row of the journal gives one row or none."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from polywire.journal.kinds import LAST_FLAG, QOS_MASK, QOS_SHIFT, RETAIN_FLAG, UNHEARD_FLAG, WILL_FLAG
from polywire.pipeline.table import Table, day_of, has_flag, headers, is_message, protocol, schema

SCHEMA: Final = schema(
    "day date, protocol string, ts timestamp, node string, offset bigint, kind string, connection bigint, "
    "client string, channel string, correlation string, content_type string, headers map<string,string>, "
    "text string, body binary, attachments array<binary>, size int, qos int, retain boolean, will boolean, "
    "unheard boolean, last boolean"
)


def messages(rows: DataFrame) -> DataFrame:
    """Every message. The body is in ``text`` where it is UTF-8, and in ``body`` where it is not."""
    text = sf.try_validate_utf8(sf.col("body").cast("string"))
    return (
        rows.filter(is_message())
        .withColumn("text", text)
        .select(
            day_of(sf.col("ts")).alias("day"),
            protocol().alias("protocol"),
            "ts",
            "node",
            "offset",
            "kind",
            "connection",
            "client",
            "channel",
            "correlation",
            "content_type",
            headers("headers").alias("headers"),
            "text",
            sf.when(sf.col("text").isNull(), sf.col("body")).alias("body"),
            "attachments",
            "size",
            sf.shiftright(sf.col("flags").bitwiseAND(QOS_MASK), QOS_SHIFT).alias("qos"),
            has_flag(RETAIN_FLAG).alias("retain"),
            has_flag(WILL_FLAG).alias("will"),
            has_flag(UNHEARD_FLAG).alias("unheard"),
            has_flag(LAST_FLAG).alias("last"),
        )
    )


TABLE: Final = Table(
    "messages",
    messages,
    "every message, decoded",
    schema=SCHEMA,
    partition_by=("day", "protocol"),
    watermark="none: a row counts whenever it comes",
    keys=("node", "offset"),
    varied=("ts", "offset", "correlation", "text", "body"),
)
