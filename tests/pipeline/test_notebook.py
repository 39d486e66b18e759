import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.ingest import ingest
from tests.pipeline.traffic import messages, write_journal

pytestmark = pytest.mark.timeout(180)

NOTEBOOK = Path(__file__).parents[2] / "examples" / "traffic.ipynb"


def test_the_example_notebook_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_journal(tmp_path / "journal", [*messages(20), *messages(5, channel="c", protocol="umq")])
    monkeypatch.setenv("POLYWIRE_JOURNAL", str(tmp_path / "journal"))
    names: dict[str, Any] = {"__name__": "__main__"}
    with ingest() as hub:
        monkeypatch.setenv("POLYWIRE_HUB", hub.url)
        for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)  # noqa: S102 - our own example
    assert names["spark"] is spark
    assert {row["count"] for row in spark.table("live").collect()} == {25}
    assert sorted(row["channel"] for row in hub.rows) == ["totals/a/b", "totals/c"]
