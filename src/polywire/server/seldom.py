"""Log lines that anybody can cause, written seldom: a flood of events must not become a flood of lines."""

import logging
from collections.abc import Callable

SECONDS = 5.0
"""How far apart two lines of the same kind are."""


class Seldom:
    """One kind of line. What happens in between is counted, and told with the next line."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._next = float("-inf")
        self._untold = 0

    def warn(self, words: str, *arguments: object) -> None:
        """Write the line, unless the last one was a moment ago."""
        now = self._clock()
        if now < self._next:
            self._untold += 1
            return
        self._next = now + SECONDS
        if self._untold:
            words += " (and %d more like it)"
            arguments = (*arguments, self._untold)
            self._untold = 0
        self._log.warning(words, *arguments)
