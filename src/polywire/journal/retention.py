"""What of the journal may go: a pure function from segments, limits and what is still needed to what to delete.

Whole segments go, the oldest first, as long as a limit is passed. Never the newest one, never what the hub needs to
come back after a crash, and never what a named reader still needs, unless the limits say so. ``housekeeping.py`` does
what is planned here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from polywire.journal.readers import NamedReader


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

    It names readers, or ``state``: the hub's state has not been written down behind that segment yet. ``over`` is how
    many octets the journal is over its limit once that is done.
    """

    delete: tuple[Segment_co, ...] = ()
    held_by: tuple[str, ...] = ()
    over: int = 0


STATE = "state"


def plan_retention(
    segments: Sequence[Segment_co],
    limits: KeepLimits,
    *,
    now: datetime,
    state_offset: int,
    readers: Iterable[NamedReader] = (),
) -> Plan[Segment_co]:
    """What to delete of ``segments``, which are in order. The hub needs what is from ``state_offset`` on to start."""
    needs = {STATE: state_offset}
    if limits.for_readers:
        needs.update((f"reader {reader.name}", reader.offset) for reader in readers)
    oldest = now - timedelta(seconds=limits.seconds)
    octets = sum(segment.octets for segment in segments)
    delete: list[Segment_co] = []
    held: tuple[str, ...] = ()
    for segment in segments[:-1]:  # the newest tells the next writer where to go on, whatever is in it
        too_large = limits.octets > 0 and octets > limits.octets
        too_old = limits.seconds > 0 and (segment.max_time is None or segment.max_time < oldest)
        if not segment.closed or not (too_large or too_old):
            break
        held = tuple(name for name, offset in needs.items() if offset < segment.end_offset)
        if held:
            break
        delete.append(segment)
        octets -= segment.octets
    over = max(0, octets - limits.octets) if limits.octets > 0 else 0
    return Plan(tuple(delete), held, over)
