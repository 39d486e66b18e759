from pathlib import Path

from polywire.pipeline.journals import ONLY, is_glob, locate


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
