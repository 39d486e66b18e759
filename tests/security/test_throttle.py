"""Failed logins cost an address time, and never more memory than is allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.security.throttle import Throttle, address_key

HERE = "192.0.2.1"


def test_the_first_failures_are_free_and_each_further_one_doubles_the_wait() -> None:
    throttle = Throttle(free=2, first=1, longest=10)
    now = 100.0
    waits = []
    for _ in range(8):
        waits.append(throttle.failed(HERE, now))
        assert throttle.retry_after(HERE, now) == waits[-1]
        now += waits[-1]
        assert throttle.retry_after(HERE, now) == 0
    assert waits == [0, 0, 1, 2, 4, 8, 10, 10]


def test_an_address_does_not_wait_for_another() -> None:
    throttle = Throttle(free=0)
    throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 0) == 1
    assert throttle.retry_after("192.0.2.2", 0) == 0


def test_an_address_that_stopped_failing_starts_anew() -> None:
    throttle = Throttle(free=1, first=1, longest=5, forget=60)
    for _ in range(10):
        throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 59) == 0
    assert throttle.failed(HERE, 59) == 5
    assert throttle.retry_after(HERE, 59 + 60) == 0
    assert len(throttle) == 0
    assert throttle.failed(HERE, 59 + 60) == 0


def test_failures_at_once_all_count() -> None:
    throttle = Throttle(free=0, first=1)
    for _ in range(4):
        throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 0) == 8


def test_very_many_failures_are_just_the_longest_wait() -> None:
    throttle = Throttle(free=0, longest=60)
    for _ in range(5000):
        throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 0) == 60


def test_the_table_is_bounded_and_who_failed_longest_ago_makes_room() -> None:
    throttle = Throttle(free=0, addresses=3)
    for last in (1, 2, 3, 1, 4):
        throttle.failed(f"192.0.2.{last}", 0)
    assert len(throttle) == 3
    assert [throttle.retry_after(f"192.0.2.{last}", 0) > 0 for last in (1, 2, 3, 4)] == [True, False, True, True]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("2001:0db8::1", "2001:db8:0:0::2", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("/run/hub.sock", "/run/hub.sock", True),
        ("", "/run/hub.sock", False),
    ],
)
def test_an_address_is_a_host_or_a_network_of_64_bits(one: str, other: str, *, same: bool) -> None:
    assert (address_key(one) == address_key(other)) is same


@given(st.text())
def test_any_text_is_an_address_of_bounded_size(address: str) -> None:
    assert len(address_key(address)) <= 255
    assert address_key(address_key(address)[:255]) is not None


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 100)), max_size=60), st.integers(1, 5))
def test_waits_and_the_table_stay_within_their_bounds(steps: list[tuple[int, float]], size: int) -> None:
    throttle = Throttle(free=1, longest=30, forget=50, addresses=size)
    now = 0.0
    for host, pause in steps:
        now += pause
        throttle.failed(f"192.0.2.{host}", now)
        assert 0 <= throttle.retry_after(f"192.0.2.{host}", now) <= 30.001
        assert len(throttle) <= size
