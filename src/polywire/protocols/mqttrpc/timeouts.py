"""Timeouts: a number and its unit to milliseconds and back, and deadlines.

No clock is read here: whoever asks passes the time, in seconds on a clock that never goes back.
"""

import math
from enum import IntEnum

from polywire.protocols.mqttrpc.errors import LocalProtocolError

MAX_UINT32 = 0xFFFF_FFFF

DEFAULT_TIMEOUT = 30_000
"""MQTTRPC-59: how long a call may take where nobody says so, in milliseconds, on both sides."""


class TimeoutUnit(IntEnum):
    """MQTTRPC-35: what a timeout counts. ``UNSPECIFIED`` is read as ``MILLISECOND``."""

    UNSPECIFIED = 0
    HOUR = 1
    MINUTE = 2
    SECOND = 3
    MILLISECOND = 4


MILLISECONDS: dict[TimeoutUnit, int] = {
    TimeoutUnit.UNSPECIFIED: 1,  # MQTTRPC-19
    TimeoutUnit.MILLISECOND: 1,
    TimeoutUnit.SECOND: 1000,
    TimeoutUnit.MINUTE: 60_000,
    TimeoutUnit.HOUR: 3_600_000,
}
"""MQTTRPC-18: how many milliseconds each unit has."""

FINEST_FIRST = (TimeoutUnit.MILLISECOND, TimeoutUnit.SECOND, TimeoutUnit.MINUTE, TimeoutUnit.HOUR)
MAX_TIMEOUT = MAX_UINT32 * MILLISECONDS[TimeoutUnit.HOUR]
"""The longest timeout a Request can carry, in milliseconds."""


def milliseconds(timeout: int, unit: TimeoutUnit, default: int = DEFAULT_TIMEOUT) -> int:
    """How long a call with this timeout may take. A timeout of 0 is one that is not present: ``default`` counts."""
    if timeout == 0:
        return default  # MQTTRPC-17
    return timeout * MILLISECONDS[unit]


def written(duration: int) -> tuple[int, TimeoutUnit]:
    """MQTTRPC-92: the timeout and unit to send for a duration in milliseconds.

    The finest unit that holds it exactly; where none does, the finest that holds it rounded up, so that the server
    never gives up before the client, whose own deadline is exact.
    """
    if not 0 < duration <= MAX_TIMEOUT:
        raise LocalProtocolError(f"a timeout of {duration} ms is not within 1 to {MAX_TIMEOUT} ms", rule="MQTTRPC-92")
    for unit in FINEST_FIRST:
        count, rest = divmod(duration, MILLISECONDS[unit])
        if rest == 0 and count <= MAX_UINT32:
            return count, unit
    for unit in FINEST_FIRST:
        count = -(-duration // MILLISECONDS[unit])
        if count <= MAX_UINT32:
            break
    return count, unit


def from_seconds(seconds: float) -> tuple[int, TimeoutUnit]:
    """The timeout and unit to send for a duration in seconds, rounded up to whole milliseconds."""
    if not 0 < seconds <= MAX_TIMEOUT / 1000:
        raise LocalProtocolError(
            f"a timeout of {seconds} s is not more than 0 and at most {MAX_TIMEOUT // 1000} s", rule="MQTTRPC-92"
        )
    # 1.1 s is 1100.0000000000002 ms in binary, and is not to become 1101.
    return written(max(1, math.ceil(round(seconds * 1000, 6))))


def deadline(started: float, duration: int) -> float:
    """When a call that started then, and may take ``duration`` milliseconds, must be over."""
    return started + duration / 1000
