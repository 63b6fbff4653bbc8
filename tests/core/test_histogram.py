"""A histogram of how long things took: its quantiles are those of what was put in."""

import math
import random

import pytest

from everstream.core.measuring import BUCKETS, LOWEST_S, Histogram, merged

CLOSE = 2 ** (1 / 8) - 1
"""A bucket is so wide."""


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_close_to_exact_ones_over_five_decades(q: float, seed: int) -> None:
    chance = random.Random(seed)
    values = sorted(math.exp(chance.uniform(math.log(1e-4), math.log(10))) for _ in range(5000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = values[math.ceil(q * len(values)) - 1]
    assert histogram.quantile(q) == pytest.approx(exact, rel=CLOSE)


def test_a_batch_counts_as_its_records() -> None:
    histogram = Histogram()
    histogram.add(0.001, 99)
    histogram.add(1.0, 1)
    assert histogram.total == 100
    assert histogram.quantile(0.5) == pytest.approx(0.001, rel=CLOSE)
    assert histogram.quantile(1.0) == pytest.approx(1.0, rel=CLOSE)


def test_nothing_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


def test_extremes_count_in_the_outermost_buckets() -> None:
    histogram = Histogram()
    for took_s in (-1.0, 0.0, LOWEST_S / 2, 1e9):
        histogram.add(took_s)
    assert (histogram.counts[0], histogram.counts[BUCKETS - 1]) == (3, 1)


def test_shards_add_up_and_two_readings_give_what_lies_between() -> None:
    first, second = Histogram(), Histogram()
    first.add(0.002, 5)
    second.add(0.3, 7)
    both = merged([first, second])
    assert (both.total, first.total) == (12, 5)
    before = both.copy()
    both.add(4.0, 2)
    assert both.since(before).quantile(0.5) == pytest.approx(4.0, rel=CLOSE)
