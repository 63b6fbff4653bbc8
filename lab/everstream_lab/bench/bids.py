"""A stream of bids: four int64 columns, made from the record number alone, in one vector step."""

import numpy as np
import polars as pl

AUCTIONS = 1_000
BIDDERS = 7_919
BATCH = 65_536


def bids(start: int, stop: int) -> pl.DataFrame:
    """Bids number start to stop-1: the same ones whenever and wherever they are asked for."""
    number = np.arange(start, stop, dtype=np.int64)
    mixed = (number * 2_654_435_761) & 0x7FFFFFFF
    return pl.DataFrame(
        {
            "auction": mixed % AUCTIONS,
            "bidder": (mixed >> 3) % BIDDERS,
            "price": (mixed >> 7) % 10_000,
            "ts": number,
        }
    )


def even_auctions(records: int) -> int:
    """How many of the first `records` bids are on an auction with an even number."""
    total = 0
    for start in range(0, records, 1 << 22):
        batch = bids(start, min(records, start + (1 << 22)))
        total += int((batch["auction"].to_numpy() % 2 == 0).sum())
    return total
