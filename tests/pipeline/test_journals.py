import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from polywire.pipeline.journals import ONLY, from_spark, is_glob, locate, next_place, placed


def folders(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def test_a_single_journal_may_be_moved() -> None:
    assert locate(("/data/journal",)) == {ONLY: "/data/journal"}


def test_a_glob_names_journals_from_its_first_wildcard_on(tmp_path: Path) -> None:
    folders(tmp_path, "n1/journal", "n2/journal", "n3/other")
    (tmp_path / "n4").write_text("no folder")
    assert locate((f"{tmp_path}/n*/journal",)) == {
        "n1/journal": f"{tmp_path}/n1/journal",
        "n2/journal": f"{tmp_path}/n2/journal",
    }


def test_a_glob_works_on_any_storage(tmp_path: Path) -> None:
    folders(tmp_path, "a", "b")
    assert locate((f"file://{tmp_path}/[ab]",)) == {"a": f"file://{tmp_path}/a", "b": f"file://{tmp_path}/b"}


def test_several_journals_are_named_as_they_are_written(tmp_path: Path) -> None:
    folders(tmp_path, "x1")
    found = locate(("http://h1:7100", "http://h2:7100", f"{tmp_path}/x?"))
    assert found == {name: name for name in ("http://h1:7100", "http://h2:7100", f"{tmp_path}/x1")}


def test_a_question_mark_in_an_address_is_no_wildcard() -> None:
    assert not is_glob("http://h?x=1")


counts = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1000), min_size=1)


def test_a_step_goes_to_what_is_safe() -> None:
    assert next_place({"a": 5}, {"a": 9}, {"a": 0}, None) == {"a": 9}


def test_a_journal_that_is_new_begins_where_it_does() -> None:
    assert next_place({"a": 5}, {"a": 5, "b": 20}, {"a": 0, "b": 10}, 4) == {"a": 5, "b": 14}


def test_one_that_is_gone_keeps_its_place() -> None:
    assert next_place({"a": 5, "b": 7}, {"a": 6}, {"a": 0}, None) == {"a": 6, "b": 7}


def test_a_step_never_goes_back() -> None:
    assert next_place({"a": 5}, {"a": 3}, {"a": 0}, None) == {"a": 5}


def test_a_limit_is_shared_and_what_one_leaves_others_get() -> None:
    assert next_place({}, {"a": 10, "b": 100, "c": 100}, {"a": 0, "b": 0, "c": 0}, 60) == {"a": 10, "b": 25, "c": 25}


def test_places_are_always_written_alike() -> None:
    assert json.dumps(placed({"b": 1, "a": 2})) == json.dumps(from_spark({"a": 2, "b": 1}))


@given(counts, st.integers(1, 3000))
def test_a_limit_is_used_up_and_never_passed(waiting: dict[str, int], rows: int) -> None:
    end = next_place({}, waiting, dict.fromkeys(waiting, 0), rows)
    assert sum(end.values()) == min(rows, sum(waiting.values()))
    assert all(end[name] <= waiting[name] for name in waiting)
