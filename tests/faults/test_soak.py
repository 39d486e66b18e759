"""The judgement of ``python -m faults soak``, and a few seconds of its churn."""

from faults.soak import judge, soak, sparkline


def test_memory_that_grows_after_the_warm_up_is_wrong() -> None:
    growing = [100, 200, *range(1000, 1120, 10)]
    (wrong,) = judge(growing, 2)
    assert wrong == "the memory grew by 7.9%, from 1.0 to 1.1 MiB"
    assert judge([100, 200, *[1000] * 12], 2) == []
    assert judge([1, 2, 3], 2) == []  # too short to tell


def test_the_sparkline_begins_at_nothing() -> None:
    assert sparkline([512, 1024]) == "memory: ▅█ 0.5 to 1.0 MiB"


def test_a_few_seconds_of_churn_leave_nothing_behind() -> None:
    said: list[str] = []
    assert soak(1, 0.1, said.append) == []
    assert "done" in said[0]
