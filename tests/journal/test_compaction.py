"""Compaction: the same rows as Parquet, in place of the segment, at no moment twice or not at all."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polywire.journal import compaction
from polywire.journal.compaction import Compacted, compact, compactable
from polywire.journal.errors import CorruptBatch, JournalError
from polywire.journal.format import PLAIN_SCHEMA, read_index
from polywire.journal.log import Log
from polywire.journal.storage import choose_segments
from tests.journal.rows import rows

FIRST = "00000000000000000000"


def write_segments(folder: Path, *segments: list[Any]) -> list[Path]:
    """A journal with a closed segment for each list of batches, and an active one without rows."""
    with Log(folder, node="here") as log:
        for batches in segments:
            for batch in batches:
                log.append(batch, state=False)
            log.roll()
    return compactable(folder)


def plain(batches: list[Any]) -> Any:
    return pa.Table.from_batches(batches).cast(PLAIN_SCHEMA)


def odd_rows(first: int, count: int) -> Any:
    """Rows in which nearly everything is something."""
    made = rows(
        first,
        count,
        kind=["enqueue", "discard"] * (count // 2),
        protocol=["mqtt", None] * (count // 2),
        client=[f"c{n}" for n in range(count)],
        channel=[None, "queue/x"] * (count // 2),
        correlation=["1", None] * (count // 2),
        content_type=["text/plain", None] * (count // 2),
        headers=['{"a":1}', None] * (count // 2),
        attachments=[[b"\0\xff", b""], None] * (count // 2),
        flags=[256, 0] * (count // 2),
    )
    bodies = pa.array([os.urandom(n) for n in range(count)], pa.binary())
    return made.set_column(made.schema.names.index("body"), made.schema.field("body"), bodies)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_compacted_segment_has_the_same_rows(tmp_path: Path) -> None:
    batches = [rows(0, 5), odd_rows(5, 20), rows(25, 1), rows(26, 3)]
    (path,) = write_segments(tmp_path, batches)
    before = path.stat().st_size
    done = compact(path)
    assert (done.name, done.rows, done.octets_before) == (f"{FIRST}.parquet", 29, before)
    assert pq.read_table(tmp_path / done.name).cast(PLAIN_SCHEMA).equals(plain(batches))
    assert done.octets == (tmp_path / done.name).stat().st_size
    assert names_in(tmp_path) == [
        f"{FIRST}.parquet",
        "00000000000000000029.arrow",
        "00000000000000000029.index",
        "lock",
    ]


@pytest.mark.parametrize("lost", ["in the middle", "at the end", "all"])
def test_a_segment_that_has_lost_rows_is_not_compacted(tmp_path: Path, lost: str) -> None:
    second = 8 if lost == "in the middle" else 5
    (path,) = write_segments(tmp_path, [rows(0, 5), rows(second, 3)])
    (entry, _) = read_index(path.with_suffix(".index").read_bytes()) or []
    if lost != "in the middle":
        os.truncate(path, entry.end if lost == "at the end" else 0)
    with pytest.raises(CorruptBatch):
        compact(path)
    assert path.exists()
    assert path.with_suffix(".index").exists()


def test_codes_are_read_as_text_by_everybody(tmp_path: Path) -> None:
    (path,) = write_segments(tmp_path, [rows(0, 5)])
    compact(path)
    schema = pq.read_schema(tmp_path / f"{FIRST}.parquet")
    assert [str(schema.field(name).type) for name in ("node", "kind", "protocol", "ts")] == [
        "string",
        "string",
        "string",
        "timestamp[us, tz=UTC]",
    ]
    assert schema.metadata == {b"polywire.journal": b"1"}


def test_rows_can_be_left_out_by_their_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "GROUP_ROWS", 100)
    monkeypatch.setattr(compaction, "CHUNK_ROWS", 10)
    (path,) = write_segments(tmp_path, [rows(n * 4, 4) for n in range(60)])
    seen: list[int] = []
    compact(path, told=seen.append)
    metadata = pq.read_metadata(tmp_path / f"{FIRST}.parquet")
    assert seen == [108, 216, 240]
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    offsets = [group.column(PLAIN_SCHEMA.names.index("offset")).statistics for group in groups]
    assert [(each.min, each.max) for each in offsets if each is not None] == [(0, 107), (108, 215), (216, 239)]
    channel = groups[0].column(PLAIN_SCHEMA.names.index("channel"))
    assert channel.statistics is not None
    assert (channel.statistics.min, channel.statistics.max, channel.compression) == ("a/0/b", "a/2/b", "ZSTD")
    assert "RLE_DICTIONARY" in channel.encodings


def test_large_bodies_end_a_row_group_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "GROUP_OCTETS", 1000)
    monkeypatch.setattr(compaction, "CHUNK_ROWS", 1)
    (path,) = write_segments(tmp_path, [rows(n, 1, body=b"x" * 400) for n in range(9)])
    compact(path)
    assert pq.read_metadata(tmp_path / f"{FIRST}.parquet").num_row_groups > 3


def test_damage_to_a_page_is_noticed(tmp_path: Path) -> None:
    (path,) = write_segments(tmp_path, [odd_rows(0, 200)])
    name = tmp_path / compact(path).name
    octets = bytearray(name.read_bytes())
    octets[len(octets) // 3] ^= 1
    name.write_bytes(octets)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(name, page_checksum_verification=True)


def test_all_but_the_newest_segment_can_be_compacted(tmp_path: Path) -> None:
    write_segments(tmp_path, [rows(0, 5)], [rows(5, 5)], [rows(10, 5)])
    assert [path.name[:20] for path in compactable(tmp_path)] == [FIRST, f"{5:020}", f"{10:020}"]
    compact(compactable(tmp_path)[0])
    assert [path.name[:20] for path in compactable(tmp_path)] == [f"{5:020}", f"{10:020}"]


def test_a_segment_without_its_index_is_compacted_too(tmp_path: Path) -> None:
    (path,) = write_segments(tmp_path, [rows(0, 5), rows(5, 5)])
    path.with_suffix(".index").unlink()
    assert compact(path).rows == 10


def test_whoever_has_the_old_file_open_reads_on(tmp_path: Path) -> None:
    batches = [rows(n * 10, 10) for n in range(5)]
    (path,) = write_segments(tmp_path, batches)
    with pa.memory_map(str(path)) as octets:
        stream = pa.ipc.open_stream(octets)
        first = stream.read_next_batch()
        compact(path)
        assert not path.exists()
        assert plain([first, *stream]).equals(plain(batches))


def test_whoever_lists_meanwhile_finds_each_segment_once(tmp_path: Path) -> None:
    write_segments(tmp_path, *([rows(n * 10, 10)] for n in range(20)))
    wanted = [segment.first_offset for segment in choose_segments(names_in(tmp_path))]
    done = threading.Event()

    def work() -> None:
        try:
            for path in compactable(tmp_path):
                compact(path)
        finally:
            done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.is_set():
        assert [segment.first_offset for segment in choose_segments(names_in(tmp_path))] == wanted
    worker.join()
    assert [segment.format for segment in choose_segments(names_in(tmp_path))] == ["parquet"] * 20 + ["arrow"]


def test_a_damaged_head_is_mended_on_the_way(tmp_path: Path) -> None:
    (path,) = write_segments(tmp_path, [rows(n * 10, 10) for n in range(20)])
    octets = bytearray(path.read_bytes())
    octets[100] ^= 1
    path.write_bytes(octets)
    assert compact(path).rows == 200


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_damaged_segment_stays_as_it_is(tmp_path: Path, place: float) -> None:
    (path,) = write_segments(tmp_path, [rows(n * 10, 10) for n in range(20)])
    octets = bytearray(path.read_bytes())
    octets[int(len(octets) * place)] ^= 1
    path.write_bytes(octets)
    names = names_in(tmp_path)
    with pytest.raises(CorruptBatch) as caught:
        compact(path)
    assert caught.value.segment == path.name
    assert names_in(tmp_path) == names
    assert path.read_bytes() == octets


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_segment_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (path,) = write_segments(tmp_path, [rows(0, 5)])
    names = names_in(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[step], fails)
    with pytest.raises(OSError, match="No space left"):
        compact(path)
    assert names_in(tmp_path) == names


def test_rows_that_went_missing_on_the_way_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_segments(tmp_path, [rows(0, 5), rows(5, 5)])
    whole = compaction._groups
    monkeypatch.setattr(compaction, "_groups", lambda source: (table.slice(1) for table in whole(source)))
    names = names_in(tmp_path)
    with pytest.raises(JournalError, match="not all rows"):
        compact(path)
    assert names_in(tmp_path) == names


@pytest.mark.parametrize("name", [f"{FIRST}.parquet", f"{FIRST}.index", "lock", "0.arrow"])
def test_only_segments_are_compacted(tmp_path: Path, name: str) -> None:
    with pytest.raises(JournalError, match="not a segment to compact"):
        compact(tmp_path / name)


def run(path: Path, **more: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "polywire.journal.compaction", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50, **more)  # noqa: S603 - ours


def test_a_process_of_its_own_tells_what_it_did(tmp_path: Path) -> None:
    (path,) = write_segments(tmp_path, [rows(0, 5)])
    ours, theirs = os.pipe()
    try:
        done = run(path, stdin=ours)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")
    assert Compacted(**json.loads(done.stdout)).rows == 5


def test_a_process_of_its_own_tells_damage_from_other_failures(tmp_path: Path) -> None:
    (path,) = write_segments(tmp_path, [rows(0, 5)])
    ours, theirs = os.pipe()
    try:
        missing = run(tmp_path / f"{9:020}.arrow", stdin=ours)
        octets = bytearray(path.read_bytes())
        octets[-40] ^= 1
        path.write_bytes(octets)
        damaged = run(path, stdin=ours)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (missing.returncode, damaged.returncode) == (1, compaction.DAMAGED)
    assert "No such file" in missing.stderr
    assert path.name in damaged.stderr


def test_a_process_of_its_own_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.arrow"
    os.mkfifo(path)  # nobody ever writes to it, so it can't be read either
    assert run(path, stdin=subprocess.DEVNULL).returncode == 1
