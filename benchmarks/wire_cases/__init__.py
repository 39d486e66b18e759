"""One module per protocol, each with ``cases()``."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time. ``run`` handles ``frames`` frames; ``what`` is decode, encode, scan many or scan one.

    ``goal`` is the ratio compiled over interpreted to reach, ``most`` the ns per frame allowed when compiled.
    """

    what: str
    size: str
    frames: int
    run: Callable[[], object]
    goal: float | None = None
    most: float | None = None
