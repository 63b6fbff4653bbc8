"""Running averages of winning prices, in the order in which auctions closed."""

from collections.abc import Sequence

import polars as pl

from everstream.bench.workloads.in_order import InOrder
from everstream.bench.workloads.inputs import DUE
from everstream.pipeline.operator import Context, Keyed

LAST = 10


class CategoryAverage(InOrder):
    """After each auction: the average winning price of its category so far."""

    ties = ("auction",)
    totals = Keyed[tuple[int, int]]()
    """Category -> sum of prices, number of auctions."""

    def in_order(self, ready: Sequence[pl.DataFrame], watermark: int, ctx: Context) -> None:
        for frame in ready:
            averages = []
            for category, price in frame.select("category", "price").iter_rows():
                total, count = self.totals.get(category, (0, 0))
                self.totals[category] = (total + price, count + 1)
                averages.append((total + price) / (count + 1))
            due = [name for name in frame.columns if name == DUE]
            column = pl.Series("average", averages, pl.Float64)
            ctx.emit_batch(frame.select("category", "auction", column, *due))


class SellerAverage(InOrder):
    """After each auction: the average of the last ten winning prices of its seller."""

    ties = ("auction",)
    prices = Keyed[tuple[int, ...]]()
    """Seller -> the last winning prices, newest last."""

    def in_order(self, ready: Sequence[pl.DataFrame], watermark: int, ctx: Context) -> None:
        for frame in ready:
            averages = []
            for seller, price in frame.select("seller", "price").iter_rows():
                last = (*self.prices.get(seller, ()), price)[-LAST:]
                self.prices[seller] = last
                averages.append(sum(last) / len(last))
            due = [name for name in frame.columns if name == DUE]
            column = pl.Series("average", averages, pl.Float64)
            ctx.emit_batch(frame.select("seller", "auction", column, *due))
