"""How far a stream is: for each journal the offset it reads next, and how far one step may go."""

from collections.abc import Mapping
from typing import Any, Final

Place = dict[str, int]
"""The next offset of each journal, by the journal's name; names in order, because Spark compares places as text."""

TICK: Final = "$tick"
"""In a place, beside the journals: the time of the last tick (see ``ticks``)."""


def placed(offsets: Mapping[str, int]) -> Place:
    """The one way to write a place."""
    return {name: offsets[name] for name in sorted(offsets)}


def next_place(start: Place, safe: Mapping[str, int], first: Mapping[str, int], rows: int | None) -> Place:
    """Where a step that begins at ``start`` ends: at what is ``safe``, with at most ``rows`` rows altogether.

    A journal that ``start`` does not know yet begins at its ``first`` offset. A limit is shared out evenly: what one
    journal leaves of its share the others get.
    """
    begin = {name: start.get(name, first[name]) for name in safe}
    waiting = {name: max(safe[name] - begin[name], 0) for name in safe}
    taken = waiting if rows is None else _shared(waiting, rows)
    return placed({**start, **{name: begin[name] + taken[name] for name in safe}})


def _shared(waiting: Mapping[str, int], rows: int) -> dict[str, int]:
    taken: dict[str, int] = {}
    left = rows
    # The ones with little waiting come first, so that what they leave is there for those behind.
    order = sorted(waiting, key=lambda name: (waiting[name], name))
    for position, name in enumerate(order):
        share = left // (len(order) - position)
        taken[name] = min(waiting[name], share)
        left -= taken[name]
    return taken


def from_spark(offset: Mapping[str, Any]) -> Place:
    """A place as Spark gives it back from its checkpoint."""
    return placed({str(name): int(value) for name, value in offset.items()})
