"""Words that follow Zipf's law: few are very common, most are rare.

The vocabulary is made of the ranks themselves (`w0` is the most common word), so that a count can
be read off a result. Which word record number k is depends on the seed and k alone.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl

from everstream.connectors.generate.sources import FromFunction
from everstream.errors import UserError
from everstream_lab.bench.workloads.randomness import Integers, bits_of

_SALT = 11
_TABLE_BITS = 20


@dataclass(frozen=True)
class Words:
    """A stream of `total` words, endless if None, with the columns `word` and `time`."""

    total: int | None = None
    seed: int = 0
    vocabulary: int = 10_000
    exponent: float = 1.0
    """Word of rank r comes up in proportion to 1 / (r + 1) ** exponent; 0 is no skew."""
    words_per_s: float = 10_000.0
    """How many there are in a second of event time."""
    first_time_us: int = 0
    timed: bool = True
    """Whether there is a column `time`."""

    def __post_init__(self) -> None:
        if not 1 <= self.vocabulary <= 1 << (_TABLE_BITS - 4):
            raise UserError(f"vocabulary={self.vocabulary} must be from 1 to 65536.")
        if self.words_per_s <= 0:
            raise UserError(f"words_per_s={self.words_per_s} must be positive.")

    def source(self, batch: int = 65_536) -> FromFunction:
        return FromFunction(self.words, total=self.total, batch=batch)

    def all(self) -> pl.DataFrame:
        """Every word in one frame: what the truth is computed from."""
        if self.total is None:
            raise UserError("an endless stream has no end to wait for; give total=.")
        return self.words(0, self.total)

    def words(self, start: int, stop: int) -> pl.DataFrame:
        """Words number start to stop - 1."""
        number = np.arange(start, stop, dtype=np.int64)
        bits = bits_of(self.seed, _SALT, number)
        ranks = _ranks(self.vocabulary, self.exponent)[bits >> np.uint64(64 - _TABLE_BITS)]
        words = _vocabulary(self.vocabulary)[ranks]
        if not self.timed:
            return pl.DataFrame([words])
        time_us = (number * (1e6 / self.words_per_s)).astype(np.int64) + self.first_time_us
        return pl.DataFrame([words, pl.Series("time", time_us)])


@lru_cache(maxsize=4)
def _vocabulary(size: int) -> pl.Series:
    return pl.Series("word", [f"w{rank}" for rank in range(size)])


@lru_cache(maxsize=4)
def _ranks(vocabulary: int, exponent: float) -> Integers:
    """A million slots, each word in as many as is its share: a draw is one look-up.

    Every word has at least one slot, so that with a steep exponent the rarest are a little more
    common than the law says.
    """
    slots = 1 << _TABLE_BITS
    weights = (1.0 + np.arange(vocabulary)) ** -exponent
    spare = slots - vocabulary
    ends = np.round(np.cumsum(weights) / weights.sum() * spare).astype(np.int64)
    sizes = np.diff(ends, prepend=0) + 1
    return np.repeat(np.arange(vocabulary, dtype=np.int64), sizes)
