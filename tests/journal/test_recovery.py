"""After a crash the journal holds what was safe, and says what it cut off."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

import polywire.journal
from polywire.journal.errors import CorruptBatch, JournalLoss
from polywire.journal.format import END_OF_STREAM, Entry, index_octets, read_index, values
from polywire.journal.log import Log
from polywire.journal.readers import NamedReaders
from polywire.journal.recovery import recover
from polywire.journal.verify import verify
from tests.journal.rows import NODE, rows

ARROW = "00000000000000000000.arrow"
INDEX = "00000000000000000000.index"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three batches of three rows in one segment."""
    folder = tmp_path / "journal"
    with Log(folder, node=NODE) as log:
        for first in (0, 3, 6):
            log.append(rows(first, 3), state=False)
    return folder


def entries_of(folder: Path) -> list[Entry]:
    entries = read_index((folder / INDEX).read_bytes())
    assert entries is not None
    return entries


def offsets(folder: Path, name: str = ARROW) -> list[int]:
    with pa.OSFile(str(folder / name), "rb") as file:
        return values(ipc.open_stream(file).read_all().column("offset"))


def flip(path: Path, position: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        octet = file.read(1)[0]
        file.seek(position)
        file.write(bytes([octet ^ mask]))


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of recoveries need not wait for the disk each time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("quarter", range(4))  # each within its time, on a busy machine too
@pytest.mark.parametrize("indexed", [2, 0, None], ids=["with its index", "with an empty index", "without an index"])
def test_a_tail_torn_at_any_octet_is_cut_back_to_the_last_whole_batch(
    journal: Path, indexed: int | None, quarter: int
) -> None:
    entries = entries_of(journal)
    whole = (journal / ARROW).read_bytes()
    (journal / INDEX).unlink()
    for cut in range(entries[1].end + 1 + quarter, entries[2].end, 4):
        (journal / ARROW).write_bytes(whole[:cut])
        if indexed is not None:
            (journal / INDEX).write_bytes(index_octets(entries[:indexed]))
        recovered = recover(journal)
        report = recovered.report
        assert (recovered.next_offset, recovered.size, recovered.entries[-1].end_offset) == (6, entries[1].end, 6)
        assert (report.position, report.octets, report.lost) == (entries[1].end, cut - entries[1].end, ())
        assert report.kept is not None
        assert report.kept.read_bytes() == whole[entries[1].end : cut]
        assert (journal / ARROW).read_bytes() == whole[: entries[1].end]
        report.kept.unlink()


def test_writing_goes_on_after_a_torn_tail(journal: Path) -> None:
    end = entries_of(journal)[1].end
    os.truncate(journal / ARROW, end + 500)
    os.truncate(journal / INDEX, (journal / INDEX).stat().st_size - 64)
    with Log(journal, node=NODE) as log:
        assert not log.recovery.clean
        assert str(log.recovery).startswith(f"{ARROW}: 500 bytes cut off at {end}")
        assert log.next_offset == 6
        log.append(rows(6, 2), state=False)
    assert offsets(journal) == list(range(8))
    with Log(journal, node=NODE) as log:
        assert log.recovery.clean
        assert log.next_offset == 8


def test_a_torn_tail_tells_how_many_rows_it_was_to_have(journal: Path) -> None:
    entries = entries_of(journal)
    os.truncate(journal / ARROW, entries[2].end - 1)
    (journal / INDEX).write_bytes(index_octets(entries[:2]))
    assert recover(journal).report.rows == 3


def test_a_batch_that_is_whole_but_not_yet_in_the_index_is_kept(journal: Path) -> None:
    entries = entries_of(journal)
    (journal / INDEX).write_bytes(index_octets(entries[:2]))
    recovered = recover(journal)
    assert (recovered.report.clean, recovered.report.index_rebuilt, recovered.next_offset) == (True, True, 9)
    assert [entry._replace(flags=0) for entry in entries_of(journal)] == entries
    assert [entry.holds_state for entry in entries_of(journal)] == [False, False, True]


def damaged_indexes() -> dict[str, Callable[[Path], None]]:
    return {
        "missing": Path.unlink,
        "empty": lambda path: path.write_bytes(b"") and None,
        "of another kind": lambda path: flip(path, 0),
        "short": lambda path: os.truncate(path, 100),
        "with a bad entry": lambda path: flip(path, 80),
        "with zeros behind": lambda path: path.write_bytes(path.read_bytes() + bytes(64)) and None,
    }


@pytest.mark.parametrize("damage", damaged_indexes())
def test_an_index_can_be_made_anew(journal: Path, damage: str) -> None:
    entries = entries_of(journal)
    damaged_indexes()[damage](journal / INDEX)
    with Log(journal, node=NODE) as log:
        assert log.recovery.clean
        log.append(rows(9, 1), state=False)
    assert [entry._replace(flags=0) for entry in entries_of(journal)[:3]] == entries
    assert entries_of(journal)[3].first_offset == 9
    assert (journal / INDEX).stat().st_size == 8 + 4 * 64


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("quarter", range(4))
def test_a_bit_flipped_anywhere_in_the_last_batch_loses_it_and_leaves_the_file_as_it_is(
    journal: Path, tmp_path: Path, quarter: int
) -> None:
    last = entries_of(journal)[2]
    spare = tmp_path / "spare"
    for position in range(last.position + quarter, last.end, 4):
        shutil.copytree(journal, spare)
        flip(spare / ARROW, position, 1 << position % 8)
        before = {path.name: path.read_bytes() for path in spare.iterdir()}
        recovered = recover(spare)
        (loss,) = recovered.report.lost
        assert (loss.first_offset, loss.end_offset, recovered.next_offset, recovered.head) == (6, 9, 9, None)
        assert {path.name: path.read_bytes() for path in spare.iterdir()} == before
        shutil.rmtree(spare)


@pytest.mark.parametrize("index", [True, False], ids=["with its index", "without an index"])
def test_a_bit_flipped_anywhere_in_the_middle_loses_no_other_batch(journal: Path, *, index: bool) -> None:
    entries = entries_of(journal)
    middle = entries[1]
    for position in range(middle.position, middle.end):
        flip(journal / ARROW, position, 1 << position % 8)
        (journal / INDEX).write_bytes(index_octets(entries)) if index else (journal / INDEX).unlink()
        recovered = recover(journal)
        assert [entry.first_offset for entry in recovered.entries] == [0, 6]
        assert [(hole.position, hole.end) for hole in recovered.report.damage] == [(middle.position, middle.end)]
        assert (recovered.report.octets, recovered.next_offset) == (0, 9)
        assert "damaged from" in str(recovered.report)
        flip(journal / ARROW, position, 1 << position % 8)


def to_nothing(folder: Path) -> None:
    os.truncate(folder / ARROW, 0)


def to_the_middle_of_its_head(folder: Path) -> None:
    os.truncate(folder / ARROW, 700)


def to_its_head(folder: Path) -> None:
    os.truncate(folder / ARROW, entries_of(folder)[0].position)


def to_a_batch(folder: Path) -> None:
    os.truncate(folder / ARROW, entries_of(folder)[1].end)


def into_a_batch(folder: Path) -> None:
    os.truncate(folder / ARROW, entries_of(folder)[1].end + 100)


def removed(folder: Path) -> None:
    (folder / ARROW).unlink()


LOSSES: list[tuple[Callable[[Path], None], int, str]] = [
    (to_nothing, 0, "the file is empty"),
    (to_the_middle_of_its_head, 0, "its header of"),
    (to_its_head, 0, "the file ends at"),
    (to_a_batch, 6, "the file ends at"),
    (into_a_batch, 6, "is cut off"),
    (removed, 0, "the file is missing; its index lists these rows"),
]


@pytest.mark.parametrize(("lose", "first", "reason"), LOSSES)
def test_rows_that_were_safe_and_are_gone_are_named_and_stay_a_gap_for_every_reader(
    journal: Path, lose: Callable[[Path], None], first: int, reason: str
) -> None:
    index = (journal / INDEX).read_bytes()
    lose(journal)
    with Log(journal, node=NODE) as log:
        (loss,) = log.recovery.lost
        assert (loss.segment, loss.first_offset, loss.end_offset, log.recovery.lost_rows) == (
            ARROW,
            first,
            9,
            9 - first,
        )
        assert f"{9 - first} rows, offsets {first} to 8, were safe in {ARROW} and are lost" in str(log.recovery)
        assert reason in loss.reason
        assert (log.next_offset, log.segment_offset) == (9, 9)
        log.append(rows(9, 2), state=False)
    assert (journal / INDEX).read_bytes() == index
    for _ in range(2):  # and it is not forgotten by the next start
        found = polywire.journal.open(journal)
        with pytest.raises(CorruptBatch) as caught:
            list(found.scan())
        assert (caught.value.segment, caught.value.first_offset, caught.value.rows) == (ARROW, first, 9 - first)
        for batches in (
            found.scan(["offset", "kind"], on_corrupt="gap"),
            (batch for split in found.splits() for batch in split.read(["offset", "kind"], on_corrupt="gap")),
        ):
            rows_found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
            good = [(offset, "publish") for offset in [*range(first), 9, 10]]
            assert rows_found == [*good[:first], (first, "gap"), *good[first:]]
        damage = [finding for each in verify(journal) for finding in each.findings if finding.severity == "damage"]
        assert [(finding.first_offset, finding.rows) for finding in damage] == [(first, 9 - first)]
        with Log(journal, node=NODE) as log:
            assert (log.recovery.clean, log.next_offset) == (True, 11)


@pytest.mark.parametrize(("lose", "first", "reason"), LOSSES)
def test_a_writer_that_refuses_losses_changes_nothing(
    journal: Path, lose: Callable[[Path], None], first: int, reason: str
) -> None:
    lose(journal)
    before = {path.name: path.read_bytes() for path in journal.iterdir()}
    with pytest.raises(JournalLoss, match=f"offsets {first} to 8, .*{reason}.*journal.on_loss=continue"):
        Log(journal, node=NODE, refuse_loss=True)
    assert {path.name: path.read_bytes() for path in journal.iterdir()} == before
    Log(journal, node=NODE).close()
    Log(journal, node=NODE, refuse_loss=True).close()


@pytest.mark.parametrize("proof", ["snapshot", "reader", "index"])
def test_an_offset_that_any_file_proves_was_given_is_not_given_again(journal: Path, proof: str) -> None:
    with Log(journal, node=NODE) as log:
        log.roll()
        log.append(rows(9, 20), state=False)
        log.roll()
    for path in [*journal.glob("*9.*")]:
        path.unlink()  # all that the segments of offset 9 and 29 have left is one of these
    if proof == "snapshot":
        (journal / "00000000000000000029.state").write_bytes(b"")
    elif proof == "reader":
        NamedReaders(journal).put("spark", 29)
    else:
        (journal / "00000000000000000029.index").write_bytes(index_octets([]))
    with Log(journal, node=NODE) as log:
        (loss,) = log.recovery.lost
        assert (loss.first_offset, loss.end_offset, log.next_offset) == (9, 29, 29)
        log.append(rows(29, 1), state=False)
    found = polywire.journal.open(journal).scan(["offset"], on_corrupt="gap")
    assert [offset for batch in found for offset in batch.column(0).to_pylist()] == [*range(10), 29]
    assert [finding.rows for each in verify(journal) for finding in each.findings] == [20]


def test_a_compacted_newest_segment_that_can_t_be_opened_gives_no_offset_again(journal: Path) -> None:
    (journal / ARROW).unlink()
    (journal / INDEX).unlink()
    (journal / ARROW).with_suffix(".parquet").write_bytes(b"PAR1 not at all")
    with Log(journal, node=NODE) as log:
        assert log.next_offset > 9
        assert "it can't be opened" in str(log.recovery)


def test_octets_that_are_no_batch_at_the_end_are_cut_off(journal: Path) -> None:
    for garbage in (bytes(4096), b"\xff" * 64, END_OF_STREAM + b"more", os.urandom(1000)):
        whole = (journal / ARROW).read_bytes()
        (journal / ARROW).write_bytes(whole + garbage)
        recovered = recover(journal)
        assert (recovered.size, recovered.report.octets, recovered.ended) == (len(whole), len(garbage), False)


def test_tails_of_several_crashes_are_all_kept(journal: Path) -> None:
    whole = (journal / ARROW).read_bytes()
    for garbage in (b"one", b"two", b"three"):
        (journal / ARROW).write_bytes(whole + garbage)
        recover(journal)
    assert sorted(path.read_bytes() for path in journal.glob("*.torn-*")) == [b"one", b"three", b"two"]


def test_a_segment_cut_off_in_its_head_is_begun_anew(journal: Path) -> None:
    with Log(journal, node=NODE) as log:
        log.roll()
    name = "00000000000000000009.arrow"
    head = (journal / name).read_bytes()
    for cut in (0, 1, 500, len(head) - 1):
        (journal / name).write_bytes(head[:cut])
        with Log(journal, node=NODE) as log:
            assert (log.next_offset, log.segment_offset, log.recovery.octets) == (9, 9, cut)
        assert (journal / name).read_bytes() == head


def test_a_segment_that_was_ended_before_the_next_was_made_is_left_alone(journal: Path) -> None:
    with (journal / ARROW).open("ab") as file:
        file.write(END_OF_STREAM)
    whole = (journal / ARROW).read_bytes()
    with Log(journal, node=NODE) as log:
        assert (log.recovery.clean, log.next_offset, log.segment_offset) == (True, 9, 9)
    assert (journal / ARROW).read_bytes() == whole


def test_a_damaged_head_is_made_again_and_the_segment_goes_on(journal: Path) -> None:
    whole = (journal / ARROW).read_bytes()
    for position in (0, 5, 100, 700, 1387, 2000):
        flip(journal / ARROW, position, 1)
        with Log(journal, node=NODE) as log:
            assert (log.next_offset, log.segment_offset, log.recovery.octets) == (9, 0, 0)
            assert "damaged from 0 to" in str(log.recovery)
            assert "the head was rewritten" in str(log.recovery)
        assert (journal / ARROW).read_bytes() == whole


def test_batches_behind_a_head_that_is_lost_are_not_thrown_away(journal: Path) -> None:
    with (journal / ARROW).open("r+b") as file:
        file.write(bytes(512))
    whole = (journal / ARROW).read_bytes()
    with Log(journal, node=NODE) as log:
        assert (log.next_offset, log.segment_offset) == (9, 9)
        assert "damaged from 0 to" in str(log.recovery)
    assert (journal / ARROW).read_bytes() == whole


def test_a_batch_forged_inside_a_damaged_one_is_not_taken_for_one(tmp_path: Path) -> None:
    with Log(tmp_path / "forged", node=NODE) as log:
        log.append(rows(9, 3, body=b"forged"), state=False)
    (entry,) = entries_of(tmp_path / "forged")
    forged = (tmp_path / "forged" / ARROW).read_bytes()[entry.position : entry.end]
    folder = tmp_path / "journal"
    with Log(folder, node=NODE) as log:
        log.append(rows(0, 1), state=False)
        log.append(rows(1, 1, body=os.urandom(4 * len(forged))), state=False)
        log.append(rows(20, 1), state=False)
    damaged = entries_of(folder)[1]
    with (folder / ARROW).open("r+b") as file:
        file.seek(damaged.position)
        file.write(bytes(8))
        file.seek((damaged.position + damaged.length // 4) // 8 * 8)
        file.write(forged)
    (folder / INDEX).unlink()
    assert [found.first_offset for found in recover(folder).entries] == [0, 20]


def test_a_new_folder_has_nothing_to_recover(tmp_path: Path) -> None:
    tmp_path.joinpath("notes.txt").write_text("not a segment", encoding="utf-8")
    with Log(tmp_path, node=NODE) as log:
        assert (log.recovery.clean, str(log.recovery), log.next_offset) == (True, "the journal is new", 0)
