"""A journal written by hand, and the tables it gives: ``golden/<table>.json``, read by people before they were kept.

``python -m tests.pipeline.tables.test_golden`` writes them anew, to be looked at.
"""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from polywire.pipeline.spark import spark_session
from polywire.pipeline.tables import TABLES
from tests.pipeline.tables.rows import batched, collected, numbered, row

pytestmark = pytest.mark.timeout(900)

GOLDEN = Path(__file__).with_name("golden")


def journal() -> list[dict[str, Any]]:
    """The rows of the journal."""
    found = []
    for line in (GOLDEN / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        told["ts"] = datetime.fromisoformat(told["ts"])
        told["body"] = bytes.fromhex(told.pop("hex")) if "hex" in told else told.get("body", "").encode()
        if "attachments" in told:
            told["attachments"] = [bytes.fromhex(one) for one in told["attachments"]]
        found.append(row(told.pop("kind"), 0, **told))
    return numbered(found)


def written(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table as JSON has them."""
    return [{name: _written(value) for name, value in one.items() if value is not None} for one in rows]


def _written(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [_written(one) for one in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value


@pytest.mark.parametrize("name", list(TABLES))
def test_the_journal_gives_the_table_that_was_kept(spark: SparkSession, tmp_path: Path, name: str) -> None:
    made = written(collected(TABLES[name].build(batched(spark, tmp_path, [journal()]))))
    assert made == json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def main() -> None:
    """Write the tables anew."""
    import tempfile  # noqa: PLC0415 - not for tests

    spark = spark_session(app="golden", master="local[2]", memory="1g")
    with tempfile.TemporaryDirectory() as folder:
        rows = batched(spark, Path(folder), [journal()])
        for name, table in TABLES.items():
            text = ",\n".join(json.dumps(one, ensure_ascii=False) for one in written(collected(table.build(rows))))
            (GOLDEN / f"{name}.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
