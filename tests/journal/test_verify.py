"""What is wrong with a journal is found, and told apart from what only looks so."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from polywire.journal import JournalError, Log
from polywire.journal.format import index_octets
from polywire.journal.verify import Finding, Verified, verify
from tests.journal.rows import NODE, compact, rows
from tests.journal.test_recovery import ARROW, INDEX, entries_of, flip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed segment of three batches, one that was compacted, and one that can be continued."""
    with Log(tmp_path, node=NODE) as log:
        for first in (0, 1, 2):
            log.append(rows(first, 1), state=False)
        log.roll()
        log.append(rows(3, 3), state=False)
        log.roll()
        log.append(rows(6, 3), state=False)
    compact(tmp_path, 3)
    return tmp_path


def findings(folder: Path) -> list[tuple[str, Finding]]:
    return [(found.name, finding) for found in verify(folder) for finding in found.findings]


def test_a_sound_journal_is_sound(folder: Path) -> None:
    first, second, last = verify(folder)
    size = (folder / ARROW).stat().st_size
    assert first == Verified(ARROW, 0, 3, octets=size, batches=3, rows=3)
    assert (second.name, second.first_offset, second.end_offset, second.batches) == (f"{3:020d}.parquet", 3, 6, 2)
    assert (last.end_offset, last.rows) == (9, 3)
    assert all(found.sound and not found.findings for found in (first, second, last))


def test_a_new_journal_is_sound_and_a_directory_without_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"{tmp_path}: no journal found, .*journal.path"):
        list(verify(tmp_path))
    with Log(tmp_path, node=NODE):
        (found,) = verify(tmp_path)
        assert (found.sound, found.rows, found.octets) == (True, 0, 0)


def test_a_bit_flipped_anywhere_is_found(folder: Path) -> None:
    entries = entries_of(folder)
    size = (folder / ARROW).stat().st_size
    for position in [*range(0, entries[0].end, 3), *range(entries[2].position, size)]:
        flip(folder / ARROW, position, 1 << position % 8)
        first = next(verify(folder))
        assert first.findings
        assert first.sound == (position < entries[0].position or position >= entries[2].end)
        flip(folder / ARROW, position, 1 << position % 8)


def test_damage_tells_which_rows_are_lost(folder: Path) -> None:
    entry = entries_of(folder)[1]
    flip(folder / ARROW, entry.end - 1)
    assert findings(folder) == [
        (ARROW, Finding("damage", entry.position, "its CRC does not match", first_offset=1, rows=1))
    ]
    assert str(findings(folder)[0][1]).endswith("does not match; lost from offset 1: 1 rows")


def test_a_bit_flipped_in_a_compacted_segment_is_found(folder: Path) -> None:
    path = folder / f"{3:020d}.parquet"
    chunk = pq.read_metadata(path).row_group(1).column(12)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 3)
    ((name, finding),) = findings(folder)
    assert (name, finding.severity, finding.first_offset, finding.rows) == (path.name, "damage", 5, 1)
    path.write_bytes(b"nothing")
    ((name, finding),) = findings(folder)
    assert (finding.severity, finding.first_offset, finding.rows) == ("damage", 3, 3)


@pytest.mark.parametrize(
    ("index", "note"),
    [(None, "its index is missing or damaged"), (1, "its index does not list 2 of 3 batches")],
)
def test_an_index_that_is_not_whole_is_worth_a_note(folder: Path, index: int | None, note: str) -> None:
    entries = entries_of(folder)
    if index is None:
        (folder / INDEX).unlink()
    else:
        (folder / INDEX).write_bytes(index_octets(entries[:index]))
    assert findings(folder) == [(ARROW, Finding("note", 0, note))]


def test_a_tail_that_a_crash_left_is_worth_a_note(folder: Path) -> None:
    name = f"{6:020d}.arrow"
    with (folder / name).open("ab") as file:
        file.write(b"\xff\xff\xff\xff")
    ((found, finding),) = findings(folder)
    assert (found, finding.severity, finding.reason) == (
        name,
        "note",
        "a crash left 4 bytes: only 4 bytes are left",
    )


def test_a_segment_that_lost_its_end_is_damaged_or_not(folder: Path) -> None:
    entries = entries_of(folder)
    os.truncate(folder / ARROW, entries[2].end)
    assert [finding.severity for _, finding in findings(folder)] == ["note"]
    os.truncate(folder / ARROW, entries[2].end - 10)
    assert ("damage", 2, 1) in [
        (finding.severity, finding.first_offset, finding.rows) for _, finding in findings(folder)
    ]


def test_segments_that_overlap_are_damaged(folder: Path) -> None:
    for suffix in ("arrow", "index"):
        (folder / f"{6:020d}.{suffix}").rename(folder / f"{5:020d}.{suffix}")
    assert [(name, finding.reason) for name, finding in findings(folder)] == [
        (f"{5:020d}.arrow", "it starts at offset 5, before the previous one ends"),
        (f"{5:020d}.arrow", "no file has these rows"),
    ]


@pytest.mark.parametrize("offset", [0, 3])
def test_a_file_that_is_gone_from_the_middle_is_found(folder: Path, offset: int) -> None:
    """The first one may have been deleted by the hub; what is after it may not."""
    for path in folder.glob(f"{offset:020d}.*"):
        path.unlink()
    expected = [(ARROW, "no file has these rows", 3, 3)] if offset else []
    assert [(name, each.reason, each.first_offset, each.rows) for name, each in findings(folder)] == expected


def test_a_newest_file_that_is_gone_is_found_by_its_index(folder: Path) -> None:
    (folder / f"{6:020d}.arrow").unlink()
    assert findings(folder) == [
        (f"{6:020d}.arrow", Finding("damage", 0, "the file is missing; its index lists these rows", 6, 3))
    ]


def test_a_newest_file_that_is_empty_is_damaged_where_its_index_lists_rows(folder: Path) -> None:
    os.truncate(folder / f"{6:020d}.arrow", 0)
    assert findings(folder) == [(f"{6:020d}.arrow", Finding("damage", 0, "the file is empty", 6, 3))]
    (folder / f"{6:020d}.index").unlink()
    ((_, finding),) = findings(folder)
    assert finding.severity == "note"


def test_a_compacted_segment_with_fewer_rows_than_offsets_is_damaged(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.append(rows(5, 3), state=False)
        log.roll()
    compact(tmp_path, 0, row_group_size=10, on_corrupt="skip")
    assert [finding.reason for _, finding in findings(tmp_path)] == ["it has 6 rows for 8 offsets"]


def test_what_a_writer_is_just_adding_is_not_looked_at(folder: Path) -> None:
    with Log(folder, node=NODE) as log:
        log.append(rows(9, 1), state=False)
        with (folder / f"{6:020d}.arrow").open("ab") as file:
            file.write(b"half a batch")
        assert findings(folder) == []
        assert list(verify(folder))[-1].rows == 4
