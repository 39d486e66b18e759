"""The durable log: every message and event that passed the hub, in order, as Arrow data.

>>> import polywire.journal
>>> journal = polywire.journal.open("journal")  # doctest: +SKIP
>>> for batch in journal.scan(["offset", "channel", "body"], channels="sensors/**"):  # doctest: +SKIP
...     print(batch.num_rows)

Arrow is loaded when one of these names is first used, so that the hub's hot modules can import ``journal.kinds``
without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from polywire.journal.errors import CorruptBatch, JournalError, JournalLocked, JournalLoss, NoJournal

if TYPE_CHECKING:
    from polywire.journal.format import PLAIN_SCHEMA, SCHEMA
    from polywire.journal.log import Log
    from polywire.journal.reader import Journal, Segment, Split
    from polywire.journal.reader import open_journal as open  # noqa: A004 - read as polywire.journal.open
    from polywire.journal.recovery import RecoveryReport

_PLACES = {
    "Journal": ("reader", "Journal"),
    "Log": ("log", "Log"),
    "PLAIN_SCHEMA": ("format", "PLAIN_SCHEMA"),
    "RecoveryReport": ("recovery", "RecoveryReport"),
    "SCHEMA": ("format", "SCHEMA"),
    "Segment": ("reader", "Segment"),
    "Split": ("reader", "Split"),
    "open": ("reader", "open_journal"),
}

__all__ = [
    "PLAIN_SCHEMA",
    "SCHEMA",
    "CorruptBatch",
    "Journal",
    "JournalError",
    "JournalLocked",
    "JournalLoss",
    "Log",
    "NoJournal",
    "RecoveryReport",
    "Segment",
    "Split",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
