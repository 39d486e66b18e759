"""What may be deleted, and what may not."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.journal.readers import NamedReader
from polywire.journal.retention import AgeClock, KeepLimits, plan_retention

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
    """Segments of 100 rows and 1000 octets, an hour each; the last one is active and ends now."""
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
    assert "the clock is 3600000 s ahead" in caplog.text
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
