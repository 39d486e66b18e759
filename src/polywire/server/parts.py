"""Which parts of which query were applied: what ``ingest`` remembers, and the journal for it."""

from dataclasses import dataclass
from typing import Any, Final, cast

from polywire.hub.hub import Hub

SHARED: Final = "ingest"
"""Where the hub keeps the parts that were applied, in ``Hub.shared``."""

PREFIX: Final = "sink:"
"""Begins the names under which the journal has them."""


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


def applied_parts(hub: Hub) -> dict[str, tuple[int, int]]:
    """The last part of each query that was applied."""
    return cast("dict[str, tuple[int, int]]", hub.shared.setdefault(SHARED, {}))


def restore_part(hub: Hub, row: dict[str, Any]) -> None:
    """Take over what the journal remembers."""
    batch, _, number = row["correlation"].partition(":")
    applied_parts(hub)[row["client"].removeprefix(PREFIX)] = (int(batch), int(number))
