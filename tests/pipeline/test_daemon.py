import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from polywire.pipeline.spark import installed_first

pytestmark = pytest.mark.timeout(180)


def test_workers_start_with_everything_imported(spark: SparkSession) -> None:
    names = ("pyarrow.compute", "pandas", "polywire.pipeline.source")

    def loaded(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            found = [name for name in names if name in sys.modules]
            where = str(sys.modules["pyspark"].__file__)
            yield pa.RecordBatch.from_pydict({"found": [found] * batch.num_rows, "where": [where] * batch.num_rows})

    row = spark.range(1).mapInArrow(loaded, "found array<string>, where string").first()
    assert row is not None
    assert tuple(row.found) == names
    assert ".zip" not in row.where


def test_a_zip_is_kept_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["spark/pyspark.zip"])
    monkeypatch.setattr("polywire.pipeline.spark.find_spec", lambda _: None)
    installed_first()
    assert sys.path == ["spark/pyspark.zip"]


def test_the_daemon_says_nothing_of_its_own() -> None:
    command = [sys.executable, "-m", "polywire.pipeline.spark", "pyspark.worker"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603 - ours
    assert len(done.stdout) == 4  # the port
    assert done.stderr == b""
