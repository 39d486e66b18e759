"""Timeouts and their units, both ways, and deadlines."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.mqttrpc.errors import LocalProtocolError
from polywire.protocols.mqttrpc.timeouts import (
    DEFAULT_TIMEOUT,
    FINEST_FIRST,
    MAX_TIMEOUT,
    MAX_UINT32,
    MILLISECONDS,
    TimeoutUnit,
    deadline,
    from_seconds,
    milliseconds,
    written,
)


@pytest.mark.rule("MQTTRPC-16", "MQTTRPC-18", "MQTTRPC-19", "MQTTRPC-35")
@pytest.mark.parametrize(
    ("unit", "duration"),
    [
        (TimeoutUnit.HOUR, 7_200_000),
        (TimeoutUnit.MINUTE, 120_000),
        (TimeoutUnit.SECOND, 2000),
        (TimeoutUnit.MILLISECOND, 2),
        (TimeoutUnit.UNSPECIFIED, 2),
    ],
)
def test_a_timeout_is_counted_in_its_unit(unit: TimeoutUnit, duration: int) -> None:
    assert milliseconds(2, unit) == duration


@pytest.mark.rule("MQTTRPC-17", "MQTTRPC-59")
@pytest.mark.parametrize("unit", TimeoutUnit)
def test_without_a_timeout_the_default_counts(unit: TimeoutUnit) -> None:
    assert milliseconds(0, unit) == DEFAULT_TIMEOUT == 30_000
    assert milliseconds(0, unit, 5) == 5


@pytest.mark.rule("MQTTRPC-92")
@pytest.mark.parametrize(
    ("duration", "timeout", "unit"),
    [
        (1, 1, TimeoutUnit.MILLISECOND),
        (3_600_000, 3_600_000, TimeoutUnit.MILLISECOND),
        (MAX_UINT32, MAX_UINT32, TimeoutUnit.MILLISECOND),
        (MAX_UINT32 + 1, 4_294_968, TimeoutUnit.SECOND),
        (4_294_968_000, 4_294_968, TimeoutUnit.SECOND),
        (MAX_UINT32 * 1000, MAX_UINT32, TimeoutUnit.SECOND),
        (MAX_UINT32 * 1000 + 1, 71_582_789, TimeoutUnit.MINUTE),
        (MAX_UINT32 * 60_000, MAX_UINT32, TimeoutUnit.MINUTE),
        (MAX_TIMEOUT - 1, MAX_UINT32, TimeoutUnit.HOUR),
        (MAX_TIMEOUT, MAX_UINT32, TimeoutUnit.HOUR),
    ],
)
def test_a_timeout_is_written_in_the_finest_unit_that_holds_it(duration: int, timeout: int, unit: TimeoutUnit) -> None:
    assert written(duration) == (timeout, unit)


@given(st.integers(1, MAX_TIMEOUT) | st.integers(1, MAX_UINT32).map(lambda n: n * 1000))
@pytest.mark.rule("MQTTRPC-92")
def test_what_is_written_is_never_less_and_exact_where_it_can_be(duration: int) -> None:
    timeout, unit = written(duration)
    assert 0 < timeout <= MAX_UINT32
    back = milliseconds(timeout, unit)
    exact = any(duration % MILLISECONDS[u] == 0 and duration // MILLISECONDS[u] <= MAX_UINT32 for u in FINEST_FIRST)
    assert back == duration if exact else duration < back < duration + MILLISECONDS[unit]


@pytest.mark.rule("MQTTRPC-92")
@pytest.mark.parametrize("duration", [0, -1, MAX_TIMEOUT + 1])
def test_a_duration_no_timeout_holds_is_a_local_error(duration: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        written(duration)
    assert caught.value.rule == "MQTTRPC-92"


@pytest.mark.rule("MQTTRPC-92")
def test_seconds_are_rounded_up_to_milliseconds() -> None:
    assert from_seconds(1.5) == (1500, TimeoutUnit.MILLISECOND)
    assert from_seconds(0.0001) == (1, TimeoutUnit.MILLISECOND)
    assert from_seconds(1.1) == (1100, TimeoutUnit.MILLISECOND)
    assert from_seconds(1e-12) == (1, TimeoutUnit.MILLISECOND)
    assert from_seconds(MAX_TIMEOUT / 1000) == (MAX_UINT32, TimeoutUnit.HOUR)


@pytest.mark.rule("MQTTRPC-92")
@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, -math.inf, math.nan, 1e300, 1e308])
def test_seconds_that_are_no_timeout_are_a_local_error(seconds: float) -> None:
    with pytest.raises(LocalProtocolError):
        from_seconds(seconds)


@pytest.mark.rule("MQTTRPC-16")
def test_a_deadline_is_the_start_and_the_duration() -> None:
    assert deadline(100.0, 1500) == 101.5
