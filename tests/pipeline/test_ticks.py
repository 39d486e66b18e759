from polywire.pipeline.journals import TICK
from polywire.pipeline.source import Clock

SECOND = 1_000_000


def test_without_an_interval_there_are_no_ticks() -> None:
    assert Clock(None).next_tick({"a": 1}, {"a": 1}, SECOND) == {"a": 1}


def test_a_tick_comes_only_when_nothing_else_does() -> None:
    clock = Clock(10)
    assert clock.next_tick({"a": 1}, {"a": 2}, 100 * SECOND) == {"a": 2}
    assert clock.next_tick({"a": 2}, {"a": 2}, 109 * SECOND) == {"a": 2}
    ticked = clock.next_tick({"a": 2}, {"a": 2}, 111 * SECOND)
    assert ticked == {TICK: 111 * SECOND, "a": 2}
    assert clock.next_tick(ticked, ticked, 120 * SECOND) == ticked
    assert clock.next_tick(ticked, ticked, 122 * SECOND) == {TICK: 122 * SECOND, "a": 2}


def test_a_stream_that_starts_again_gets_one_at_its_first_quiet_moment() -> None:
    begun = {TICK: 5 * SECOND, "a": 2}
    assert Clock(10).next_tick(begun, begun, 100 * SECOND) == {TICK: 100 * SECOND, "a": 2}


def test_a_stream_that_ends_gets_exactly_one() -> None:
    clock = Clock(10)
    clock.finish_at(50 * SECOND)
    assert clock.next_tick({"a": 1}, {"a": 2}, 51 * SECOND) == {"a": 2}
    last = clock.next_tick({"a": 2}, {"a": 2}, 52 * SECOND)
    assert last == {TICK: 50 * SECOND, "a": 2}
    assert clock.next_tick(last, last, 100 * SECOND) == last
