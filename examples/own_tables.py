"""Tables of one's own: ``polywire pipeline run examples/own_tables.py`` makes them along with the seven.

A table is a function from the journal's rows to its own rows. ``alarms`` gives a row or none for each row.
``busiest`` is an aggregate: the function makes the part of a micro-batch, and ``merge`` puts parts together that have
the same key.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from polywire.pipeline.table import table


@table(partition_by=("day",))
def alarms(rows: DataFrame) -> DataFrame:
    """Readings above 90 degrees."""
    degrees = sf.get_json_object(sf.col("body").cast("string"), "$.temp").try_cast("double")
    return (
        rows.filter((sf.col("kind") == "publish") & sf.col("channel").like("plant/%/temp"))
        .select(sf.to_date("ts").alias("day"), "ts", "channel", degrees.alias("degrees"))
        .filter("degrees > 90")
    )


def busiest_merged(parts: DataFrame) -> DataFrame:
    """One row for each client and day."""
    return parts.groupBy("day", "client").agg(sf.sum("messages").alias("messages"), sf.max("largest").alias("largest"))


@table(merge=busiest_merged)
def busiest(rows: DataFrame) -> DataFrame:
    """How much each client has published on a day, and its largest message."""
    published = rows.filter("kind = 'publish' and client is not null")
    return published.groupBy(sf.to_date("ts").alias("day"), "client").agg(
        sf.count("*").alias("messages"), sf.max("size").alias("largest")
    )
