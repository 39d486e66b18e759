"""What a pipeline is to do: which journal, which tables, into which lake, how often."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from polywire.pipeline.errors import OptionError
from polywire.pipeline.table import Table

DEFAULT_TRIGGER: Final = "1 second"
"""A step costs about half a second of the machine whatever it holds; what comes meanwhile waits for the next one."""

_TRIGGER: Final = re.compile(r"\s*(\d+)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?)\s*")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


RETRIES: Final = 8
"""With the pauses between them about two minutes: a hub that starts again is back by then."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run of the pipeline. ``tables`` are all there are by name; ``wanted`` those to write, all where it is empty.

    ``retries`` is how often a query that fails for a passing reason is started again before it gets something done.
    """

    journal: str
    lake: str
    tables: Mapping[str, Table]
    wanted: tuple[str, ...] = ()
    trigger: str = DEFAULT_TRIGGER
    once: bool = False
    token: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """More options for the source."""
    retries: int = RETRIES

    def source_options(self, columns: tuple[str, ...], kinds: tuple[str, ...]) -> dict[str, str]:
        """The options to read the journal with."""
        options = {"journal": self.journal, "columns": ",".join(columns)}
        if kinds:
            options["kinds"] = ",".join(kinds)
        if self.token is not None:
            options["token"] = self.token
        return {**options, **self.options}


def trigger_interval(text: str) -> str:
    """An interval as Spark writes it: of ``5 s``, ``500ms``, ``1 minute``."""
    found = _TRIGGER.fullmatch(text)
    if found is None:
        raise OptionError("trigger", f"{text!r} is not an interval; write 1s, 500ms or '2 minutes'")
    unit = found[2][0] if found[2] != "ms" and not found[2].startswith("milli") else "ms"
    return f"{found[1]} {_UNITS[unit]}"
