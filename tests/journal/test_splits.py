"""A journal can be read in parts, elsewhere."""

import pickle
from pathlib import Path

import pytest

import polywire.journal
from polywire.journal import CorruptBatch, Log, Split
from tests.journal.rows import NODE, compact, rows
from tests.journal.test_reader import column
from tests.journal.test_recovery import entries_of, flip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments of three batches of three rows each."""
    with Log(tmp_path, node=NODE) as log:
        for first in range(0, 18, 3):
            log.append(rows(first, 3), state=False)
            if first == 6:
                log.roll()
    return tmp_path


def elsewhere(split: Split) -> Split:
    found: Split = pickle.loads(pickle.dumps(split))  # noqa: S301 - our own
    return found


@pytest.mark.parametrize("rows_each", [1, 4, 100])
@pytest.mark.parametrize(("first", "end"), [(None, None), (0, 18), (4, 5), (1, 17), (9, 9), (5, 100)])
def test_splits_together_are_the_range(folder: Path, rows_each: int, first: int | None, end: int | None) -> None:
    splits = polywire.journal.open(folder).splits(first, end, rows_each)
    wanted = list(range(first or 0, min(18, 18 if end is None else end)))
    found = [offset for split in splits for offset in column(elsewhere(split).read(["offset"]))]
    assert found == wanted
    assert [offset for split in splits for offset in range(split.from_offset, split.to_offset)] == wanted
    if len(wanted) == 18:
        assert len(splits) == {1: 6, 4: 4, 100: 2}[rows_each]


def test_a_split_takes_the_arguments_of_a_scan(folder: Path) -> None:
    split = polywire.journal.open(folder).splits(0, 9)[0]
    assert column(elsewhere(split).read(["channel", "offset"], channels="a/1/*", kinds="publish")) == [1, 4, 7]


def test_a_split_can_be_read_when_its_segment_has_been_compacted(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.roll()
        log.append(rows(3, 3), state=False)
    before = polywire.journal.open(tmp_path).splits(1, 5)
    compact(tmp_path, 0)
    after = polywire.journal.open(tmp_path).splits(1, 5)
    for splits in (before, after):
        assert [column(elsewhere(split).read()) for split in splits] == [[1, 2], [3, 4]]


def test_a_split_of_a_segment_that_is_gone_says_so(folder: Path) -> None:
    split = polywire.journal.open(folder).splits()[0]
    (folder / split.file.name).unlink()
    with pytest.raises(FileNotFoundError):
        list(split.read())


def test_damage_is_met_where_it_is(folder: Path) -> None:
    flip(folder / f"{0:020d}.arrow", entries_of(folder)[1].position + 20)
    (folder / f"{0:020d}.index").unlink()
    splits = [elsewhere(split) for split in polywire.journal.open(folder).splits(rows_each=3)]
    assert [column(split.read(on_corrupt="gap")) for split in splits[:3]] == [[0, 1, 2], [3], [6, 7, 8]]
    assert [column(split.read(on_corrupt="skip")) for split in splits[:3]] == [[0, 1, 2], [], [6, 7, 8]]
    with pytest.raises(CorruptBatch, match="lost are 3 rows from offset 3") as caught:
        list(splits[1].read())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own
