from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from polywire.pipeline.errors import PipelineError
from polywire.pipeline.runner import arrange, closure, forget_state
from polywire.pipeline.status import Notes
from polywire.pipeline.table import Table


def same(rows: DataFrame) -> DataFrame:
    return rows


def tables(*more: Table) -> dict[str, Table]:
    found = (
        Table("plain", same, "", columns=("offset", "body")),
        Table("other", same, "", columns=("offset", "kind"), kinds=("publish",)),
        Table("state", same, "", stateful=True, columns=("ts",)),
        Table("made", same, "", after="state"),
        *more,
    )
    return {table.name: table for table in found}


def arranged(known: dict[str, Table], notes: Notes, *wanted: str) -> dict[str, list[str]]:
    groups = arrange(closure(wanted or tuple(known), known), known, notes)
    return {group.query: [table.name for table in group.tables] for group in groups}


def test_tables_without_state_share_one_query(tmp_path: Path) -> None:
    assert arranged(tables(), Notes(str(tmp_path))) == {"rows": ["plain", "other"], "state": ["state", "made"]}


def test_a_table_comes_with_what_it_is_made_of_and_what_is_made_of_it() -> None:
    for name in ("state", "made"):
        assert [table.name for table in closure([name], tables())] == ["state", "made"]


def test_a_table_that_comes_later_gets_a_query_of_its_own(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path))
    arranged(tables(), notes)
    more = tables(Table("new", same, ""))
    assert arranged(more, notes) == {"rows": ["plain", "other"], "state": ["state", "made"], "rows-2": ["new"]}
    assert arranged(more, notes, "new") == {"rows-2": ["new"]}


def test_the_tables_of_a_query_stay_together(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path))
    arranged(tables(), notes)
    assert arranged(tables(), notes, "other") == {"rows": ["plain", "other"]}


def test_a_query_reads_only_what_its_tables_need(tmp_path: Path) -> None:
    rows, state = arrange(closure(tuple(tables()), tables()), tables(), Notes(str(tmp_path)))
    assert rows.columns == ("body", "kind", "offset")
    assert rows.kinds == ()
    assert state.columns == ("ts",)
    only = arrange(closure(["other"], tables()), tables(), Notes(str(tmp_path / "b")))[0]
    assert only.kinds == ("publish",)


def test_what_is_made_of_a_table_can_not_come_after_it(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path))
    arranged(tables(), notes)
    with pytest.raises(PipelineError, match="use another lake"):
        arranged(tables(Table("late", same, "", after="state")), notes)


def test_the_state_of_an_earlier_release_is_not_in_the_way(tmp_path: Path) -> None:
    for name in ("offsets", "state/0/0"):
        (tmp_path / name).mkdir(parents=True)
    for _ in range(2):
        forget_state(f"file://{tmp_path}")
        assert [path.name for path in tmp_path.iterdir()] == ["offsets"]


def test_a_table_there_is_not_is_told_with_those_there_are() -> None:
    with pytest.raises(PipelineError, match="no table 'nothing'; there is made, other, plain, state"):
        closure(["nothing"], tables())
    with pytest.raises(PipelineError, match="'lost' depends on 'gone'"):
        closure(["lost"], tables(Table("lost", same, "", after="gone")))
