"""The knobs every workload shares, in plain units, and the vectorised sampling behind them.

Keys are drawn from a Zipf distribution and laid over partitions (key modulo partitions);
a transaction stays in the partition of its first key unless it is one of the
`multi_partition` share that draws all its keys freely.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.transactions.definition import Transaction
from everstream.transactions.tables import Table

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """What a workload looks like. Shares are fractions from 0 to 1, costs are seconds."""

    keys: int = 10_000
    skew: float = 0.0
    multi_partition: float = 0.5
    aborts: float = 0.0
    length: int = 4
    partitions: int = 24
    operation_cost_s: float = 8e-6


@dataclass(frozen=True)
class Workload:
    """Tables, transactions, and a generator of events that is the same for the same seed."""

    name: str
    tables: tuple[Table, ...]
    transactions: tuple[Transaction, ...]
    shape: Shape
    generate: Callable[[np.random.Generator, int, Shape], dict[str, Any]]

    def events(self, count: int, seed: int) -> pl.DataFrame:
        """The first `count` events of the stream with this seed."""
        return pl.DataFrame(self.generate(np.random.default_rng(seed), count, self.shape))


@lru_cache(maxsize=16)
def _cumulative(keys: int, skew: float) -> npt.NDArray[np.float64]:
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    return np.asarray(np.cumsum(weights) / weights.sum(), np.float64)


@lru_cache(maxsize=16)
def _shuffled(keys: int) -> Longs:
    """Which key is the hottest, second hottest, ...: fixed, so that runs can be compared."""
    return np.random.default_rng(keys).permutation(keys).astype(np.int64)


def draw_keys(rng: np.random.Generator, count: int, keys: int, skew: float) -> Longs:
    """Keys by Zipf's law: the r-th hottest is drawn in proportion to r to the power of -skew."""
    if skew == 0:
        return rng.integers(0, keys, count)
    ranks = np.searchsorted(_cumulative(keys, skew), rng.random(count))
    return _shuffled(keys)[np.minimum(ranks, keys - 1)]


def draw_key_sets(
    rng: np.random.Generator, count: int, shape: Shape, width: int, distinct: Sequence[int] = ()
) -> list[Longs]:
    """`width` keys per event; positions in `distinct` differ from position 0."""
    first = draw_keys(rng, count, shape.keys, shape.skew)
    home = first % shape.partitions
    stays = rng.random(count) >= shape.multi_partition
    sets = [first]
    for position in range(1, width):
        free = draw_keys(rng, count, shape.keys, shape.skew)
        local = free - free % shape.partitions + home
        local = np.where(local < shape.keys, local, home)
        chosen = np.where(stays, local, free)
        if position in distinct:
            step = np.where(
                chosen + shape.partitions < shape.keys, shape.partitions, -shape.partitions
            )
            chosen = np.where(chosen == first, chosen + step, chosen)
        sets.append(chosen)
    return sets


def choose(rng: np.random.Generator, count: int, share: float) -> npt.NDArray[np.bool_]:
    """Marks about `share` of the events."""
    return rng.random(count) < share
