"""Bids as columns: Polars expressions on whole batches, at the speed of Polars.

Nothing here runs per record in Python. The result of a bounded pipeline comes back as a Polars or
a Spark DataFrame.
"""

import polars as pl

import everstream as es

BIDS = 1_000_000


def bids(start: int, stop: int) -> pl.DataFrame:
    number = pl.int_range(start, stop, dtype=pl.Int64)
    return pl.select(
        auction=number * 31 % 1000,
        bidder=number * 17 % 4999,
        price_cents=number * 7919 % 100_000 + 1,
    )


def best_per_auction(batch: pl.DataFrame) -> pl.DataFrame:
    """The best bids within a batch."""
    return batch.group_by("auction").agg(pl.col("price_euros").max(), pl.len().alias("bids"))


pipeline = es.Pipeline("auctions")
(
    pipeline.source(es.FromFunction(bids, total=BIDS), name="bids", shards=2)
    .filter(pl.col("price_cents") >= 50_000, name="serious")
    .with_columns(price_euros=pl.col("price_cents") / 100)
    .map_batches(best_per_auction, name="best")
    .collect()
)


def best_bids(found: pl.DataFrame) -> pl.DataFrame:
    """One row per auction, out of those of all batches."""
    best = found.group_by("auction").agg(pl.col("price_euros").max(), pl.col("bids").sum())
    return best.sort("auction")


if __name__ == "__main__":
    result = pipeline.run(checkpoint=es.Coordinated(every="2s"))
    print(best_bids(result.to_polars()))
