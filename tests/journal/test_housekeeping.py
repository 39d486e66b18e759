"""Housekeeping: compaction, then retention, after each roll, and what it leaves when it is killed."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire import journal
from polywire.journal import housekeeping
from polywire.journal.committer import BatchMaker
from polywire.journal.housekeeping import (
    AgeClock,
    Housekeeping,
    HousekeepingBusy,
    KeepLimits,
    clear_leftovers,
    housekeeping_lock,
    plan_retention,
)
from polywire.journal.log import Log
from polywire.journal.readers import NamedReader, NamedReaders
from polywire.journal.snapshots import save, state_of
from tests.journal.recording import MQTT, Recording
from tests.journal.rows import rows

MICROSECONDS_OF_HOUR = 3600 * 1_000_000
KEEP_ONE = KeepLimits(octets=1)
"""Everything goes that may go."""


def name(offset: int, suffix: str) -> str:
    return f"{offset:020}.{suffix}"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name[0] == "0")


def roll(log: Log, *, states: bool = True) -> None:
    """Ten more rows in a segment of their own, and a snapshot of the hub's state behind it."""
    log.append(rows(log.next_offset, 10), state=False)
    log.roll()
    if states:
        (log.path / name(log.next_offset, "state")).write_bytes(b"state")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "journal", node="here") as found:
        yield found


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_closed_segments_are_compacted_and_the_newest_is_not(log: Log) -> None:
    for _ in range(3):
        roll(log)
    done = Housekeeping(log.path, KeepLimits()).round()
    assert [each.name for each in done.compacted] == [name(0, "parquet"), name(10, "parquet"), name(20, "parquet")]
    assert (done.deleted, done.failures) == ([], [])
    assert names_in(log.path) == [
        name(0, "parquet"),
        name(10, "parquet"),
        name(20, "parquet"),
        name(20, "state"),
        name(30, "arrow"),
        name(30, "index"),
        name(30, "state"),
    ]
    offsets = [row for batch in journal.open(log.path).scan(["offset"]) for row in batch.column(0).to_pylist()]
    assert offsets == list(range(30))


def test_told_so_nothing_is_compacted(log: Log) -> None:
    roll(log)
    done = Housekeeping(log.path, KeepLimits(), compact=False).round()
    assert done.compacted == []
    assert name(0, "arrow") in names_in(log.path)


def test_what_is_no_longer_kept_is_deleted_with_all_that_is_beside_it(log: Log) -> None:
    for _ in range(4):
        roll(log)
    (log.path / name(0, "torn-4096")).write_bytes(b"torn")
    done = Housekeeping(log.path, KEEP_ONE).round()
    assert done.deleted == [name(0, "arrow"), name(10, "arrow"), name(20, "arrow")]
    assert [each.name for each in done.compacted] == [name(30, "parquet")]  # nothing that goes anyway
    assert names_in(log.path) == [
        name(30, "parquet"),
        name(30, "state"),
        name(40, "arrow"),
        name(40, "index"),
        name(40, "state"),
    ]
    assert journal.open(log.path).first_offset == 30


def test_compacted_segments_are_deleted_too(log: Log) -> None:
    for _ in range(4):
        roll(log)
    Housekeeping(log.path, KeepLimits()).round()
    done = Housekeeping(log.path, KEEP_ONE).round()
    assert done.deleted == [name(0, "parquet"), name(10, "parquet"), name(20, "parquet")]


