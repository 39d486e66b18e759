"""What the benchmarks with goals have in common: scenarios by name, of which a command line may choose some."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from benchmarks.goals import Line

Sizes = TypeVar("Sizes")


class Choice:
    """The command line of one benchmark: ``[scenario …] [--rounds N]``, and what else its parser is told of."""

    def __init__(self, benchmark: str, about: str | None, scenarios: Mapping[str, object], rounds: int) -> None:
        self._known = list(scenarios)
        self.parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}", description=about)
        names = ", ".join(self._known)
        self.parser.add_argument("scenario", nargs="*", help=f"what to measure (default: all of {names})")
        words = f"rounds of each measurement (default: {rounds})"
        self.parser.add_argument("--rounds", type=int, default=rounds, help=words)

    def read(self) -> argparse.Namespace:
        """The options; ``scenario`` are those to run."""
        options = self.parser.parse_args()
        unknown = [name for name in options.scenario if name not in self._known]
        if unknown:
            self.parser.error(f"there is no scenario {unknown[0]!r}")
        options.scenario = options.scenario or self._known
        return options


def run(names: list[str], scenarios: Mapping[str, Callable[[Sizes], Iterator[Line]]], sizes: Sizes) -> int:
    """Run them and print how each goal is met. Returns 1 where one is missed, for the process to leave with."""
    missed = 0
    for name in names:
        for line in scenarios[name](sizes):
            print(line, flush=True)
            missed += not line.met()
    print("all goals met" if not missed else f"{missed} goals MISSED", flush=True)
    return 1 if missed else 0
