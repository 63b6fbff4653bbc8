"""The bids of NEXMark, one after the other in compiled code: the hot path of every measurement.

Forty-six of fifty events are bids. Made with numpy they cost some thirty passes over arrays too
large for the cache; made here each bid is finished before the next begins.
"""

from typing import Any

import numba as nb
import numpy as np

from everstream_lab.bench.workloads.randomness import Integers

_U = np.uint64


@nb.njit(cache=True, inline="always")
def _mixed(x: Any) -> Any:
    x ^= x >> _U(30)
    x *= _U(0xBF58476D1CE4E5B9)
    x ^= x >> _U(27)
    x *= _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@nb.njit(cache=True, nogil=True)
def fill_bids(
    start: int,
    stop: int,
    hash_start: np.uint64,
    open_auctions: int,
    active_persons: int,
    hot_auctions: int,
    hot_bidders: int,
    prices: Integers,
    first_time_us: int,
    apart_us: float,
) -> tuple[Integers, Integers, Integers, Integers]:
    """Auction, bidder, price and time of bids start to stop - 1. Hot shares are of 1024."""
    count = stop - start
    auction = np.empty(count, np.int64)
    bidder = np.empty(count, np.int64)
    price = np.empty(count, np.int64)
    time_us = np.empty(count, np.int64)
    whole_us = np.int64(apart_us)
    in_whole_us = np.float64(whole_us) == apart_us
    round_number = np.int64(start // 46)
    in_round = np.int64(start % 46)
    for row in range(count):
        bits = _mixed(_U(start + row) * _U(0x9E3779B97F4A7C15) + _U(hash_start))
        last_auction = round_number * 3 + 2
        if np.int64(bits & _U(1023)) < hot_auctions:
            auction[row] = last_auction // 100 * 100
        else:
            among = min(int(last_auction) + 1, open_auctions)
            draw = np.int64((bits >> _U(10)) & _U(0x3FFFF))
            auction[row] = last_auction - ((draw * among) >> 18)
        if np.int64(bits >> _U(54)) < hot_bidders:
            bidder[row] = round_number // 100 * 100
        else:
            among = min(int(round_number) + 1, active_persons)
            draw = np.int64((bits >> _U(28)) & _U(0x3FFF))
            bidder[row] = round_number - ((draw * among) >> 14)
        price[row] = prices[np.int64((bits >> _U(42)) & _U(0xFFF))]
        event = round_number * 50 + 4 + in_round
        if in_whole_us:
            time_us[row] = first_time_us + event * whole_us
        else:
            time_us[row] = first_time_us + np.int64(event * apart_us)
        in_round += 1
        if in_round == 46:
            in_round = np.int64(0)
            round_number += 1
    return auction, bidder, price, time_us
