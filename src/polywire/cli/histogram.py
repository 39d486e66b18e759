"""How long things took: counts in buckets that are each about one hundredth wide, so that memory stays as it is."""

from typing import Final

BITS: Final = 7
"""Each power of two is cut into so many halves: 128 buckets, none wider than 0.8 % of what is in it."""

SIZE: Final = (64 - BITS) << BITS


class Histogram:
    """Times in nanoseconds."""

    def __init__(self) -> None:
        self._counts = [0] * SIZE
        self.count = 0
        self.total = 0
        self.least = 0
        self.most = 0

    def add(self, nanoseconds: int) -> None:
        """One more took so long."""
        value = max(nanoseconds, 0)
        if value < self.least or self.count == 0:
            self.least = value
        self.most = max(self.most, value)
        self.count += 1
        self.total += value
        shift = value.bit_length() - BITS - 1
        self._counts[value if shift <= 0 else (shift << BITS) + (value >> shift)] += 1

    @property
    def mean(self) -> float:
        """The mean, in nanoseconds."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, part: float) -> int:
        """The time that so many of a hundred did not exceed, in nanoseconds."""
        wanted = max(1, -(-self.count * part // 100))
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(max(_middle(bucket), self.least), self.most)
        return self.most


def _middle(bucket: int) -> int:
    """What the times of a bucket are taken for."""
    if bucket < 2 << BITS:
        return bucket
    shift = (bucket >> BITS) - 1
    first = (bucket - (shift << BITS)) << shift
    return first + (1 << shift >> 1)
