"""Percentiles of times, from buckets."""

from hypothesis import given
from hypothesis import strategies as st

from polywire.cli.histogram import Histogram

times = st.lists(st.integers(0, 10**12), min_size=1, max_size=200)


@given(times, st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_off_by_less_than_a_hundredth(found: list[int], part: float) -> None:
    histogram = Histogram()
    for each in found:
        histogram.add(each)
    rank = max(1, -(-len(found) * part // 100))
    exact = sorted(found)[int(rank) - 1]
    assert abs(histogram.percentile(part) - exact) <= exact / 100
    assert (histogram.least, histogram.most, histogram.count) == (min(found), max(found), len(found))


def test_without_times_all_is_zero() -> None:
    assert (Histogram().percentile(99), Histogram().mean) == (0, 0.0)
