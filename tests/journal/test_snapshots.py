"""The hub's state out of a folder: the same with snapshots and without, whatever has become of some of them."""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from polywire.journal import snapshots
from polywire.journal.committer import BatchMaker
from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.housekeeping import delete_segment, remove_old_states
from polywire.journal.log import Log
from polywire.journal.snapshots import State, due, newest, save, state_of
from tests.journal.recording import MQTT, Recording


class Folder:
    """A journal that is written row by row, in segments as a test wants them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = Log(path, node="here")
        self.rec = Recording()
        self.recorder = self.rec.recorder
        self._maker = BatchMaker("here")

    def write(self) -> None:
        """Make safe what was recorded."""
        for columns in self.recorder.take():
            self.log.append(self._maker.make(columns), state=columns.state)

    def roll(self) -> int:
        """Begin another segment; its first offset."""
        self.write()
        self.log.roll()
        return self.log.next_offset

    def state(self) -> State:
        """As a start would find it."""
        self.write()
        return state_of(self.path, to_offset=self.log.next_offset)

    def left(self) -> list[tuple[str, str | None, bytes]]:
        """What the state has, in short."""
        return in_short(self.state())

    def save(self) -> Path:
        """Leave a snapshot of the state as it is now, in front of a new segment."""
        return save(self.path, state_of(self.path, to_offset=self.roll()))


def in_short(state: State) -> list[tuple[str, str | None, bytes]]:
    return [(row["kind"], row["channel"] or row["correlation"], row["body"]) for row in state.rows.to_pylist()]


def damage(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[len(octets) // 2] ^= 1
    path.write_bytes(octets)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.log.close()


def work(folder: Folder, step: int) -> None:
    """Some of everything: retained, queued, taken, due to a session and done with."""
    recorder = folder.recorder
    if not step:
        recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
        recorder.session_subscribed(MQTT, "dev", "t", 2)
    folder.rec.publish("kept", b"kept %d" % step, retain=True)
    folder.rec.publish(f"kept/{step}", b"for good", retain=True)
    first = folder.rec.enqueue("jobs", b"first %d" % step)
    folder.rec.enqueue("jobs", b"second %d" % step)
    recorder.dequeued("jobs", first)
    for number in range(3):
        message = folder.rec.publish("t", b"due %d %d" % (step, number))
        delivery = folder.rec.store("dev", "t", message, 2, 3 * step + number + 1)
        if number == 0:
            recorder.finished(MQTT, "dev", delivery)
        elif number == 1:
            recorder.received(MQTT, "dev", delivery, 3 * step + 2)
    recorder.held(MQTT, "dev", step)


def same(one: Any, other: Any) -> bool:
    return bool(one.combine_chunks().equals(other.combine_chunks()))


def test_an_empty_journal_has_no_state(folder: Folder) -> None:
    assert state_of(folder.path).rows.num_rows == 0
    assert newest(folder.path).offset == 0


def test_a_state_is_the_same_with_and_without_snapshots_over_several_segments(folder: Folder) -> None:
    paths = []
    for step in range(5):
        work(folder, step)
        if step % 2:
            paths.append(folder.save())
        else:
            folder.roll()
    with_them = folder.state()
    rows = with_them.rows
    assert with_them.offset == folder.log.next_offset
    for path in paths:
        path.unlink()
    without = folder.state()
    assert same(rows, without.rows)
    assert with_them.folded < without.folded
    assert rows.num_rows > 20


def test_a_snapshot_at_the_journal_s_end_is_the_state(folder: Folder) -> None:
    work(folder, 0)
    before = folder.state()
    folder.save()
    after = folder.state()
    assert after.folded == 0
    assert same(before.rows, after.rows)


def test_the_state_before_an_offset_knows_nothing_behind_it(folder: Folder) -> None:
    folder.rec.publish("a", b"1", retain=True)
    middle = folder.roll()
    folder.rec.publish("a", b"2", retain=True)
    folder.save()
    assert in_short(state_of(folder.path, to_offset=middle)) == [("publish", "a", b"1")]
    assert in_short(state_of(folder.path)) == [("publish", "a", b"2")]


@pytest.mark.parametrize("how", ["flipped", "cut", "empty"])
def test_a_damaged_snapshot_is_told_and_the_one_before_it_is_used(
    folder: Folder, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    work(folder, 0)
    older = folder.save()
    work(folder, 1)
    newer = folder.save()
    work(folder, 2)
    expected = folder.state().rows
    if how == "flipped":
        damage(newer)
    else:
        newer.write_bytes(newer.read_bytes()[:100] if how == "cut" else b"")
    assert newest(folder.path).offset == int(older.stem)
    assert same(folder.state().rows, expected)
    assert f"the snapshot {newer} can't be used" in caplog.text


def test_without_any_snapshot_that_is_whole_the_journal_is_read_from_its_beginning(folder: Folder) -> None:
    work(folder, 0)
    older = folder.save()
    work(folder, 1)
    newer = folder.save()
    expected = folder.state().rows
    damage(older)
    damage(newer)
    assert same(folder.state().rows, expected)


def test_what_can_t_be_known_any_more_is_told(folder: Folder) -> None:
    work(folder, 0)
    path = folder.save()
    delete_segment(folder.path, 0)
    work(folder, 1)
    assert folder.state().lost == ()
    damage(path)
    end = int(path.stem)
    words = f"{end} rows, offsets 0 to {end - 1}, are gone, and no snapshot covers them"
    assert folder.state().lost == (words,)


def test_rows_that_can_t_be_read_are_told_until_a_snapshot_is_after_them(folder: Folder) -> None:
    work(folder, 0)
    end = folder.roll()
    damage(folder.path / f"{0:020d}.arrow")
    (lost,) = folder.state().lost
    assert f"{end} rows, offsets 0 to {end - 1}, can't be read: {0:020d}.arrow at " in lost
    folder.save()
    work(folder, 1)
    assert folder.state().lost == ()


def test_the_state_is_read_and_written_in_slices(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SLICE_OCTETS", 64 << 10)
    monkeypatch.setattr(snapshots, "FOLD_ROWS", 10)
    recorder = folder.recorder
    recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
    for step in range(3):
        large = folder.rec.publish("large", bytes([step]) * 40_000)
        for number in range(20):
            folder.rec.publish(f"kept/{number}", b"%d %d" % (step, number) * 2000, retain=True)
            folder.rec.store("dev", "large", large, 1)
        folder.write()
        expected = folder.state().rows
        path = folder.save()
        with ipc.open_stream(path.read_bytes()) as stream:
            sizes = [batch.nbytes for batch in stream]
        assert sum(sizes) > 20 * 40_000 * (step + 1)
        assert max(sizes) < 4 * (64 << 10)
        assert same(folder.state().rows, expected)
    deliveries = [row["body"] for row in expected.to_pylist() if row["kind"] == "deliver"]
    assert deliveries == [bytes([step]) * 40_000 for step in range(3) for _ in range(20)]
    assert [row["body"] for row in expected.to_pylist() if row["kind"] == "publish"] == [
        b"2 %d" % number * 2000 for number in range(20)
    ]


def test_a_snapshot_of_the_first_release_is_read(folder: Folder) -> None:
    """It had all rows in one batch."""
    work(folder, 0)
    expected = folder.state().rows
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, PLAIN_SCHEMA, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(expected.combine_chunks())
    octets = sink.getvalue().to_pybytes()
    path = folder.path / f"{folder.roll():020d}.state"
    path.write_bytes(octets + b"PWST" + zlib.crc32(octets).to_bytes(4, "little"))
    assert newest(folder.path).path == path
    assert same(folder.state().rows, expected)


def test_a_snapshot_is_due_when_the_segments_since_the_last_have_as_many_octets(folder: Folder) -> None:
    def noise() -> int:
        folder.rec.publish("noise", os.urandom(10_000))
        return folder.roll()

    for number in range(5):
        folder.rec.publish(f"kept/{number}", os.urandom(10_000), retain=True)
    assert due(folder.path, folder.roll())  # there is none yet
    first = folder.save()
    assert 50_000 < first.stat().st_size < 60_000
    assert not due(folder.path, int(first.stem))
    octets = 0
    for _ in range(3):
        assert not due(folder.path, noise())
    while octets < first.stat().st_size:
        end = noise()
        octets = sum(path.stat().st_size for path in folder.path.glob("*.arrow") if int(path.stem) >= int(first.stem))
        octets -= (folder.path / f"{end:020d}.arrow").stat().st_size
    assert due(folder.path, end)


def test_of_three_snapshots_the_two_newest_stay(folder: Folder) -> None:
    paths = []
    for step in range(3):
        work(folder, step)
        paths.append(folder.save())
    remove_old_states(folder.path)
    assert [path.exists() for path in paths] == [False, True, True]


def test_a_snapshot_that_was_not_finished_is_none(folder: Folder) -> None:
    work(folder, 0)
    path = folder.save()
    path.rename(path.with_suffix(".state-unfinished"))
    assert newest(folder.path).offset == 0


def test_what_is_due_stands_in_the_snapshot_with_its_body(folder: Folder) -> None:
    recorder = folder.recorder
    recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
    message = folder.rec.publish("t", b"due")
    folder.roll()
    folder.rec.store("dev", "t", message, 1)
    folder.save()
    delete_segment(folder.path, 0)
    assert ("deliver", "t", b"due") in folder.left()


def test_a_delivery_may_stand_for_a_message_before_the_snapshot(folder: Folder) -> None:
    recorder = folder.recorder
    recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
    message = folder.rec.publish("t", b"due")
    folder.save()
    folder.rec.store("dev", "t", message, 1)
    assert ("deliver", "t", b"due") in folder.left()


def test_a_delivery_may_stand_for_a_retained_message_whose_segment_is_gone(folder: Folder) -> None:
    recorder = folder.recorder
    message = folder.rec.publish("t", b"retained", retain=True)
    folder.save()
    delete_segment(folder.path, 0)
    recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
    folder.rec.store("dev", "t", message, 1, retain=True)
    folder.rec.publish("t", b"newer", retain=True)
    assert folder.left() == [
        ("session", "ann", b""),
        ("deliver", "t", b"retained"),
        ("publish", "t", b"newer"),
    ]


def test_what_was_queued_before_a_snapshot_can_be_acknowledged_behind_it(folder: Folder) -> None:
    offsets = [folder.rec.enqueue("jobs", b"%d" % number) for number in range(3)]
    folder.save()
    folder.recorder.dequeued("jobs", offsets[1])
    assert [body for _, _, body in folder.left()] == [b"0", b"2"]
