"""One Spark session for all tests of the pipeline: starting one takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from polywire.pipeline.spark import LOGGING, spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Tests run everything once or twice: compiling it well costs more than it brings.
    java = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -XX:TieredStopAtLevel=1"
    session = spark_session(
        app="polywire-tests", master="local[2]", memory="1g", conf={"spark.driver.extraJavaOptions": java}
    )
    yield session
    session.stop()
