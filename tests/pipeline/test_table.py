"""Tables of one's own: the decorator, and the example that the documentation shows."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from polywire.pipeline.lake import Lake
from polywire.pipeline.runner import batch_writer
from polywire.pipeline.table import Table, table
from tests.pipeline.tables.rows import batched, collected, numbered, row

pytestmark = pytest.mark.timeout(900)

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_tables.py"


def example() -> dict[str, Table]:
    """The tables of the example."""
    spec = importlib.util.spec_from_file_location("own_tables", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {found.name: found for found in vars(module).values() if isinstance(found, Table)}


def unchanged(rows: DataFrame) -> DataFrame:
    """Rows as they are.

    And more words.
    """
    return rows


def test_a_table_is_called_and_described_as_its_function() -> None:
    made = table(unchanged)
    assert (made.name, made.description, made.parts) == ("unchanged", "Rows as they are.", None)
    assert table(name="other")(unchanged).name == "other"


def test_with_merge_it_is_an_aggregate() -> None:
    parts = table(merge=unchanged)(unchanged).parts
    assert parts is not None
    assert parts.build is unchanged
    assert parts.merge is unchanged


def test_the_example_gives_the_same_in_one_piece_and_in_batches(spark: SparkSession, tmp_path: Path) -> None:
    tables = example()
    assert list(tables) == ["alarms", "busiest"]
    told: list[dict[str, Any]] = [
        {"client": "a", "body": b'{"temp": 95}', "channel": "plant/1/temp"},
        {"client": "a", "body": b'{"temp": 20}', "channel": "plant/1/temp"},
        {"client": "b", "body": b"not json", "channel": "plant/2/temp"},
        {"client": "a", "body": b'{"temp": 99.5}', "channel": "plant/2/temp"},
    ]
    rows = numbered(row("publish", number, **more) for number, more in enumerate(told))
    whole = batched(spark, tmp_path / "rows", [rows])
    lake = Lake(tmp_path / "lake", tables)
    write = batch_writer(lake, list(tables.values()), "own")
    for number in range(2):
        write(batched(spark, tmp_path / f"rows{number}", [rows[number::2]]), number)
    for name, found in tables.items():
        assert collected(lake.read(name, spark)) == collected(found.build(whole))
    assert [(one["client"], one["messages"], one["largest"]) for one in collected(lake.read("busiest", spark))] == [
        ("a", 3, 14),
        ("b", 1, 8),
    ]
    assert [one["degrees"] for one in collected(lake.read("alarms", spark))] == [95.0, 99.5]
