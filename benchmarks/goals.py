"""Goals of the benchmarks: one line each, with what was measured and whether that is good enough."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Line:
    """One goal. ``value`` may be at most ``most`` and must be at least ``least``, whichever is given."""

    what: str
    shown: str
    value: float
    least: float | None = None
    most: float | None = None
    unit: str = "x"

    def met(self) -> bool:
        """Whether the goal is reached."""
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def goal(self) -> str:
        """The goal in words."""
        return f">= {self.least:g} {self.unit}" if self.least is not None else f"<= {self.most:g} {self.unit}"

    def __str__(self) -> str:
        value = f"{self.value:.2f} {self.unit}"
        return f"{self.what:<44} {self.shown:<34} {value:>9}  {self.goal():<10} {'met' if self.met() else 'MISSED'}"


def in_turns(runs: Mapping[Key, Callable[[], float]], rounds: int) -> dict[Key, float]:
    """The median of each measurement, taken in turns, so that a busy moment of the machine hits all of them."""
    results: dict[Key, list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, run in runs.items():
            results[key].append(run())
    return {key: median(values) for key, values in results.items()}
