"""How fast something goes on, now and over the last seconds, for the views of ``sub`` and ``bench``."""

import collections
import time
from collections.abc import Callable
from typing import Final

BARS: Final = " ▁▂▃▄▅▆▇█"
STEP: Final = 0.5
"""Seconds between two samples."""


class Rate:
    """A number that grows, sampled every now and then: ``sample`` is called at least twice a second."""

    def __init__(self, kept: int = 40, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._at = clock()
        self._counted = 0
        self._total = 0
        self._steps: collections.deque[float] = collections.deque(maxlen=kept)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock() - self._begun

    @property
    def now(self) -> float:
        """How many a second, of late."""
        recent = list(self._steps)[-2:]
        return sum(recent) / len(recent) if recent else self.mean

    @property
    def mean(self) -> float:
        """How many a second, since the beginning."""
        return self._total / self.seconds if self.seconds > 0 else 0.0

    def sample(self, total: int) -> None:
        """So many there are by now."""
        self._total = total
        now = self._clock()
        if now - self._at >= STEP:
            self._steps.append((total - self._counted) / (now - self._at))
            self._at, self._counted = now, total

    def bars(self) -> str:
        """The last samples as bars, the newest at the right."""
        highest = max(self._steps, default=0.0)
        if highest <= 0:
            return BARS[0] * len(self._steps)
        last = len(BARS) - 1
        # What is little is still to be told from nothing.
        return "".join(BARS[0 if step <= 0 else max(1, round(step / highest * last))] for step in self._steps)


def short(number: float, unit: str = "") -> str:
    """A number in few characters: 950, 12.3 k, 4.56 M."""
    for limit, factor, letter in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e15, 1e9, "G")):
        if number < limit:
            scaled = number / factor
            digits = 0 if letter == "" else 2 if scaled < 10 else 1 if scaled < 100 else 0
            text = f"{scaled:.{digits}f}"
            return f"{text} {letter}{unit}".rstrip()
    return f"{number:.2g} {unit}".rstrip()


def took(seconds: float) -> str:
    """A time in few characters: 850 µs, 1.25 ms, 3.40 s."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if seconds < limit:
            scaled = seconds * factor
            digits = 0 if unit == "µs" else 2 if scaled < 10 else 1
            return f"{scaled:.{digits}f} {unit}"
    raise ValueError(seconds)
