"""A driver to be killed: all tables of a journal into a lake, and what is published under ``in/`` back into a hub.

    python -m tests.pipeline.driver JOURNAL LAKE HUB [--once]

Prints ``started`` when its queries run.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from polywire.pipeline.runner import Job, Runner
from polywire.pipeline.spark import spark_session
from polywire.pipeline.tables import TABLES


def publish_back(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    """Everything under ``in/``, into the other hub under ``out/``."""
    rows = spark.readStream.format("polywire").options(
        journal=options.journal, columns="channel,body", kinds="publish", channels="in/**"
    )
    writer = (
        rows.load()
        .selectExpr("concat('out/', channel) AS channel", "body")
        .writeStream.format("polywire")
        .option("hub", options.hub)
        .option("checkpointLocation", str(Path(options.lake) / "_pipeline" / "checkpoints" / "sink"))
    )
    return (
        writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime="100 milliseconds")
    ).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("journal")
    parser.add_argument("lake")
    parser.add_argument("hub")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    spark = spark_session(app="killed", master="local[2]", memory="1g")
    runner = Runner(spark, Job(options.journal, options.lake, TABLES, trigger="100ms", once=options.once))
    back = publish_back(spark, options)
    runner.start()
    print("started", flush=True)  # noqa: T201 - for the test
    runner.follow()
    back.awaitTermination()


if __name__ == "__main__":
    main()
