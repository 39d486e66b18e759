"""A journal, opened the way the commands of ``polywire journal`` name it, and the rows a selection means."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from polywire import journal
from polywire.cli.journal_options import Selection
from polywire.journal.errors import NoJournal
from polywire.journal.reader import Journal

BACKWARDS = 1024
"""How many rows from the end are looked at first for the last few that match; then ever more."""


def open_place(place: str, token: str | None = None) -> Journal:
    """The journal at a path, a URI or a hub's address; ``NoJournal`` where there is none."""
    found = journal.open(place, token=token) if place.startswith(("http://", "https://")) else journal.open(place)
    if not found.exists:
        raise NoJournal(place)
    return found


def scan(found: Journal, selection: Selection, **more: Any) -> Iterator[Any]:
    """The batches of the rows that are wanted."""
    return found.scan(**arguments(selection), **more)


def arguments(selection: Selection) -> dict[str, Any]:
    """What ``Journal.scan`` is to be called with for a selection."""
    found: dict[str, Any] = {}
    for name, place in (("from", selection.since), ("to", selection.until)):
        if place is not None:
            found[f"{name}_time" if isinstance(place, datetime) else f"{name}_offset"] = place
    for name in ("channels", "kinds", "protocols"):
        wanted = getattr(selection, name)
        if wanted:
            found[name] = list(wanted)
    return found


def limited(batches: Iterator[Any], limit: int | None) -> Iterator[Any]:
    """The batches up to so many rows."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def last_rows(found: Journal, selection: Selection, count: int, **more: Any) -> list[Any]:
    """The last ``count`` rows that match, as batches, found from the end without reading all of the journal."""
    wanted = arguments(selection)
    first = max(found.first_offset, wanted.pop("from_offset", 0))
    end = min(found.end_offset, wanted.pop("to_offset", found.end_offset))
    step = max(BACKWARDS, count)
    kept: list[Any] = []
    rows = 0
    while end > first and rows < count:
        begin = max(first, end - step)
        batches = list(found.scan(**wanted, from_offset=begin, to_offset=end, **more))
        kept = batches + kept
        rows += sum(batch.num_rows for batch in batches)
        end, step = begin, step * 2
    surplus = rows - count
    while surplus > 0 and kept:
        if kept[0].num_rows <= surplus:
            surplus -= kept.pop(0).num_rows
        else:
            kept[0] = kept[0].slice(surplus)
            surplus = 0
    return [batch for batch in kept if batch.num_rows]
