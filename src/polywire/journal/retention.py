"""What of the journal may go: a pure function from segments, limits and what is still needed to what to delete.

Whole segments go, the oldest first, as long as a limit is passed. Never the newest one, never what the hub needs to
come back after a crash, and never what a named reader still needs, unless the limits say so. ``housekeeping.py`` does
what is planned here.

Rows carry the time of the wall clock, and a clock can be wrong. ``AgeClock`` keeps a clock that was set forward from
making all rows old at once.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, Protocol, TypeVar

from polywire.journal.readers import NamedReader

JUMP_SECONDS: Final = 3600.0
"""A clock that is further ahead than this of where it should be has jumped."""

BELIEVED_SECONDS: Final = 86400.0
"""How long a clock has to stay there before ages are measured by it."""

log = logging.getLogger("polywire.journal")


class Kept(Protocol):
    """What is asked of a segment."""

    @property
    def first_offset(self) -> int:
        """The offset of its first row."""

    @property
    def end_offset(self) -> int:
        """The offset behind its last row."""

    @property
    def octets(self) -> int:
        """Its size on disk."""

    @property
    def max_time(self) -> datetime | None:
        """When its last row was written; None where it has none."""

    @property
    def closed(self) -> bool:
        """Whether nothing more is written to it."""


Segment_co = TypeVar("Segment_co", bound=Kept, covariant=True)


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """How much is kept: octets and seconds (0: no limit), and whether named readers are waited for."""

    octets: int = 0
    seconds: float = 0.0
    for_readers: bool = True


@dataclass(frozen=True, slots=True)
class Plan(Generic[Segment_co]):
    """``delete`` are the segments to delete, the oldest first. ``held_by`` tells what kept more from being deleted.

    It names readers, or ``state``: the hub's state has not been written down behind that segment yet. ``overdue`` is
    whether what is held is too old to be kept, and ``over`` how many octets the journal is over its limit once that is
    done.
    """

    delete: tuple[Segment_co, ...] = ()
    held_by: tuple[str, ...] = ()
    overdue: bool = False
    over: int = 0


STATE = "state"


def plan_retention(
    segments: Sequence[Segment_co],
    limits: KeepLimits,
    *,
    now: datetime,
    state_offset: int,
    readers: Iterable[NamedReader] = (),
    other_octets: int = 0,
) -> Plan[Segment_co]:
    """What to delete of ``segments``, which are in order. The hub needs what is from ``state_offset`` on to start.

    ``other_octets`` is what the journal has on the disk besides them.
    """
    needs = {STATE: state_offset}
    if limits.for_readers:
        needs.update((f"reader {reader.name}", reader.offset) for reader in readers)
    oldest = now - timedelta(seconds=limits.seconds)
    octets = other_octets + sum(segment.octets for segment in segments)
    times = _times(segments, now)
    delete: list[Segment_co] = []
    held: tuple[str, ...] = ()
    overdue = False
    for segment, last in zip(segments[:-1], times, strict=False):  # the newest tells the next writer where to go on
        too_large = limits.octets > 0 and octets > limits.octets
        too_old = limits.seconds > 0 and last is not None and last < oldest
        if not segment.closed or not (too_large or too_old):
            break
        held = tuple(name for name, offset in needs.items() if offset < segment.end_offset)
        if held:
            overdue = too_old
            break
        delete.append(segment)
        octets -= segment.octets
    over = max(0, octets - limits.octets) if limits.octets > 0 else 0
    return Plan(tuple(delete), held, overdue, over)


def _times(segments: Sequence[Kept], now: datetime) -> list[datetime | None]:
    """When the last row of each segment was written, as far as that can be believed; None for not yet known.

    A segment without rows, or with rows of the future, which a clock that was ahead has left, is as old as the one
    after it.
    """
    times: list[datetime | None] = []
    found: datetime | None = None
    for segment in reversed(segments):
        if segment.max_time is not None and segment.max_time <= now:
            found = segment.max_time
        times.append(found)
    return times[::-1]


class AgeClock:
    """The time by which rows' ages are measured: the wall clock's, unless that has jumped forward.

    ``newest`` is the time of the newest row when the hub starts. A clock that is more than ``JUMP_SECONDS`` ahead of
    where it should be, by the monotonic clock, is believed once it has been so for ``BELIEVED_SECONDS``: until then
    there is time to set it right, and nothing is deleted for its age that would not have been before.
    """

    def __init__(
        self,
        newest: datetime | None,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead = (wall() if newest is None else newest.timestamp()) - monotonic()
        self._jumped: float | None = None
        self._level = logging.INFO  # at a start it just means that the hub was away for a while

    def now(self) -> datetime:
        """The time it is."""
        wall, monotonic = self._wall(), self._monotonic()
        jump = wall - monotonic - self._ahead
        if jump > JUMP_SECONDS:
            if self._jumped is None:
                self._jumped = monotonic
                words = "the clock is %.0f s ahead of the newest row, or of itself; keep_time believes it in %.0f s"
                log.log(self._level, words, jump, BELIEVED_SECONDS)
            self._level = logging.WARNING
            if monotonic - self._jumped < BELIEVED_SECONDS:
                return datetime.fromtimestamp(monotonic + self._ahead, UTC)
        self._jumped = None
        self._level = logging.WARNING
        self._ahead = wall - monotonic
        return datetime.fromtimestamp(wall, UTC)
