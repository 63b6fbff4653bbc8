"""The winning bid of each auction, given when the auction closes: what queries 4 and 6 stand on.

Bids and auctions arrive on one keyed stream (column `auction`), an auction told by its column
`expires`. Nothing is decided until the watermark has passed: then every bid and every auction
before it is there, and an auction whose `expires` lies before it can get no more bids.
"""

from collections.abc import Sequence

import polars as pl

from everstream.bench.workloads.in_order import InOrder
from everstream.bench.workloads.inputs import DUE
from everstream.pipeline.operator import Context

_OPEN = "open auctions"


class WinningBids(InOrder):
    """Emits auction, seller, category, price and time (of closing) of each auction with a bid."""

    def in_order(self, ready: Sequence[pl.DataFrame], watermark: int, ctx: Context) -> None:
        opened: list[pl.DataFrame] = [frame for frame in ready if "expires" in frame.columns]
        bids = [frame for frame in ready if "expires" not in frame.columns]
        earlier: pl.DataFrame | None = ctx.state.get(_OPEN)
        if earlier is None and not opened:
            return
        fresh = [frame.with_columns(best=pl.lit(None, pl.Int64)) for frame in opened]
        auctions = pl.concat(([] if earlier is None else [earlier]) + fresh)
        if bids:
            auctions = with_bids(auctions, bids[0])
        closed = auctions.filter(pl.col("expires") < watermark)
        if closed.height or bids or opened:
            ctx.state.put(_OPEN, auctions.filter(pl.col("expires") >= watermark))
        sold = closed.filter(pl.col("best").is_not_null())
        due = [name for name in sold.columns if name == DUE]
        columns = ["auction", "seller", "category", *due]
        ctx.emit_batch(sold.select(*columns, price="best", time="expires"))


def with_bids(auctions: pl.DataFrame, bids: pl.DataFrame) -> pl.DataFrame:
    """The auctions with their best bids so far, these included."""
    valid = bids.join(
        auctions.select("auction", opened="time", closes="expires"), on="auction", how="inner"
    ).filter(pl.col("time").is_between("opened", "closes"))
    due = [pl.col(DUE).max().alias("bid_due")] if DUE in bids.columns else []
    best = valid.group_by("auction").agg(pl.col("price").max().alias("offered"), *due)
    joined = auctions.join(best, on="auction", how="left", maintain_order="left")
    raised = [pl.max_horizontal("best", "offered").alias("best")]
    if due:
        raised.append(pl.max_horizontal(DUE, "bid_due").alias(DUE))
    return joined.with_columns(raised).select(auctions.columns)
