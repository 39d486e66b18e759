"""Which parts of which query were published, and by whom: what ``ingest`` remembers, and the journal for it.

A part takes two steps. First its messages and a note go to the journal as one batch, so that either all of it is there
or nothing. Then the messages are delivered, which may leave rows of its own for sessions that are kept; a second note,
behind those rows, says that this is done. A hub that starts and finds the first note only does the second step again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec.json

from polywire.hub.hub import Hub
from polywire.hub.recorder import Recorder

SHARED: Final = "ingest"
"""Where the hub keeps the queries, in ``Hub.shared``."""

PREFIX: Final = "sink:"
"""Begins the names under which the journal has them."""

ROWS: Final = "rows"
USER: Final = "user"


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of which batch of which query."""

    query: str
    batch: int
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among its query's parts."""
        return self.batch, self.number


@dataclass(slots=True)
class Progress:
    """How far a query has got. ``user`` owns it; None for one of a journal that knew no owners.

    ``undelivered`` are the offsets, from and to, of the messages of its last part that may not be delivered yet.
    """

    place: tuple[int, int]
    user: str | None
    undelivered: tuple[int, int] | None = None


def queries(hub: Hub) -> dict[str, Progress]:
    """All queries by name."""
    return cast("dict[str, Progress]", hub.shared.setdefault(SHARED, {}))


def note(recorder: Recorder, part: Part, user: str, *, rows: int = 0) -> None:
    """Record that a part is there: all of it, or that its messages are the ``rows`` before this one."""
    known: dict[str, object] = {USER: user} if not rows else {USER: user, ROWS: rows}
    recorder.applied(PREFIX + part.query, f"{part.batch}:{part.number}", msgspec.json.encode(known).decode())


def restore_query(hub: Hub, row: dict[str, Any]) -> None:
    """Take over what the journal remembers."""
    batch, _, number = row["correlation"].partition(":")
    known = msgspec.json.decode(row["headers"]) if row["headers"] else {}
    progress = Progress((int(batch), int(number)), known.get(USER))
    if ROWS in known:
        progress.undelivered = (row["offset"] - known[ROWS], row["offset"])
    queries(hub)[row["client"].removeprefix(PREFIX)] = progress


def undelivered_from(hub: Hub) -> list[int]:
    """Where the messages begin of each part that is to be delivered again."""
    return [progress.undelivered[0] for progress in queries(hub).values() if progress.undelivered is not None]


def undelivered(hub: Hub) -> Iterable[tuple[Part, Progress]]:
    """The queries whose last part is to be delivered again."""
    for query, progress in queries(hub).items():
        if progress.undelivered is not None:
            yield Part(query, *progress.place), progress
