"""A call that a killed hub left open times out though nothing is written any more."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polywire.pipeline.columns import LIGHT_COLUMNS
from polywire.pipeline.lake import Lake
from polywire.pipeline.runner import batch_writer
from polywire.pipeline.tables import TABLES
from tests.pipeline.tables.test_batch_and_streaming import to_the_end
from tests.pipeline.traffic import write_journal

pytestmark = pytest.mark.timeout(900)


def test_a_timeout_is_found_when_all_goes_quiet(spark: SparkSession, tmp_path: Path) -> None:
    asked = {"kind": "request", "channel": "billing/charge", "correlation": "1", "flags": 16}
    write_journal(tmp_path / "journal", [asked])
    options = {"columns": ",".join(LIGHT_COLUMNS), "ticks": "10"}
    rows = spark.readStream.format("polywire").options(**options).load(str(tmp_path / "journal"))
    lake = Lake(tmp_path / "lake")
    writer = TABLES["calls"].build(rows).writeStream.foreachBatch(batch_writer(lake, [TABLES["calls"]], "calls"))
    to_the_end(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True))
    (call,) = lake.read("calls", spark).select("correlation", "outcome", "latency_ms").collect()
    assert tuple(call) == ("1", "timeout", 60_000.0)
