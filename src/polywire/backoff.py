"""The delay before a retry: the one policy for clients, HTTP requests and the pipeline."""

import random
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before each attempt: a random part of a time that doubles, from ``first`` to ``most`` seconds.

    ``give_up`` is for how many seconds to try in all, None for ever.
    """

    first: float = 0.2
    most: float = 10.0
    give_up: float | None = None

    def pause(self, attempt: int) -> float:
        """Seconds before the attempt of this number, counted from 0."""
        longest = min(self.most, self.first * 2.0 ** min(attempt, 32))
        # Clients that lost the same hub at the same moment must not come back at the same moment.
        return random.uniform(longest / 10, longest)  # noqa: S311 - no secret


BACKOFF: Final = Backoff()
"""How a client reconnects, by default."""
