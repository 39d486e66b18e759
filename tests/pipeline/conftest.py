"""One Spark session for all tests of the pipeline: starting one takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from polywire.pipeline.spark import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session(app="polywire-tests", master="local[2]", memory="1g")
    yield session
    session.stop()
