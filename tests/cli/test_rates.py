"""Rates, and numbers in few characters."""

import pytest

from polywire.cli.rates import Rate, short, took


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_that_of_the_last_second() -> None:
    clock = Clock()
    rate = Rate(clock=clock)
    for total in (10, 20, 120, 220):
        clock.now += 0.5
        rate.sample(total)
    assert rate.now == 200
    assert rate.mean == 110
    assert rate.bars() == "▁▁██"


def test_nothing_is_no_bar_and_little_is_a_small_one() -> None:
    clock = Clock()
    rate = Rate(clock=clock)
    for total in (0, 1, 10_001):
        clock.now += 0.5
        rate.sample(total)
    assert rate.bars() == " ▁█"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1234, "1.23 k"), (56_789, "56.8 k"), (4.5e6, "4.50 M"), (2e12, "2000 G")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000085, "85 µs"), (0.00125, "1.25 ms"), (0.0345, "34.5 ms"), (3.4, "3.40 s"), (75, "75.0 s")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert took(seconds) == text
