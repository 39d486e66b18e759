from pathlib import Path

import pytest

from polywire.pipeline.errors import PipelineError
from polywire.pipeline.table import load_tables
from polywire.pipeline.tables import TABLES

GOOD = '''
from pyspark.sql import DataFrame
from polywire.pipeline.table import table

@table(columns=("channel",))
def channels(rows: DataFrame) -> DataFrame:
    """Every channel."""
    return rows.select("channel").distinct()
'''


def test_a_file_brings_its_tables(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD)
    found = load_tables(tmp_path / "mine.py", TABLES)
    assert list(found) == ["channels"]
    assert found["channels"].description == "Every channel."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no table: decorate a function"),
        ("1 / 0", "can't be loaded: ZeroDivisionError"),
        (GOOD.replace("channels", "messages"), "already a table 'messages'"),
    ],
)
def test_a_file_that_is_no_use_is_told_why(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(PipelineError, match=words):
        load_tables(tmp_path / "mine.py", TABLES)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such file"):
        load_tables(tmp_path / "mine.py", TABLES)