def test_segments_are_compacted_before_their_size_counts(log: Log) -> None:
    for _ in range(3):
        roll(log)
    house = Housekeeping(log.path, KeepLimits())
    house.round()
    compacted = sum(path.stat().st_size for path in log.path.glob("*.parquet"))
    roll(log)
    tight = KeepLimits(octets=compacted * 4 // 3 + 200)  # room for four compacted segments
    assert Housekeeping(log.path, tight).round().deleted == []


def test_what_is_closed_meanwhile_is_looked_at_in_the_same_round(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that closes segments faster than they are compacted must not outgrow its limits."""
    roll(log)
    snapshots: list[int] = []
    house = Housekeeping(log.path, KEEP_ONE)
    monkeypatch.setattr(house, "_snapshot", lambda _: snapshots.append(log.next_offset))
    compact_one = house._compact_one

    def slowly(path: Path) -> object:
        if log.next_offset < 60:
            roll(log)
            house.kick()
        return compact_one(path)

    monkeypatch.setattr(house, "_compact_one", slowly)
    done = house.round()
    assert snapshots == [10, 20, 30, 40, 50, 60]
    assert [each[:20] for each in done.deleted] == [f"{offset:020}" for offset in (0, 10, 20, 30, 40)]


def test_what_was_never_compacted_is_deleted_too(log: Log) -> None:
    for _ in range(4):
        roll(log)
    Housekeeping(log.path, KEEP_ONE, compact=False).round()
    assert names_in(log.path)[:2] == [name(30, "arrow"), name(30, "index")]


def test_without_two_snapshots_nothing_is_deleted(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        roll(log, states=False)
    house = Housekeeping(log.path, KEEP_ONE, compact=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert house.round().deleted == []
    assert [record.getMessage() for record in caplog.records] == [
        "the journal keeps more than its limits allow: state still needs it"
    ]


def test_what_a_named_reader_needs_is_kept_until_it_has_read_it(log: Log) -> None:
    for _ in range(4):
        roll(log)
    NamedReaders(log.path).put("spark", 15)
    house = Housekeeping(log.path, KEEP_ONE)
    assert house.round().deleted == [name(0, "arrow")]
    NamedReaders(log.path).put("spark", 30)
    assert house.round().deleted == [name(10, "parquet"), name(20, "parquet")]


def test_rows_that_later_ones_refer_to_are_kept_until_both_snapshots_know_those(log: Log) -> None:
    for _ in range(4):
        roll(log)
    keeping = Housekeeping(log.path, KEEP_ONE, compact=False)
    hold = keeping.hold(10)
    assert keeping.round().deleted == [name(0, "arrow")]
    hold.end = 45
    roll(log)
    assert keeping.round().deleted == []  # the older of the two snapshots is at 40
    roll(log)
    assert keeping.round().deleted == [name(first, "arrow") for first in (10, 20, 30, 40)]


def test_holds_are_joined_where_there_are_many_and_protect_what_they_did(log: Log) -> None:
    for _ in range(4):
        roll(log)
    keeping = Housekeeping(log.path, KEEP_ONE, compact=False)
    open_one = keeping.hold(30)
    for _ in range(10 * housekeeping.MOST_HOLDS):
        keeping.hold(10, 45)
    assert len(keeping._holds) <= housekeeping.MOST_HOLDS
    assert keeping.round().deleted == [name(0, "arrow")]
    roll(log)
    roll(log)
    assert keeping.round().deleted == [name(10, "arrow"), name(20, "arrow")]
    open_one.end = 45
    assert keeping.round().deleted == [name(30, "arrow"), name(40, "arrow")]


def test_a_process_that_gets_no_time_is_begun_again_and_takes_its_share(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    roll(log)
    roll(log)
    monkeypatch.setattr(housekeeping, "MODEST_SECONDS", 0.0)
    keeping = Housekeeping(log.path, KeepLimits())
    done = keeping.round()
    assert [each.name for each in done.compacted] == [name(0, "parquet"), name(10, "parquet")]
    assert done.failures == []


def test_a_reader_whose_file_is_damaged_keeps_everything(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(4):
        roll(log)
    NamedReaders(log.path).put("spark", 15)
    (log.path / "readers" / "spark.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert Housekeeping(log.path, KEEP_ONE, compact=False).round().deleted == []
    assert "spark.json" in caplog.text


def test_what_is_too_old_is_deleted(log: Log) -> None:
    now = int(datetime.now(UTC).timestamp() * 1e6)
    for hours in (5, 3, 1, 0, 0):
        first = log.next_offset
        batch = rows(first, 10, ts=[now - hours * MICROSECONDS_OF_HOUR] * 10)
        log.append(batch, state=False)
        log.roll()
        (log.path / name(log.next_offset, "state")).write_bytes(b"")
    assert Housekeeping(log.path, KeepLimits(seconds=2 * 3600)).round().deleted == [name(0, "arrow"), name(10, "arrow")]


def test_a_damaged_segment_is_named_once_and_does_not_hold_up_the_others(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        roll(log)
    path = log.path / name(10, "arrow")
    octets = bytearray(path.read_bytes())
    octets[-60] ^= 1
    path.write_bytes(octets)
    house = Housekeeping(log.path, KeepLimits())
    with caplog.at_level(logging.WARNING):
        first = house.round()
        again = house.round()
    assert [each.name for each in first.compacted] == [name(0, "parquet"), name(20, "parquet")]
    assert len(first.failures) == 1
    assert (again.compacted, again.failures) == ([], [])
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{name(10, 'arrow')} was not compacted and is left unchanged: ")
    assert path.read_bytes() == octets


def test_what_a_killed_compaction_left_is_cleared(log: Log) -> None:
    for _ in range(2):
        roll(log)
    (log.path / name(0, "parquet.part")).write_bytes(b"half")
    arrow, index = log.path / name(10, "arrow"), log.path / name(10, "index")
    kept = arrow.read_bytes(), index.read_bytes()
    Housekeeping(log.path, KeepLimits()).round()
    arrow.write_bytes(kept[0])
    index.write_bytes(kept[1])
    (log.path / "notes.part").write_bytes(b"not ours")
    clear_leftovers(log.path)
    assert names_in(log.path)[:2] == [name(0, "parquet"), name(10, "parquet")]
    assert not arrow.exists()
    assert not index.exists()
    assert (log.path / "notes.part").exists()


def test_the_index_of_a_deleted_segment_is_cleared_and_that_of_a_new_one_is_not(log: Log) -> None:
    for _ in range(2):
        roll(log)
    (log.path / name(0, "arrow")).unlink()
    newest = log.path / name(30, "index")
    newest.write_bytes(b"")  # as if the writer were about to begin this one
    clear_leftovers(log.path)
    assert not (log.path / name(0, "index")).exists()
    assert newest.exists()


def test_a_snapshot_that_was_never_finished_is_cleared(log: Log) -> None:
    for _ in range(2):
        roll(log)
    old, newest = log.path / name(5, "state-unfinished"), log.path / name(20, "state-unfinished")
    old.write_bytes(b"half")
    newest.write_bytes(b"half")
    clear_leftovers(log.path)
    assert not old.exists()
    assert not newest.exists()  # who writes one holds the lock


def test_two_do_not_keep_house_at_once(log: Log) -> None:
    roll(log)
    with housekeeping_lock(log.path):
        with pytest.raises(HousekeepingBusy), housekeeping_lock(log.path):
            pass
        done = Housekeeping(log.path, KeepLimits()).round()
    assert (done.compacted, done.failures) == ([], [])
    assert len(Housekeeping(log.path, KeepLimits()).round().compacted) == 1


def test_a_thread_does_it_at_the_start_and_after_each_kick(log: Log) -> None:
    roll(log)
    house = Housekeeping(log.path, KeepLimits())
    house.start()
    try:
        wait_for(lambda: house.rounds == 1)
        assert house.compacted == 1
        roll(log)
        house.kick()
        wait_for(lambda: house.rounds == 2)
        assert house.compacted == 2
    finally:
        house.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "polywire-housekeeping"]
    house.stop()


def test_age_is_looked_at_without_a_kick(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "PERIOD", 0.01)
    house = Housekeeping(log.path, KeepLimits(seconds=3600))
    house.start()
    try:
        wait_for(lambda: house.rounds > 2)
    finally:
        house.stop()


def test_errors_are_logged_and_counted_and_the_thread_lives(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(housekeeping, "clear_leftovers", fails)
        house = Housekeeping(log.path, KeepLimits())
        house.start()
        wait_for(lambda: house.failures == 1)
    assert "No space left" in caplog.text
    roll(log)
    house.kick()
    try:
        wait_for(lambda: house.compacted == 1)
    finally:
        house.stop()


def test_a_snapshot_that_fails_does_not_keep_the_rest_from_being_done(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        roll(log)
    house = Housekeeping(log.path, KEEP_ONE)
    house.need_snapshot(35)
    (log.path / name(35, "state")).mkdir()  # so that none can be written there
    with caplog.at_level(logging.WARNING):
        done = house.round()
    assert (len(done.compacted), len(done.deleted)) == (1, 3)
    assert done.failures
    assert "writing a snapshot of the hub's state failed and will be retried: " in caplog.text
    assert "Is a directory" in caplog.text


def fill(log: Log, rec: Recording, octets: int) -> int:
    """Messages that leave nothing behind, in a segment of their own; the first offset of the next one."""
    rec.publish("noise", os.urandom(octets))
    maker = BatchMaker("here")
    for columns in rec.recorder.take():
        log.append(maker.make(columns), state=True)
    log.roll()
    return log.next_offset


def test_snapshots_cost_no_more_writing_than_the_journal_and_bound_what_a_start_reads(log: Log) -> None:
    rec = Recording()
    for number in range(10):
        rec.publish(f"kept/{number}", os.urandom(10_000), retain=True)
    house = Housekeeping(log.path, KeepLimits(), compact=False)
    written = since = 0
    for _ in range(60):
        house.segment_begun(fill(log, rec, 5_000))
        saved = house.round().saved
        written += sum(each.octets for each in saved)
        since = 0 if saved else since + 1
        assert since * 5_000 < 120_000
    segments = sum(path.stat().st_size for path in log.path.glob("*.arrow"))
    assert 200_000 < written < segments
    assert len(list(log.path.glob("*.state"))) == 2


def test_snapshots_count_against_the_size_that_is_kept(log: Log) -> None:
    rec = Recording()
    for number in range(5):
        rec.publish(f"kept/{number}", os.urandom(20_000), retain=True)
    house = Housekeeping(log.path, KeepLimits(octets=500_000), compact=False)
    for _ in range(60):
        house.segment_begun(fill(log, rec, 20_000))
        house.round()
        assert sum(path.stat().st_size for path in log.path.iterdir()) < 500_000 + 25_000
    assert journal.open(log.path).first_offset > 0
    assert len([row for row in state_of(log.path).rows.to_pylist() if row["kind"] == "publish"]) == 5


def test_rows_that_are_too_old_do_not_wait_until_a_snapshot_is_due(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "LEAST_SEGMENT_SECONDS", 0.0)
    rec = Recording()  # of long ago
    rec.publish("kept", os.urandom(1_000_000), retain=True)
    monkeypatch.setattr(housekeeping, "JUMP_SECONDS", 1e12)
    house = Housekeeping(log.path, KeepLimits(seconds=0.001), compact=False)
    for _ in range(6):
        house.segment_begun(fill(log, rec, 100))
        house.round()
        house.round()
    assert journal.open(log.path).first_offset > 2
    assert len(state_of(log.path).rows) == 1


def test_a_clock_that_jumps_deletes_nothing_at_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    clocks = {"wall": now, "monotonic": 50.0}
    monkeypatch.setattr(
        housekeeping,
        "AgeClock",
        lambda newest: AgeClock(newest, wall=lambda: clocks["wall"], monotonic=lambda: clocks["monotonic"]),
    )
    for _ in range(4):
        log.append(rows(log.next_offset, 10, ts=[round(now * 1e6)] * 10), state=False)
        log.roll()
        (log.path / name(log.next_offset, "state")).write_bytes(b"")
    house = Housekeeping(log.path, KeepLimits(seconds=3600), compact=False)
    assert house.round().deleted == []
    clocks["wall"] += 10 * 365 * 86400
    clocks["monotonic"] += 60
    assert house.round().deleted == []
    clocks["wall"] -= 10 * 365 * 86400  # somebody has set it right
    assert house.round().deleted == []
    clocks["wall"] += 3700
    clocks["monotonic"] += 3700
    assert house.round().deleted == [name(0, "arrow"), name(10, "arrow"), name(20, "arrow")]


def test_a_stop_does_not_wait_for_a_compaction(log: Log) -> None:
    roll(log)
    path = log.path / name(0, "arrow")
    path.unlink()
    os.mkfifo(path)  # nobody ever writes to it, so the compaction never ends by itself
    house = Housekeeping(log.path, KeepLimits())
    house.start()
    wait_for(lambda: house._process is not None)
    house.stop()
    assert house.failures == 0
    assert path.exists()


def test_a_delivery_of_a_retained_message_whose_segment_is_gone_comes_back_whole(log: Log) -> None:
    rec = Recording()
    maker = BatchMaker("here")

    def write() -> None:
        for columns in rec.recorder.take():
            log.append(maker.make(columns), state=True)

    retained = rec.publish("a", b"kept for long", retain=True)
    for number in range(3):
        rec.publish("b", b"%d" % number)
        write()
        log.roll()
        save(log.path, state_of(log.path, to_offset=log.next_offset))
    assert Housekeeping(log.path, KEEP_ONE, compact=False).round().deleted == [name(0, "arrow"), name(2, "arrow")]
    rec.recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
    rec.store("dev", "a", retained, 1, retain=True)
    write()
    found = [(row["kind"], row["channel"], row["body"]) for row in state_of(log.path).rows.to_pylist()]
    assert ("deliver", "a", b"kept for long") in found
    assert ("publish", "a", b"kept for long") in found


NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
HOUR = 3600.0


@dataclass(frozen=True)
class Piece:
    first_offset: int
    end_offset: int
    octets: int
    max_time: datetime | None
    closed: bool = True


def pieces(count: int = 5) -> list[Piece]:
    """Segments of 100 rows and 1000 bytes, an hour each; the last one is active and ends now."""
    return [
        Piece(n * 100, (n + 1) * 100, 1000, NOW - timedelta(hours=count - 1 - n), closed=n < count - 1)
        for n in range(count)
    ]


def deleted(limits: KeepLimits, *readers: NamedReader, state_offset: int = 400, count: int = 5) -> list[int]:
    plan = plan_retention(pieces(count), limits, now=NOW, state_offset=state_offset, readers=readers)
    return [piece.first_offset for piece in plan.delete]


def test_without_limits_everything_is_kept() -> None:
    assert deleted(KeepLimits()) == []


@pytest.mark.parametrize(("octets", "gone"), [(5000, []), (4999, [0]), (3000, [0, 100]), (1, [0, 100, 200, 300])])
def test_the_oldest_go_until_the_size_is_kept(octets: int, gone: list[int]) -> None:
    assert deleted(KeepLimits(octets=octets)) == gone


@pytest.mark.parametrize(("hours", "gone"), [(5, []), (3.5, [0]), (2, [0, 100]), (0.5, [0, 100, 200, 300])])
def test_what_is_older_than_the_time_goes(hours: float, gone: list[int]) -> None:
    assert deleted(KeepLimits(seconds=hours * HOUR)) == gone


def test_either_limit_is_enough() -> None:
    assert deleted(KeepLimits(octets=4000, seconds=2 * HOUR)) == [0, 100]
    assert deleted(KeepLimits(octets=2000, seconds=4 * HOUR)) == [0, 100, 200]


def test_the_active_segment_stays_whatever_the_limits() -> None:
    assert deleted(KeepLimits(octets=1, seconds=0.001), state_offset=1000) == [0, 100, 200, 300]
    assert deleted(KeepLimits(octets=1), state_offset=1000, count=1) == []


def test_the_newest_segment_stays_even_when_it_is_closed() -> None:
    closed = [Piece(each.first_offset, each.end_offset, each.octets, each.max_time) for each in pieces(3)]
    plan = plan_retention(closed, KeepLimits(octets=1), now=NOW, state_offset=1000)
    assert [piece.first_offset for piece in plan.delete] == [0, 100]


def test_what_the_hub_needs_to_start_stays() -> None:
    plan = plan_retention(pieces(), KeepLimits(octets=1), now=NOW, state_offset=250)
    assert [piece.first_offset for piece in plan.delete] == [0, 100]
    assert plan.held_by == ("state",)
    assert plan.over == 2999
    assert deleted(KeepLimits(octets=1), state_offset=0) == []


def test_what_a_named_reader_still_needs_stays() -> None:
    readers = (NamedReader("fast", 390), NamedReader("slow", 200))
    plan = plan_retention(pieces(), KeepLimits(octets=1), now=NOW, state_offset=400, readers=readers)
    assert [piece.first_offset for piece in plan.delete] == [0, 100]
    assert plan.held_by == ("reader slow",)


def test_a_reader_in_the_middle_of_a_segment_holds_it() -> None:
    assert deleted(KeepLimits(octets=1), NamedReader("r", 199)) == [0]
    assert deleted(KeepLimits(octets=1), NamedReader("r", 200)) == [0, 100]


def test_told_so_readers_are_not_waited_for() -> None:
    assert deleted(KeepLimits(octets=1, for_readers=False), NamedReader("slow", 0)) == [0, 100, 200, 300]


def test_a_reader_is_named_only_where_it_held_something() -> None:
    plan = plan_retention(pieces(), KeepLimits(octets=5000), now=NOW, state_offset=0, readers=(NamedReader("slow", 0),))
    assert (plan.delete, plan.held_by, plan.over) == ((), (), 0)


@pytest.mark.parametrize("time", [None, NOW + timedelta(days=400)], ids=["without rows", "of the future"])
def test_a_segment_whose_age_is_unknown_goes_with_the_one_after_it(time: datetime | None) -> None:
    odd = Piece(0, 0, 10, time)
    plan = plan_retention([odd, *pieces()], KeepLimits(seconds=10 * HOUR), now=NOW, state_offset=400)
    assert plan.delete == ()
    plan = plan_retention([odd, *pieces()], KeepLimits(seconds=3.5 * HOUR), now=NOW, state_offset=400)
    assert [piece.first_offset for piece in plan.delete] == [0, 0]


def test_what_is_beside_the_segments_counts_too() -> None:
    plan = plan_retention(pieces(), KeepLimits(octets=5000), now=NOW, state_offset=400, other_octets=1500)
    assert [piece.first_offset for piece in plan.delete] == [0, 100]
    plan = plan_retention(pieces(), KeepLimits(octets=5000), now=NOW, state_offset=150, other_octets=1500)
    assert (plan.held_by, plan.overdue, plan.over) == (("state",), False, 500)


def test_what_is_too_old_and_held_is_overdue() -> None:
    plan = plan_retention(pieces(), KeepLimits(seconds=2 * HOUR), now=NOW, state_offset=150)
    assert (len(plan.delete), plan.held_by, plan.overdue) == (1, ("state",), True)


class Clocks:
    """A wall clock that can be set, and one that can't."""

    def __init__(self, newest: datetime | None) -> None:
        self.wall = NOW.timestamp()
        self.monotonic = 5.0
        self.age = AgeClock(newest, wall=lambda: self.wall, monotonic=lambda: self.monotonic)

    def wait(self, seconds: float) -> float:
        """How many hours later than the beginning it is after so many seconds, to the clock of ages."""
        self.wall += seconds
        self.monotonic += seconds
        return round((self.age.now() - NOW).total_seconds() / HOUR, 3)


def test_a_clock_that_goes_as_it_should_is_believed() -> None:
    clocks = Clocks(NOW)
    assert [clocks.wait(HOUR), clocks.wait(24 * HOUR)] == [1, 25]
    clocks.wall += 1800  # corrected a little
    assert clocks.wait(0) == 25.5


def test_a_clock_that_is_set_back_is_believed() -> None:
    clocks = Clocks(NOW)
    clocks.wait(HOUR)
    clocks.wall -= 100 * HOUR
    assert clocks.wait(HOUR) == -98


def test_a_clock_that_jumps_forward_is_believed_after_a_day(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks(NOW)
    assert clocks.wait(HOUR) == 1
    clocks.wall += 1000 * HOUR
    assert [clocks.wait(HOUR), clocks.wait(22 * HOUR), clocks.wait(HOUR)] == [2, 24, 25]
    assert "the clock has jumped ahead by 3600000 s" in caplog.text
    assert clocks.wait(HOUR) == 1026
    assert clocks.wait(HOUR) == 1027
    clocks.wall -= 1000 * HOUR
    assert clocks.wait(HOUR) == 28


def test_a_clock_that_is_wrong_at_the_start_is_believed_after_a_day() -> None:
    clocks = Clocks(NOW - timedelta(hours=500))
    assert [clocks.wait(0), clocks.wait(23 * HOUR)] == [-500, -477]
    assert clocks.wait(HOUR) == 24
    assert Clocks(NOW + timedelta(days=300)).wait(0) == 0
    assert Clocks(None).wait(0) == 0


@given(
    octets=st.integers(0, 6000),
    hours=st.floats(0, 6),
    state=st.integers(0, 600),
    offsets=st.lists(st.integers(0, 600), max_size=3),
    count=st.integers(1, 6),
)
def test_what_goes_is_always_the_oldest_and_never_needed(
    octets: int, hours: float, state: int, offsets: list[int], count: int
) -> None:
    segments = pieces(count)
    readers = [NamedReader(str(n), offset) for n, offset in enumerate(offsets)]
    limits = KeepLimits(octets=octets, seconds=hours * HOUR)
    plan = plan_retention(segments, limits, now=NOW, state_offset=state, readers=readers)
    assert list(plan.delete) == segments[: len(plan.delete)]
    assert all(piece.closed for piece in plan.delete)
    assert all(piece.end_offset <= min([state, *offsets]) for piece in plan.delete)
    kept = segments[len(plan.delete) :]
    if not plan.held_by and octets and kept[0].closed:
        assert sum(piece.octets for piece in kept) <= octets
