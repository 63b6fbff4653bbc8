"""Bids on a fixed number of auctions, all equally wanted: the plainest load for a window.

NEXMark opens auctions all the time, so that a window holds some thousands of them; here there are
always the same ones, as in the measurements of other systems that figures are compared with.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np
import polars as pl

from everstream.connectors.generate.sources import FromFunction
from everstream.errors import UserError
from everstream_lab.bench.workloads.randomness import Integers, hash_start

_SALT = 31
_U = np.uint64


@dataclass(frozen=True)
class SteadyBids:
    """A stream of `total` bids, endless if None: `auction`, `bidder`, `price` and `time`."""

    total: int | None = None
    seed: int = 0
    auctions: int = 1_000
    bids_per_s: float = 100_000.0
    """How many there are in a second of event time."""

    def __post_init__(self) -> None:
        if not 1 <= self.auctions <= 1 << 20:
            raise UserError(f"auctions={self.auctions} must be from 1 to {1 << 20}.")
        if self.bids_per_s <= 0:
            raise UserError(f"bids_per_s={self.bids_per_s} must be positive.")

    def source(self, batch: int = 65_536) -> FromFunction:
        return FromFunction(self.bids, total=self.total, batch=batch)

    def bids(self, start: int, stop: int) -> pl.DataFrame:
        """Bids number start to stop - 1."""
        columns = _fill(
            start,
            stop,
            np.uint64(hash_start(self.seed, _SALT)),
            self.auctions,
            1e6 / self.bids_per_s,
        )
        names = ("auction", "bidder", "price", "time")
        return pl.DataFrame([pl.Series(*pair) for pair in zip(names, columns, strict=True)])


@nb.njit(cache=True, nogil=True)
def _fill(
    start: int, stop: int, hash_start: np.uint64, auctions: int, apart_us: float
) -> tuple[Integers, Integers, Integers, Integers]:
    count = stop - start
    auction = np.empty(count, np.int64)
    bidder = np.empty(count, np.int64)
    price = np.empty(count, np.int64)
    time_us = np.empty(count, np.int64)
    for row in range(count):
        bits = _U(start + row) * _U(0x9E3779B97F4A7C15) + hash_start
        bits ^= bits >> _U(30)
        bits *= _U(0xBF58476D1CE4E5B9)
        bits ^= bits >> _U(27)
        bits *= _U(0x94D049BB133111EB)
        bits ^= bits >> _U(31)
        auction[row] = np.int64(((bits & _U(0xFFFFFFFF)) * _U(auctions)) >> _U(32))
        bidder[row] = np.int64((bits >> _U(32)) & _U(0x1FFF))
        price[row] = np.int64(bits >> _U(50))
        time_us[row] = np.int64((start + row) * apart_us)
    return auction, bidder, price, time_us
