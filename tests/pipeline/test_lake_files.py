"""Files of a table change whole or not at all, wherever a writer is killed. Without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polywire.journal.format import values
from polywire.pipeline.errors import LakeError
from polywire.pipeline.lake import Folder, compact_rows


class Killed(Exception):  # noqa: N818 - not an error of anybody
    """Stands for the end of the process."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path, tmp_path / "t", "t")


def stage(folder: Folder, *numbers: int, place: str = "day=2026-01-31") -> Path:
    """Files with one row each, as Spark would have left them."""
    staged = folder.staging()
    (staged / place).mkdir(parents=True)
    for number in numbers:
        pq.write_table(pa.table({"n": [number]}), staged / place / f"part-{number:03d}.parquet")
    return staged


def held(folder: Folder) -> list[int]:
    return sorted(number for path in folder.files() for number in values(pq.ParquetFile(path).read()["n"]))


def kill_after(patch: pytest.MonkeyPatch, method: str, times: int) -> None:
    """The process ends at one of the calls of a method of ``Path``."""
    real = getattr(Path, method)
    left = [times]

    def killing(self: Path, *args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return real(self, *args, **kwargs)

    patch.setattr(Path, method, killing)


def test_a_batch_is_there_once_it_is_committed(folder: Folder) -> None:
    assert folder.committed("q") == -1
    assert folder.move_in(stage(folder, 1, 2), "q", 0, durable=True) == 2
    assert folder.committed("q") == 0
    assert held(folder) == [1, 2]
    assert not list((folder.root / "_staging").iterdir())


@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_a_batch_that_was_cut_short_is_written_anew_and_counts_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    folder.move_in(stage(folder, 1), "q", 0, durable=False)
    with monkeypatch.context() as patch:
        kill_after(patch, "rename", moved)
        kill_after(patch, "replace", 1)  # of those the second is the commit
        with pytest.raises(Killed):
            folder.move_in(stage(folder, 2, 3, 4), "q", 1, durable=False)
    assert folder.committed("q") == 0
    folder.move_in(stage(folder, 2, 3, 4), "q", 1, durable=False)
    assert held(folder) == [1, 2, 3, 4]


def test_another_query_is_left_alone(folder: Folder) -> None:
    folder.move_in(stage(folder, 1), "q", 5, durable=False)
    folder.move_in(stage(folder, 2), "q-2", 5, durable=False)
    folder.move_in(stage(folder, 3), "q", 6, durable=False)
    assert held(folder) == [1, 2, 3]
    assert (folder.committed("q"), folder.committed("q-2")) == (6, 5)


def test_a_name_that_makes_no_file_name_is_refused(folder: Folder) -> None:
    with pytest.raises(LakeError, match="invalid query name 'a/b'"):
        folder.move_in(stage(folder, 1), "a/b", 0, durable=False)


@pytest.mark.parametrize(
    ("method", "times"), [("rename", 0), ("rename", 1), ("unlink", 0), ("unlink", 1), ("unlink", 2)]
)
def test_a_swap_that_was_cut_short_counts_once_before_and_after_it_is_finished(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, method: str, times: int
) -> None:
    folder.move_in(stage(folder, 1, 2), "q", 0, durable=False)
    old = folder.files()
    with monkeypatch.context() as patch:
        kill_after(patch, method, times)
        with pytest.raises(Killed):
            folder.swap(stage(folder, 10, 20), old)
    assert held(folder) == [10, 20]
    with folder.locked():
        pass
    assert held(folder) == [10, 20]
    assert len(list(folder.home.rglob("*.parquet"))) == 2


def test_a_swap_that_was_not_noted_changes_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.move_in(stage(folder, 1), "q", 0, durable=False)
    with monkeypatch.context() as patch:
        kill_after(patch, "replace", 0)
        with pytest.raises(Killed):
            folder.swap(stage(folder, 10), folder.files())
    assert held(folder) == [1]


def test_small_files_of_a_folder_become_one_with_the_same_rows(folder: Folder) -> None:
    for batch in range(9):
        folder.move_in(stage(folder, batch), "q", batch, durable=False)
    folder.move_in(stage(folder, 100, place="day=2026-02-01"), "q", 9, durable=False)
    done = compact_rows(folder, least=8)
    assert (done.before, done.after) == (9, 1)
    assert held(folder) == [*range(9), 100]
    assert len(folder.files()) == 2
    assert folder.days() == ["2026-01-31", "2026-02-01"]


def test_what_was_joined_is_joined_again_with_what_comes(folder: Folder) -> None:
    for batch in range(6):
        folder.move_in(stage(folder, batch), "q", batch, durable=False)
        compact_rows(folder, least=2)
    assert held(folder) == list(range(6))
    assert len(folder.files()) == 1


def test_files_of_a_batch_that_is_not_committed_are_not_joined(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.move_in(stage(folder, 1, 2), "q", 0, durable=False)
    with monkeypatch.context() as patch:
        kill_after(patch, "replace", 1)
        with pytest.raises(Killed):
            folder.move_in(stage(folder, 3, 4), "q", 1, durable=False)
    compact_rows(folder, least=2)
    folder.move_in(stage(folder, 3, 4), "q", 1, durable=False)
    assert held(folder) == [1, 2, 3, 4]


def test_a_column_that_came_later_is_null_in_older_rows(folder: Folder) -> None:
    folder.move_in(stage(folder, 1), "q", 0, durable=False)
    staged = folder.staging()
    (staged / "day=2026-01-31").mkdir(parents=True)
    pq.write_table(pa.table({"n": [2], "more": ["x"]}), staged / "day=2026-01-31" / "part.parquet")
    folder.move_in(staged, "q", 1, durable=False)
    compact_rows(folder, least=2)
    (file,) = folder.files()
    assert sorted(pq.ParquetFile(file).read().to_pylist(), key=str) == [{"n": 1, "more": None}, {"n": 2, "more": "x"}]
