"""A pipeline to be killed: ``polywire pipeline run``, and beside it a query that publishes rows back into a hub.

    python -m faults.driver JOURNAL LAKE HUB MASTER [--once]

Both run in one Spark session. What is published under ``in/`` comes back under ``out/in/``. Prints ``started`` when the
session has started.
"""

import argparse
import contextlib
import threading
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from polywire.cli.main import app
from polywire.pipeline.spark import LOGGING, spark_session

PAUSE = 1.0
"""Seconds before the query that publishes is started again."""

PASSING = (PySparkException, Py4JError, OSError)
"""What its queries and calls end with when Spark's processes are killed."""

SETTINGS = {
    "spark.executor.memory": "512m",
    # Executors are killed all the time.
    "spark.task.maxFailures": "20",
    "spark.deploy.maxExecutorRetries": "-1",
    # On a busy machine a worker may take its time to connect.
    "spark.python.authenticate.socketTimeout": "90s",
    # Nothing here runs long enough for code to be compiled well.
    "spark.driver.extraJavaOptions": f"-Xss8m -Dlog4j2.configurationFile={LOGGING.as_uri()} -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Publisher:
    """The query that publishes, started again whenever it fails."""

    def __init__(self, spark: SparkSession, options: argparse.Namespace) -> None:
        self._spark, self._options = spark, options
        self._over = threading.Event()
        self._query = self._start()
        self._thread = threading.Thread(target=self._mind, daemon=True)
        if not options.once:
            self._thread.start()

    def wait(self) -> None:
        """Wait until everything is published, where that comes to an end; raises what went wrong."""
        self._over.set()
        if self._options.once:
            self._query.awaitTermination()

    def _mind(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(*PASSING):
                self._query.awaitTermination()
            if not self._over.wait(PAUSE):
                with contextlib.suppress(*PASSING):
                    self._query = self._start()

    def _start(self) -> StreamingQuery:
        rows = self._spark.readStream.format("polywire").options(
            journal=self._options.journal, columns="channel,body", kinds="publish", channels="in/**"
        )
        writer = (
            rows.load()
            .selectExpr("concat('out/', channel) AS channel", "body")
            .writeStream.format("polywire")
            .option("hub", self._options.hub)
            .option("checkpointLocation", str(Path(self._options.lake).parent / "published"))
        )
        if self._options.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="500 milliseconds").start()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    for name in ("journal", "lake", "hub", "master"):
        parser.add_argument(name)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    spark = spark_session(app="killed", master=options.master, memory="1g", conf=SETTINGS)
    print("started", flush=True)
    publisher = Publisher(spark, options)
    words = ["pipeline", "run", "--journal", options.journal, "--lake", options.lake, "--trigger", "200ms"]
    try:
        app([*words, *(["--once"] if options.once else [])], prog_name="polywire")
    except SystemExit as ended:
        if ended.code:
            raise
    publisher.wait()


if __name__ == "__main__":
    main()
