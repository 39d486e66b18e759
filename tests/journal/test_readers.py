"""Named readers."""

import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from polywire.journal.readers import NamedReaders, ReaderNameError


def test_a_journal_without_readers_has_none(tmp_path: Path) -> None:
    assert list(NamedReaders(tmp_path)) == []
    assert NamedReaders(tmp_path).get("spark") is None


def test_a_reader_is_found_where_it_was_put_by_another_process(tmp_path: Path) -> None:
    NamedReaders(tmp_path).put("spark", 41)
    NamedReaders(tmp_path).put("audit.2026", 7)
    NamedReaders(tmp_path).put("spark", 42)
    found = list(NamedReaders(tmp_path))
    assert [(reader.name, reader.offset, reader.problem) for reader in found] == [
        ("audit.2026", 7, ""),
        ("spark", 42, ""),
    ]
    assert NamedReaders(tmp_path).get("spark") == found[1]
    assert found[1].updated is not None
    assert found[1].updated <= datetime.now(UTC)


def test_a_reader_is_a_file_anybody_can_read(tmp_path: Path) -> None:
    NamedReaders(tmp_path).put("spark", 42)
    assert json.loads((tmp_path / "readers" / "spark.json").read_text())["offset"] == 42


def test_a_forgotten_reader_is_gone(tmp_path: Path) -> None:
    readers = NamedReaders(tmp_path)
    readers.put("spark", 42)
    assert readers.forget("spark")
    assert not readers.forget("spark")
    assert list(readers) == []


@pytest.mark.parametrize("name", ["", ".", "..", "../spark", "a/b", "a b", ".hidden", "ä", "x" * 101, "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    readers = NamedReaders(tmp_path)
    for attempt in (lambda: readers.put(name, 1), lambda: readers.get(name), lambda: readers.forget(name)):
        with pytest.raises(ReaderNameError) as caught:
            attempt()
        assert caught.value.name == name
    assert list(tmp_path.rglob("*.json")) == []


def test_a_negative_offset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not be negative"):
        NamedReaders(tmp_path).put("spark", -1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"offset": "7"}', '{"offset": -1}', '{"offset": true}', "{}", "\xff"])
def test_a_reader_whose_file_is_damaged_needs_everything(tmp_path: Path, text: str) -> None:
    NamedReaders(tmp_path).put("spark", 42)
    (tmp_path / "readers" / "spark.json").write_text(text, encoding="latin-1")
    (reader,) = NamedReaders(tmp_path)
    assert reader.offset == 0
    assert str(tmp_path) in reader.problem


def test_a_time_that_is_none_does_no_harm(tmp_path: Path) -> None:
    NamedReaders(tmp_path).put("spark", 42)
    (tmp_path / "readers" / "spark.json").write_text('{"offset": 42, "updated": "yesterday"}')
    (reader,) = NamedReaders(tmp_path)
    assert (reader.offset, reader.updated, reader.problem) == (42, None, "")


def test_other_files_are_no_readers(tmp_path: Path) -> None:
    NamedReaders(tmp_path).put("spark", 42)
    for name in (".spark.json.123", "notes.txt", ".json"):
        (tmp_path / "readers" / name).write_text("{}")
    assert [reader.name for reader in NamedReaders(tmp_path)] == ["spark"]


def test_whoever_looks_while_a_reader_is_moved_sees_a_whole_one(tmp_path: Path) -> None:
    readers = NamedReaders(tmp_path)
    readers.put("spark", 1)
    done = threading.Event()

    def move() -> None:
        for offset in range(1, 500):
            readers.put("spark", offset)
        done.set()

    mover = threading.Thread(target=move)
    mover.start()
    last = 0
    while not done.is_set():
        (reader,) = readers
        assert reader.problem == ""
        assert reader.offset >= last
        last = reader.offset
    mover.join()
