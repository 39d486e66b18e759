"""What is appended is there, in order, and only when it is safe."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from polywire.journal.errors import JournalLocked
from polywire.journal.format import ENTRY_OCTETS, MAGIC, read_index
from polywire.journal.log import Log
from polywire.journal.storage import writer_alive
from tests.journal.rows import NODE, SECOND, START, rows

FIRST = "00000000000000000000"


def read(path: Path) -> Any:
    """All rows of one segment, by Arrow itself."""
    with pa.OSFile(str(path), "rb") as file, ipc.open_stream(file) as reader:
        return reader.read_all()


def offsets(path: Path) -> list[int]:
    found: list[int] = read(path).column("offset").to_pylist()
    return found


def test_what_is_appended_is_an_arrow_stream(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.append(rows(3, 2), state=True)
        assert log.next_offset == 5
    expected = pa.Table.from_batches([rows(0, 3), rows(3, 2)])
    assert read(tmp_path / f"{FIRST}.arrow").equals(expected)


def test_each_batch_names_its_first_offset_and_its_crc(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.append(rows(3, 2), state=False)
    entries = read_index((tmp_path / f"{FIRST}.index").read_bytes())
    assert entries is not None
    with pa.OSFile(str(tmp_path / f"{FIRST}.arrow"), "rb") as file:
        reader = ipc.open_stream(file)
        found = [dict(reader.read_next_batch_with_custom_metadata().custom_metadata) for _ in range(2)]
    assert [metadata[b"polywire.offset"] for metadata in found] == [b"0", b"3"]
    assert [metadata[b"polywire.crc"] for metadata in found] == [b"crc32:%08x" % entry.crc for entry in entries]


def test_the_index_tells_rows_places_times_and_state(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.append(rows(3, 2, ts=[START + 50 * SECOND, START]), state=True)
    size = (tmp_path / f"{FIRST}.arrow").stat().st_size
    entries = read_index((tmp_path / f"{FIRST}.index").read_bytes())
    assert entries is not None
    first, second = entries
    assert (first.first_offset, first.rows, first.holds_state) == (0, 3, False)
    assert (second.first_offset, second.rows, second.holds_state) == (3, 2, True)
    assert (first.min_ts, first.max_ts) == (START, START + 2 * SECOND)
    assert (second.min_ts, second.max_ts) == (START, START + 50 * SECOND)
    assert (first.end, second.end) == (second.position, size)


def test_an_index_entry_is_written_only_when_its_batch_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    with Log(tmp_path, node=NODE) as log:
        names = {log._active._data: "data", log._active._index: "index"}

        def pwrite(descriptor: int, octets: bytes, position: int, real: Callable[..., int] = os.pwrite) -> int:
            steps.append(f"write {names[descriptor]}")
            return real(descriptor, octets, position)

        def fdatasync(descriptor: int, real: Callable[[int], None] = os.fdatasync) -> None:
            steps.append(f"sync {names[descriptor]}")
            real(descriptor)

        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        log.append(rows(0, 3), state=False)
    assert steps == ["write data", "sync data", "write index"]


def test_the_operating_system_may_decide_when_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _: pytest.fail("synced"))
    with Log(tmp_path, node=NODE, fsync="os") as log:
        log.append(rows(0, 3), state=False)
    assert offsets(tmp_path / f"{FIRST}.arrow") == [0, 1, 2]


def test_a_full_segment_is_ended_and_the_next_begins_where_it_ended(tmp_path: Path) -> None:
    rolled: list[tuple[int, int]] = []
    with Log(tmp_path, node=NODE, segment_octets=1) as log:
        log.on_roll = lambda offset: rolled.append((offset, log.next_offset))
        log.append(rows(0, 3), state=False)
        log.append(rows(3, 2), state=False)
        log.append(rows(7, 1), state=False)
        assert log.segment_offset == 7
    assert rolled == [(3, 3), (7, 7)]
    names = ["00000000000000000000.arrow", "00000000000000000003.arrow", "00000000000000000007.arrow"]
    assert sorted(path.name for path in tmp_path.glob("*.arrow")) == names
    assert [offsets(tmp_path / name) for name in names] == [[0, 1, 2], [3, 4], [7]]
    ends = [(tmp_path / name).read_bytes().endswith(b"\xff\xff\xff\xff\0\0\0\0") for name in names]
    assert ends == [True, True, False]


class Clocks:
    """Both clocks, as a test sets them: ``pass_by`` moves both, ``wall`` can also be set."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.wall = START / SECOND

    def pass_by(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr("time.monotonic", lambda: made.monotonic)
    monkeypatch.setattr("time.time", lambda: made.wall)
    return made


def test_a_segment_takes_rows_of_so_many_seconds_also_after_a_restart(tmp_path: Path, clocks: Clocks) -> None:
    with Log(tmp_path, node=NODE, segment_seconds=5) as log:
        log.append(rows(0, 3), state=False)
        clocks.pass_by(3)
        log.append(rows(3, 2), state=False)
        assert log.segment_offset == 0
    clocks.pass_by(2)
    clocks.monotonic = 17.0  # the machine was started again
    with Log(tmp_path, node=NODE, segment_seconds=5) as log:
        assert log.segment_offset == 0
        log.append(rows(5, 1), state=False)
        assert log.segment_offset == 5
        clocks.pass_by(4.9)
        log.append(rows(6, 9), state=False)
        assert log.segment_offset == 5
        clocks.pass_by(0.2)
        log.append(rows(15, 1), state=False)
        assert log.segment_offset == 15


@pytest.mark.parametrize("set_to", [0.0, 4e9], ids=["back", "forward"])
def test_setting_the_wall_clock_neither_ends_a_segment_nor_keeps_it_open(
    tmp_path: Path, clocks: Clocks, set_to: float
) -> None:
    with Log(tmp_path, node=NODE, segment_seconds=5) as log:
        log.append(rows(0, 3), state=False)
        clocks.wall = set_to
        log.append(rows(3, 1, ts=[round(set_to * SECOND)]), state=False)
        assert log.segment_offset == 0
        clocks.pass_by(5)
        log.append(rows(4, 1, ts=[round(clocks.wall * SECOND)]), state=False)
        assert log.segment_offset == 4


def test_a_segment_can_be_ended_early_unless_it_is_empty(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        assert not log.roll()
        log.append(rows(0, 3), state=False)
        assert log.roll()
        assert not log.roll()
        log.append(rows(3, 1), state=False)
    assert offsets(tmp_path / "00000000000000000003.arrow") == [3]


def test_the_next_writer_goes_on_in_the_same_segment(tmp_path: Path) -> None:
    for first in (0, 3, 6):
        with Log(tmp_path, node=NODE) as log:
            assert log.recovery.clean
            assert log.next_offset == first
            log.append(rows(first, 3), state=False)
    assert [path.name for path in tmp_path.glob("*.arrow")] == [f"{FIRST}.arrow"]
    assert offsets(tmp_path / f"{FIRST}.arrow") == list(range(9))


def test_another_node_begins_a_segment_of_its_own(tmp_path: Path) -> None:
    with Log(tmp_path, node="one") as log:
        log.append(rows(0, 3, node="one"), state=False)
    for node in ("two", "three"):
        with Log(tmp_path, node=node) as log:
            assert (log.recovery.clean, log.segment_offset) == (True, 3)
    with Log(tmp_path, node="three") as log:
        log.append(rows(3, 3, node="three"), state=False)
    names = sorted(path.name for path in tmp_path.glob("*.arrow"))
    assert [set(read(tmp_path / name).column("node").to_pylist()) for name in names] == [{"one"}, {"three"}]


def test_offsets_are_consecutive_and_never_used_again(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        with pytest.raises(ValueError, match="consecutive from 3 on, not from 2"):
            log.append(rows(2, 3), state=False)
        with pytest.raises(ValueError, match="consecutive"):
            log.append(rows(3, 3, offset=[3, 4, 6]), state=False)
        log.append(rows(10, 1), state=False)
        log.append(rows(0, 0), state=False)
        assert log.next_offset == 11
    assert offsets(tmp_path / f"{FIRST}.arrow") == [0, 1, 2, 10]


def test_a_batch_with_other_dictionaries_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        with pytest.raises(ValueError, match="not those of the segments of node 'here'"):
            log.append(rows(0, 3, node="elsewhere"), state=False)
        log.append(rows(0, 3), state=False)
    assert offsets(tmp_path / f"{FIRST}.arrow") == [0, 1, 2]


def test_a_huge_batch_of_noise_fits(tmp_path: Path) -> None:
    noise = os.urandom(40 << 20)
    with Log(tmp_path, node=NODE, fsync="os") as log:
        log.append(rows(0, 2, body=noise), state=False)
        log.append(rows(2, 1), state=False)
    found = read(tmp_path / f"{FIRST}.arrow").column("body")
    assert [found[0].as_py() == noise, found[2].as_py()] == [True, b"body 2"]


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    assert not writer_alive(tmp_path)
    with Log(tmp_path, node=NODE):
        assert writer_alive(tmp_path)
        with pytest.raises(JournalLocked, match=f"by process {os.getpid()} \\(node here\\)") as caught:
            Log(tmp_path, node="other")
    assert (caught.value.pid, caught.value.node) == (os.getpid(), NODE)
    assert not writer_alive(tmp_path)
    Log(tmp_path, node="other").close()


class FailingDisk:
    """Fails one call of one kind, after writing a part of what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, nth: int) -> None:
        self.left = nth
        self.failed = False
        self._real: Callable[..., Any] = getattr(os, call)
        self._call = call
        monkeypatch.setattr(os, call, self)

    def __call__(self, descriptor: int, *arguments: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.failed = True
            if self._call == "pwrite":
                self._real(descriptor, arguments[0][: len(arguments[0]) // 2], arguments[1])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._real(descriptor, *arguments)


@pytest.mark.parametrize(("call", "nth"), [("pwrite", 1), ("pwrite", 2), ("fdatasync", 1)])
def test_a_failing_disk_leaves_the_files_as_they_were_and_the_batch_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with monkeypatch.context() as patched:
            disk = FailingDisk(patched, call, nth)
            with pytest.raises(OSError, match="No space left"):
                log.append(rows(3, 3), state=False)
            assert disk.failed
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert log.next_offset == 3
        log.append(rows(3, 1), state=False)
    assert offsets(tmp_path / f"{FIRST}.arrow") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("call", "nth"), [("pwrite", nth) for nth in range(1, 6)] + [("fsync", n) for n in range(1, 4)]
)
def test_a_disk_that_fails_while_a_segment_is_rolled_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    rolled: list[int] = []
    with Log(tmp_path, node=NODE, segment_octets=1) as log:
        log.on_roll = rolled.append
        log.append(rows(0, 3), state=False)
        with monkeypatch.context() as patched:
            disk = FailingDisk(patched, call, nth)
            with pytest.raises(OSError, match="No space left"):
                log.append(rows(3, 3), state=False)
            assert disk.failed
        log.append(rows(3, 3), state=False)
    assert rolled == [3]
    assert offsets(tmp_path / f"{FIRST}.arrow") == [0, 1, 2]
    assert offsets(tmp_path / "00000000000000000003.arrow") == [3, 4, 5]
    index = (tmp_path / "00000000000000000003.index").read_bytes()
    assert len(index) == len(MAGIC) + ENTRY_OCTETS


def test_what_a_failed_attempt_left_is_cut_off_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        with monkeypatch.context() as patched:
            FailingDisk(patched, "fdatasync", 1)
            patched.setattr(os, "ftruncate", _cannot_truncate)
            for _ in range(2):
                with pytest.raises(OSError, match=r"No space|Input/output"):
                    log.append(rows(3, 300), state=False)
        log.append(rows(3, 1), state=False)
    assert offsets(tmp_path / f"{FIRST}.arrow") == [0, 1, 2, 3]


def _cannot_truncate(descriptor: int, size: int) -> None:
    raise OSError(errno.EIO, "Input/output error", descriptor, size)


def test_files_are_not_for_everybody(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    with Log(folder, node=NODE) as log:
        log.append(rows(0, 1), state=False)
    assert folder.stat().st_mode & 0o007 == 0
    assert all(path.stat().st_mode & 0o137 == 0 for path in folder.iterdir())


def test_an_unknown_way_to_sync_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="group, always, os, not 'never'"):
        Log(tmp_path, node=NODE, fsync="never")


def test_the_parts_are_written_whole_however_little_the_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, octets, at: real(descriptor, octets[:100], at))
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
    assert offsets(tmp_path / f"{FIRST}.arrow") == [0, 1, 2]
