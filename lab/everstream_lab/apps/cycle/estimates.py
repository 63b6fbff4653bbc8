"""Means with confidence intervals, and ratios of them.

Intervals are Student's t, since runs are few; two settings are compared by the ratio of their
geometric means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean of some runs; without an interval if there was only one."""

    mean: float
    deviation: float
    runs: int
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, float | int | None]:
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "runs": self.runs,
            "low": self.low,
            "high": self.high,
        }


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of some runs with its confidence interval.

    >>> found = estimate([9.0, 10.0, 11.0])
    >>> round(found.low, 2), found.mean, round(found.high, 2)
    (7.52, 10.0, 12.48)
    """
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, 0.0, len(values), None, None)
    spread = stdev(values)
    half = t_quantile(confidence, len(values) - 1) * spread / math.sqrt(len(values))
    return Estimate(mean, spread, len(values), mean - half, mean + half)


@dataclass(frozen=True)
class Ratio:
    """How many times the one is the other; without an interval if either ran only once."""

    ratio: float
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, float | None]:
        return {"ratio": self.ratio, "low": self.low, "high": self.high}


def ratio_of(
    values: Sequence[float], base: Sequence[float], confidence: float = CONFIDENCE
) -> Ratio:
    """The first by the second, both above 0.

    >>> found = ratio_of([20.0, 21.0, 19.0], [10.0, 10.0, 10.0])
    >>> found.low < 2 < found.high
    True
    """
    over, under = [math.log(value) for value in values], [math.log(value) for value in base]
    middle = fmean(over) - fmean(under)
    if len(over) < 2 or len(under) < 2:
        return Ratio(math.exp(middle), None, None)
    one, other = variance(over) / len(over), variance(under) / len(under)
    if one + other == 0.0:
        return Ratio(math.exp(middle), math.exp(middle), math.exp(middle))
    freedom = (one + other) ** 2 / (one**2 / (len(over) - 1) + other**2 / (len(under) - 1))
    # Rounded down to whole degrees: the interval is then a little wider, never too narrow.
    half = t_quantile(confidence, max(math.floor(freedom), 1)) * math.sqrt(one + other)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def t_quantile(confidence: float, freedom: int) -> float:
    """How many standard errors to either side hold this share of Student's t.

    >>> round(t_quantile(0.95, 1), 3), round(t_quantile(0.95, 10), 3)
    (12.706, 2.228)
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """The share of Student's t between -t and t: a finite sum for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * ((step - 1) / step)
        total += term
    if odd:
        return 2 / math.pi * (angle + sine * total)
    return sine * total
