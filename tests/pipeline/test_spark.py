import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import polywire
from polywire.pipeline.spark import find_java, local_cores
from tests.spark_home import ARCHIVE, HOME, OPTIONS

pytestmark = pytest.mark.timeout(180)


def python(code: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - ours


def test_importing_polywire_loads_neither_spark_nor_arrow() -> None:
    code = "import sys, polywire; print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    assert python(code).stdout == "[]\n"


def test_a_session_has_the_settings_that_matter(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_session_that_runs_is_taken_and_taught_the_format(spark: SparkSession) -> None:
    assert polywire.spark_session(conf={"spark.sql.shuffle.partitions": "2"}) is spark


def test_a_start_and_an_end_are_quiet() -> None:
    start = "import polywire; spark = polywire.spark_session(master='local[1]', memory='1g')"
    done = python(f"{start}; print(spark.range(3).count()); spark.stop()")
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_start_that_fails_says_why() -> None:
    done = python("import polywire; polywire.spark_session(conf={'spark.driver.memory': 'lots'})")
    assert "SparkStartError: Spark did not start; its last output: " in done.stderr
    assert "lots" in done.stderr


@pytest.mark.skipif(not ARCHIVE.exists(), reason="there is no archive of classes: run 'make prepare'")
def test_the_spark_of_tests_takes_its_classes_from_their_archive(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    environment = {**os.environ, "JAVA_HOME": str(find_java()), "SPARK_HOME": str(HOME)}
    environment["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -Xlog:class+load:file={loaded}"
    subprocess.run([HOME / "bin" / "spark-submit", "--version"], check=True, capture_output=True, env=environment)  # noqa: S603 - ours
    (line,) = (line for line in loaded.read_text().splitlines() if " org.apache.spark.deploy.SparkSubmit " in line)
    assert line.endswith("source: shared objects file (top)")


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[*]", os.cpu_count()), ("local[2,4]", 2), ("spark://h:7077", None)],
)
def test_a_local_master_tells_its_cores(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
