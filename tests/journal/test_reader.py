"""A journal is read as one sequence of rows, whatever its segments are like, and only as far as it is safe."""

import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import polywire.journal
from polywire.journal import CorruptBatch, Journal, JournalError, Log, Split
from polywire.journal.format import END_OF_STREAM, index_octets, read_index
from polywire.journal.kinds import QUEUED_FLAG
from polywire.journal.query import Query
from polywire.journal.segments import ArrowSegment
from polywire.journal.storage import FileStorage, SegmentFile
from tests.journal.rows import NODE, SECOND, START, compact, rows
from tests.journal.test_recovery import ARROW, INDEX, entries_of, flip

BEGIN = datetime.fromtimestamp(START // SECOND, UTC)


def write(folder: Path, *batches: Any, roll: bool = False) -> Path:
    with Log(folder, node=NODE) as log:
        for batch in batches:
            log.append(batch, state=False)
            if roll:
                log.roll()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three segments of three rows each, all closed, and an empty one."""
    return write(tmp_path / "journal", rows(0, 3), rows(3, 3), rows(6, 3), roll=True)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """Three batches of three rows in one closed segment, and an empty segment behind it."""
    folder = write(tmp_path / "journal", rows(0, 3), rows(3, 3), rows(6, 3))
    with Log(folder, node=NODE) as log:
        log.roll()
    return folder


def column(batches: Any, name: str = "offset") -> list[Any]:
    return [value for batch in batches for value in batch.column(name).to_pylist()]


def test_all_segments_are_one_sequence(folder: Path) -> None:
    journal = polywire.journal.open(folder)
    assert (journal.first_offset, journal.end_offset) == (0, 9)
    table = pa.Table.from_batches(list(journal.scan()))
    assert table.schema.equals(journal.schema, check_metadata=True)
    assert table.column("offset").to_pylist() == list(range(9))
    assert table.column("body")[4].as_py() == b"body 4"
    assert set(table.column("kind").to_pylist()) == {"publish"}
    assert set(table.column("node").to_pylist()) == {NODE}


def test_compacted_and_other_segments_read_as_one(folder: Path) -> None:
    whole = pa.Table.from_batches(list(polywire.journal.open(folder).scan()))
    compact(folder, 3)
    journal = polywire.journal.open(folder)
    assert [segment.format for segment in journal.segments()] == ["arrow", "parquet", "arrow", "arrow"]
    assert pa.Table.from_batches(list(journal.scan())).combine_chunks().equals(whole.combine_chunks())
    for first in range(10):
        for end in range(first, 10):
            found = column(journal.scan(["offset", "body"], from_offset=first, to_offset=end))
            assert found == list(range(first, end))
    assert column(journal.scan(["channel"], from_offset=4, to_offset=6), "channel") == ["a/1/b", "a/2/b"]


def test_a_segment_that_is_there_in_both_forms_is_read_once(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    compact(folder, 3)
    for suffix in ("arrow", "index"):
        shutil.copy(folder.with_name("copy") / f"{3:020d}.{suffix}", folder)
    assert column(polywire.journal.open(folder).scan()) == list(range(9))


def test_the_newest_segment_can_be_a_compacted_one(folder: Path) -> None:
    for suffix in ("arrow", "index"):
        (folder / f"{9:020d}.{suffix}").unlink()
    compact(folder, 6)
    assert polywire.journal.open(folder).end_offset == 9
    with Log(folder, node=NODE) as log:
        assert (log.next_offset, log.recovery.clean) == (9, True)
        log.append(rows(9, 1), state=False)
    assert column(polywire.journal.open(folder).scan()) == list(range(10))


def test_segments_tell_what_is_in_them(folder: Path) -> None:
    compact(folder, 0)
    with Log(folder, node=NODE) as log:
        log.append(rows(9, 1), state=False)
        segments = polywire.journal.open(folder).segments()
    first, second, _, last = segments
    assert (first.name, first.format, first.closed) == (f"{0:020d}.parquet", "parquet", True)
    assert (first.first_offset, first.end_offset, first.rows) == (0, 3, 3)
    assert (first.min_time, first.max_time) == (BEGIN, BEGIN + timedelta(seconds=2))
    assert first.octets == (folder / first.name).stat().st_size
    assert (second.first_offset, second.end_offset, second.rows, second.closed) == (3, 6, 3, True)
    assert (second.min_time, second.max_time) == (BEGIN + timedelta(seconds=3), BEGIN + timedelta(seconds=5))
    assert second.octets == (folder / second.name).stat().st_size
    assert (last.name, last.rows, last.closed) == (f"{9:020d}.arrow", 1, False)


@pytest.mark.parametrize("compacted", [False, True], ids=["arrow", "parquet"])
def test_rows_are_found_by_their_time(folder: Path, *, compacted: bool) -> None:
    if compacted:
        for first in (0, 3, 6):
            compact(folder, first)
    journal = polywire.journal.open(folder)
    four = BEGIN + timedelta(seconds=4)
    assert column(journal.scan(from_time=four)) == [4, 5, 6, 7, 8]
    assert column(journal.scan(["body"], to_time=four), "body") == [b"body 0", b"body 1", b"body 2", b"body 3"]
    assert column(journal.scan(from_time=four, to_time=four + timedelta(microseconds=1))) == [4]
    assert column(journal.scan(from_time=START + 7 * SECOND)) == [7, 8]
    assert [journal.offset_at(START + after) for after in (-1, 0, 1, 4 * SECOND, 4 * SECOND + 1, 9 * SECOND)] == [
        0,
        0,
        1,
        4,
        5,
        9,
    ]


def test_a_time_needs_a_time_zone(folder: Path) -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        polywire.journal.open(folder).scan(from_time=datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("compacted", [False, True], ids=["arrow", "parquet"])
def test_rows_are_chosen_by_channel_kind_and_protocol(tmp_path: Path, *, compacted: bool) -> None:
    folder = write(
        tmp_path,
        rows(
            0,
            3,
            kind=["publish", "connect", "enqueue"],
            protocol=["mqtt", None, "umq"],
            channel=["a/b", None, "queue/q"],
            flags=[0, 0, QUEUED_FLAG],
        ),
        roll=True,
    )
    if compacted:
        compact(folder, 0)
    journal = polywire.journal.open(folder)
    assert column(journal.scan(kinds=["connect", "ack"])) == [1]
    assert column(journal.scan(["offset", "flags"], kinds="enqueue"), "flags") == [QUEUED_FLAG]
    assert column(journal.scan(protocols=["mqtt", "umq"])) == [0, 2]
    assert column(journal.scan(channels="**")) == [0, 2]
    assert column(journal.scan(["protocol"], channels=["queue/*", "x"], kinds="enqueue"), "protocol") == ["umq"]
    assert list(journal.scan(channels="b")) == []
    assert column(journal.scan(["protocol"]), "protocol") == ["mqtt", None, "umq"]


def test_columns_come_in_the_order_asked_for(folder: Path) -> None:
    batch = next(polywire.journal.open(folder).scan(["body", "offset", "kind"]))
    assert batch.schema.names == ["body", "offset", "kind"]
    assert batch.column("kind").type == pa.utf8()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"columns": ["payload"]}, "there is no column 'payload'; there are offset, ts"),
        ({"kinds": ["publsh"]}, "there is no kind 'publsh'"),
        ({"protocols": "gopher"}, "there is no protocol 'gopher'"),
        ({"on_corrupt": "ignore"}, "on_corrupt is one of raise, gap, skip"),
    ],
)
def test_what_there_is_not_is_refused(folder: Path, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        polywire.journal.open(folder).scan(**wanted)


def test_a_reader_never_sees_what_is_not_in_the_index_of_a_segment_being_written(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.append(rows(3, 3), state=False)
        index = (tmp_path / INDEX).read_bytes()
        (tmp_path / INDEX).write_bytes(index[:-64])
        assert column(polywire.journal.open(tmp_path).scan()) == [0, 1, 2]
        (tmp_path / INDEX).write_bytes(index[:-1])
        assert column(polywire.journal.open(tmp_path).scan()) == [0, 1, 2]
        (tmp_path / INDEX).unlink()
        assert polywire.journal.open(tmp_path).end_offset == 0
        (tmp_path / INDEX).write_bytes(index)
    (tmp_path / INDEX).unlink()
    assert column(polywire.journal.open(tmp_path).scan()) == [0, 1, 2, 3, 4, 5]


def test_a_reader_sees_more_when_it_refreshes(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        journal = polywire.journal.open(tmp_path)
        seen = []
        for first in range(0, 12, 3):
            assert journal.end_offset == first
            log.append(rows(first, 3), state=False)
            assert column(journal.scan()) == list(range(first))
            journal.refresh()
            seen.append(column(journal.scan()))
            if first == 6:
                log.roll()
                journal.refresh()
    journal.refresh()
    assert seen == [list(range(end)) for end in (3, 6, 9, 12)]
    assert column(journal.scan()) == list(range(12))


def test_what_was_added_before_the_writer_ended_is_read_though_its_files_were_listed_before(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 10), state=False)
        journal = polywire.journal.open(tmp_path)
        log.append(rows(10, 10), state=False)
    assert [n for batch in journal.scan(["offset"]) for n in batch.column(0).to_pylist()] == [*range(20)]


def test_following_gives_what_is_there_and_then_what_is_added(tmp_path: Path) -> None:
    stop = threading.Event()
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        found = polywire.journal.open(tmp_path).follow(["offset"], from_offset=1, poll=0.01, stop=stop, kinds="publish")
        assert next(found).column(0).to_pylist() == [1, 2]
        log.append(rows(3, 1), state=False)
        assert next(found).column(0).to_pylist() == [3]
        log.roll()
        log.append(rows(4, 1, kind=["ack"]), state=False)
        log.append(rows(5, 1), state=False)
        assert next(found).column(0).to_pylist() == [5]
        adder = threading.Timer(0.05, lambda: log.append(rows(6, 2), state=False))
        adder.start()
        assert next(found).column(0).to_pylist() == [6, 7]
        adder.join()
        stop.set()
        assert list(found) == []


def test_following_begins_with_what_comes_next_unless_told(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        journal = polywire.journal.open(tmp_path)
        found = journal.follow(from_offset=journal.end_offset, poll=0.01)
        log.append(rows(3, 1), state=False)
        assert next(found).column(0).to_pylist() == [3]


def test_batches_without_state_can_be_left_out(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.append(rows(3, 3), state=True)
        log.append(rows(6, 3), state=False)
        assert column(polywire.journal.open(tmp_path).scan(state_only=True)) == [3, 4, 5]


@pytest.mark.parametrize("change", ["compacted", "removed"])
def test_a_segment_that_goes_while_it_is_to_be_read_is_no_error(folder: Path, change: str) -> None:
    journal = polywire.journal.open(folder)
    assert len(journal.segments()) == 4
    found = journal.scan(["offset"])
    assert next(found).column(0).to_pylist() == [0, 1, 2]
    if change == "compacted":
        compact(folder, 3)
    else:
        for suffix in ("arrow", "index"):
            (folder / f"{3:020d}.{suffix}").unlink()
    assert column(found) == ([3, 4, 5, 6, 7, 8] if change == "compacted" else [6, 7, 8])
    assert journal.end_offset == 9


def places(folder: Path) -> dict[str, Callable[[], Journal]]:
    return {
        "path": lambda: polywire.journal.open(folder),
        "text": lambda: polywire.journal.open(str(folder)),
        "uri": lambda: polywire.journal.open(folder.as_uri()),
        "filesystem": lambda: polywire.journal.open(
            "", filesystem=fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        ),
        "python": lambda: polywire.journal.open(
            "journal", filesystem=fs.SubTreeFileSystem(str(folder.parent), fs.LocalFileSystem())
        ),
    }


@pytest.mark.parametrize("place", ["path", "text", "uri", "filesystem", "python"])
def test_a_journal_can_be_anywhere(folder: Path, place: str) -> None:
    compact(folder, 3)
    assert column(places(folder)[place]().scan()) == list(range(9))


def test_where_there_is_no_journal_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no such directory"):
        polywire.journal.open(tmp_path / "none")
    with pytest.raises(JournalError, match="this is a file"):
        polywire.journal.open(write(tmp_path, rows(0, 1)) / ARROW)
    with pytest.raises(JournalError, match="gopher"):
        polywire.journal.open("gopher://example.org/journal")


def test_an_empty_folder_is_an_empty_journal(tmp_path: Path) -> None:
    journal = polywire.journal.open(tmp_path)
    assert (journal.first_offset, journal.end_offset, journal.segments(), list(journal.scan())) == (0, 0, [], [])
    assert journal.offset_at(START) == 0
    assert journal.splits() == []


@pytest.mark.parametrize("index", ["missing", "of another kind", "short", "with a bad first entry", "with a bad entry"])
def test_a_closed_segment_is_read_whole_whatever_its_index_is_like(single: Path, index: str) -> None:
    path = single / INDEX
    if index == "missing":
        path.unlink()
    elif index == "short":
        os.truncate(path, 100)
    else:
        flip(path, {"of another kind": 0, "with a bad first entry": 10, "with a bad entry": 80}[index])
    with Log(single, node=NODE):
        assert column(polywire.journal.open(single).scan()) == list(range(9))


def test_a_tail_that_a_crash_left_is_not_read_and_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, rows(0, 3), rows(3, 3))
    entries = entries_of(tmp_path)
    (tmp_path / INDEX).write_bytes(index_octets(entries[:1]))
    for cut in (entries[1].end - 1, entries[0].end + 20):
        os.truncate(tmp_path / ARROW, cut)
        assert column(polywire.journal.open(tmp_path).scan()) == [0, 1, 2]


@pytest.mark.parametrize("quarter", range(4))  # each within its time, on a busy machine too
@pytest.mark.parametrize("part", ["head", "first batch", "last batch", "end"])
@pytest.mark.parametrize("with_index", [True, False], ids=["with its index", "without an index"])
def test_a_bit_flipped_anywhere_costs_its_batch_at_most(
    tmp_path: Path, part: str, quarter: int, *, with_index: bool
) -> None:
    write(tmp_path, rows(0, 2), rows(2, 3))
    with Log(tmp_path, node=NODE) as log:
        log.roll()
    first, last = entries_of(tmp_path)
    size = (tmp_path / ARROW).stat().st_size
    assert size == last.end + len(END_OF_STREAM)
    if not with_index:
        (tmp_path / INDEX).unlink()
    good = [(offset, "publish", None) for offset in range(5)]
    parts: dict[str, tuple[int, int, list[tuple[int, str, int | None]]]] = {
        "head": (0, first.position, [*good]),  # it can be made again
        "first batch": (first.position, first.end, [(0, "gap", 2), *good[2:]]),
        "last batch": (last.position, last.end, [*good[:2], (2, "gap", 3)]),
        "end": (last.end, size, [*good]),  # no row depends on the mark
    }
    start, end, found = parts[part]
    for position in range(start + quarter, end, 4):
        flip(tmp_path / ARROW, position, 1 << position % 8)
        batches = polywire.journal.open(tmp_path).scan(["offset", "kind", "headers"], on_corrupt="gap")
        rows_found = pa.Table.from_batches(list(batches)).to_pylist()
        told = [(row["offset"], row["kind"], json.loads(row["headers"] or "{}").get("rows")) for row in rows_found]
        assert told == found
        flip(tmp_path / ARROW, position, 1 << position % 8)


def test_damage_is_an_error_unless_told_otherwise(single: Path) -> None:
    flip(single / ARROW, entries_of(single)[1].position + 700)
    journal = polywire.journal.open(single)
    with pytest.raises(CorruptBatch, match="lost are 3 rows from offset 3") as caught:
        list(journal.scan())
    assert (caught.value.segment, caught.value.first_offset, caught.value.rows) == (ARROW, 3, 3)
    assert caught.value.position == entries_of(single)[1].position
    assert column(journal.scan(on_corrupt="skip")) == [0, 1, 2, 6, 7, 8]


def test_a_row_can_stand_for_what_is_lost(single: Path) -> None:
    entry = entries_of(single)[1]
    flip(single / ARROW, entry.end - 30)
    journal = polywire.journal.open(single)
    table = pa.Table.from_batches(list(journal.scan(on_corrupt="gap")))
    assert table.column("offset").to_pylist() == [0, 1, 2, 3, 6, 7, 8]
    gap = table.slice(3, 1).to_pylist()[0]
    headers = json.loads(gap.pop("headers"))
    assert (gap["kind"], gap["ts"], gap["body"]) == ("gap", BEGIN + timedelta(seconds=3), b"")
    assert headers == {
        "rows": 3,
        "segment": ARROW,
        "position": entry.position,
        "reason": "its CRC does not match",
    }
    assert column(journal.scan(["kind"], from_offset=4, channels="none", on_corrupt="gap"), "kind") == ["gap"]
    assert column(journal.scan(from_offset=4, to_offset=7, on_corrupt="gap")) == [4, 6]
    assert column(journal.scan(to_offset=3)) == [0, 1, 2]
    assert column(journal.scan(from_offset=6)) == [6, 7, 8]


def test_a_closed_segment_that_ends_too_early_is_noticed(single: Path) -> None:
    os.truncate(single / ARROW, entries_of(single)[1].end)
    journal = polywire.journal.open(single)
    with pytest.raises(CorruptBatch, match="before the batch does; lost are 3 rows from offset 6"):
        list(journal.scan())
    assert column(journal.scan(on_corrupt="skip")) == [0, 1, 2, 3, 4, 5]


def test_a_bit_flipped_in_a_compacted_segment_is_noticed(folder: Path) -> None:
    compact(folder, 3)
    path = folder / f"{3:020d}.parquet"
    chunk = pq.read_metadata(path).row_group(0).column(12)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 3)
    journal = polywire.journal.open(folder)
    with pytest.raises(CorruptBatch) as caught:
        list(journal.scan())
    assert (caught.value.segment, caught.value.first_offset, caught.value.rows) == (path.name, 3, 2)
    assert column(journal.scan(on_corrupt="skip")) == [0, 1, 2, 5, 6, 7, 8]
    assert column(journal.scan(on_corrupt="gap"), "kind") == ["publish"] * 3 + ["gap"] + ["publish"] * 4


def test_a_compacted_segment_that_is_none_is_noticed(folder: Path) -> None:
    compact(folder, 3)
    (folder / f"{3:020d}.parquet").write_bytes(b"PAR1 not at all")
    journal = polywire.journal.open(folder)
    with pytest.raises(CorruptBatch, match="it can't be opened"):
        list(journal.scan())
    assert column(journal.scan(on_corrupt="skip")) == [0, 1, 2, 6, 7, 8]
    assert column(journal.scan(on_corrupt="gap")) == [0, 1, 2, 3, 6, 7, 8]


@pytest.mark.parametrize("index", [True, False], ids=["with its index", "without an index"])
def test_a_segment_that_grew_and_was_ended_while_files_were_listed_is_read_whole(single: Path, *, index: bool) -> None:
    if not index:
        (single / INDEX).unlink()
    storage = FileStorage(fs.LocalFileSystem(), str(single))
    listed = entries_of(single)[1].end if index else 5000
    segment = ArrowSegment(storage, SegmentFile(0, "arrow"), listed, behind=9)
    assert column(segment.read(Query())) == list(range(9))
    assert (segment.damage, segment.octets, segment.ended) == ([], (single / ARROW).stat().st_size, True)


@pytest.mark.parametrize("form", ["active", "closed", "compacted", "two files"])
def test_offsets_that_no_batch_has_are_rows_that_were_lost(tmp_path: Path, form: str) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        if form == "two files":
            log.append(rows(3, 7), state=False)
            log.roll()
        log.append(rows(10, 3), state=False)
        if form != "active":
            log.roll()
    if form == "two files":  # the second of three is gone
        entry = entries_of(tmp_path)[0]
        os.truncate(tmp_path / ARROW, entry.end)
        (tmp_path / INDEX).unlink()
    elif form == "compacted":
        compact(tmp_path, 0, row_group_size=3, on_corrupt="skip")
    journal = polywire.journal.open(tmp_path)
    with pytest.raises(CorruptBatch, match="no file has these rows; lost are 7 rows from offset 3"):
        list(journal.scan())
    assert column(journal.scan(on_corrupt="skip")) == [0, 1, 2, 10, 11, 12]
    assert column(journal.scan(on_corrupt="gap")) == [0, 1, 2, 3, 10, 11, 12]
    assert column(journal.scan(on_corrupt="gap", from_offset=5)) == [5, 10, 11, 12]
    assert column(journal.scan(on_corrupt="gap", from_offset=2, to_offset=11)) == [2, 3, 10]
    assert column(batch for split in journal.splits() for batch in split.read(on_corrupt="gap")) == [
        *range(4),
        *range(10, 13),
    ]
    assert (journal.end_offset, sum(segment.rows for segment in journal.segments())) == (13, 6)


def test_a_reader_that_follows_is_shown_rows_that_are_lost_meanwhile(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        journal = polywire.journal.open(tmp_path)
        assert column(journal.scan()) == [0, 1, 2]
        log.append(rows(5, 1), state=False)
        journal.refresh()
        assert column(journal.scan(on_corrupt="gap")) == [0, 1, 2, 3, 5]
        with pytest.raises(CorruptBatch, match="lost are 2 rows from offset 3"):
            list(journal.scan())


def test_large_and_small_batches_come_out_whole(tmp_path: Path) -> None:
    batches = [rows(0, 1, body=os.urandom(5 << 20)), *(rows(first, 1) for first in range(1, 200))]
    journal = polywire.journal.open(write(tmp_path, *batches))
    found = list(journal.scan(["offset", "size"]))
    assert column(found) == list(range(200))
    assert column(found, "size")[0] == 5 << 20
    assert len(found) == 2


def test_the_index_may_be_read_while_an_entry_is_being_written(tmp_path: Path) -> None:
    write(tmp_path, rows(0, 3), rows(3, 3))
    octets = (tmp_path / INDEX).read_bytes()
    for cut in range(8, len(octets) + 1):
        entries = read_index(octets[:cut])
        assert entries is not None
        assert len(entries) == (cut - 8) // 64


@pytest.fixture
def apart(tmp_path: Path) -> Path:
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
def test_splits_together_are_the_range(apart: Path, rows_each: int, first: int | None, end: int | None) -> None:
    splits = polywire.journal.open(apart).splits(first, end, rows_each)
    wanted = list(range(first or 0, min(18, 18 if end is None else end)))
    found = [offset for split in splits for offset in column(elsewhere(split).read(["offset"]))]
    assert found == wanted
    assert [offset for split in splits for offset in range(split.from_offset, split.to_offset)] == wanted
    if len(wanted) == 18:
        assert len(splits) == {1: 6, 4: 4, 100: 2}[rows_each]


def test_a_split_takes_the_arguments_of_a_scan(apart: Path) -> None:
    split = polywire.journal.open(apart).splits(0, 9)[0]
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


def test_a_split_of_a_segment_that_is_gone_says_so(apart: Path) -> None:
    split = polywire.journal.open(apart).splits()[0]
    (apart / split.file.name).unlink()
    with pytest.raises(FileNotFoundError):
        list(split.read())


def test_damage_is_met_where_it_is(apart: Path) -> None:
    flip(apart / f"{0:020d}.arrow", entries_of(apart)[1].position + 20)
    (apart / f"{0:020d}.index").unlink()
    splits = [elsewhere(split) for split in polywire.journal.open(apart).splits(rows_each=3)]
    assert [column(split.read(on_corrupt="gap")) for split in splits[:3]] == [[0, 1, 2], [3], [6, 7, 8]]
    assert [column(split.read(on_corrupt="skip")) for split in splits[:3]] == [[0, 1, 2], [], [6, 7, 8]]
    with pytest.raises(CorruptBatch, match="lost are 3 rows from offset 3") as caught:
        list(splits[1].read())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own
