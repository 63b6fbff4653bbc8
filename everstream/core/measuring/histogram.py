"""Durations as counts in fixed buckets, which give any quantile over any stretch of time.

Buckets are spaced logarithmically, so an estimate is off by at most some 4.5 %, for microseconds
and for minutes. All histograms have the same buckets: those of several shards add up, and the
difference of two readings of one covers the time between them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

LOWEST_S = 1e-5
"""Shorter durations count as this."""
PER_OCTAVE = 8
OCTAVES = 27
BUCKETS = PER_OCTAVE * OCTAVES
"""Up to some 1,340 s; longer durations count in the last bucket."""


def lower_s(bucket: float) -> float:
    """Where a bucket begins; it ends where the next one begins."""
    return LOWEST_S * math.exp2(bucket / PER_OCTAVE)


@dataclass(slots=True)
class Histogram:
    """Counts per bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, took_s: float, times: int = 1) -> None:
        """Count a duration, `times` times."""
        bucket = int(PER_OCTAVE * math.log2(took_s / LOWEST_S)) if took_s > LOWEST_S else 0
        self.counts[min(bucket, BUCKETS - 1)] += times

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile(self, q: float) -> float | None:
        """Seconds within which this share of all was done (the median: 0.5); None if empty."""
        total = self.total
        if not total:
            return None
        rank, below = q * total, 0
        for bucket, count in enumerate(self.counts):
            if count and below + count >= rank:
                return lower_s(bucket + max(0.0, rank - below) / count)
            below += count
        raise AssertionError("a share is between 0 and 1")

    def copy(self) -> Self:
        return type(self)(list(self.counts))

    def merge(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]

    def since(self, before: "Histogram") -> Self:
        """What was added after an earlier reading of this one."""
        return type(self)([a - b for a, b in zip(self.counts, before.counts, strict=True)])


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """All of them in one."""
    everything = Histogram()
    for histogram in histograms:
        everything.merge(histogram)
    return everything
