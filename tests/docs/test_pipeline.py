"""docs/pipeline.md describes the tables as they are."""

import re
from pathlib import Path

import pytest

from polywire.pipeline.table import table
from polywire.pipeline.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


@pytest.mark.parametrize("name", list(TABLES))
def test_every_column_is_described_with_its_type(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = page[page.index(f"### `{name}`") :]
    section = re.split(r"\n##", section[3:], maxsplit=1)[0]
    described = re.findall(r"^\| `(\w+)` \| `?([^\s`]+)`? \| \S", section, re.MULTILINE)
    schema = TABLES[name].schema
    assert schema is not None
    assert described == [(field.name, field.dataType.simpleString()) for field in schema]


def test_every_argument_of_the_decorator_is_described() -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = page[page.index("| argument of `@table`") :]
    described = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert described == set(table.__kwdefaults__ or {})
