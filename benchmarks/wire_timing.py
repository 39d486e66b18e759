"""How long the cases of a codec take, in this process: ``python benchmarks/wire_timing.py CHECKOUT PROTOCOL``.

It is run as a file, so that the cases and the codec are the checkout's, and only the measuring is this version's. Time
is that of the processor: other programs on the machine do not count. What else decides how fast a loop is, is where
its code and objects happen to lie, so each process begins with a different heap.
"""

import importlib
import importlib.util
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

ROUNDS = 7
ROUND_SECONDS = 0.02
BALLAST = 3000
LARGEST = 512
"""Objects of small sizes that displace all others, at most so many and of so many bytes."""


class Timed(Protocol):
    """A case, of any version."""

    @property
    def frames(self) -> int: ...

    @property
    def run(self) -> Callable[[], object]: ...


def best(case: Timed, seconds: float = ROUND_SECONDS) -> float:
    """ns per frame in the best of several rounds of so many seconds."""
    case.run()
    started = time.thread_time()
    case.run()
    repeats = max(1, int(seconds / max(time.thread_time() - started, 1e-9)))
    times = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        for _ in range(repeats):
            case.run()
        times.append((time.thread_time() - started) / repeats)
    return min(times) / case.frames * 1e9


def main() -> None:
    checkout, protocol = sys.argv[1:]
    sys.path[:1] = [str(Path(checkout) / "src"), checkout]
    ballast = [bytes(size) for size in random.choices(range(LARGEST), k=random.randrange(BALLAST))]  # noqa: S311
    # Where the allocator was tuned in earlier versions.
    tuning = "polywire.process" if importlib.util.find_spec("polywire.process") else "polywire.memory"
    importlib.import_module(tuning).tune_allocator()  # as the hub does
    cases = importlib.import_module(f"benchmarks.wire_cases.{protocol}").cases()
    json.dump([(f"{case.what}, {case.size}", best(case)) for case in cases], sys.stdout)
    del ballast


if __name__ == "__main__":
    main()
