"""The leaders of each window, and of all time: what queries 5 and 7 end with."""

import polars as pl

from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.operator import Context, Keyed, Operator


class Leaders(Operator):
    """The rows with the highest `value` of each window, ties included, once it is complete.

    A window is named by its end (column `end`). Can be used twice: first in every shard, then in
    one shard over what those found.
    """

    best = Keyed[pl.DataFrame]()
    """Window end -> the rows that lead so far."""

    def __init__(self, value: str, end: str = "window_end") -> None:
        self.value = value
        self.end = end

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        value = pl.col(self.value)
        leading = frame.filter(value == value.max().over(self.end))
        for (end,), rows in leading.partition_by(self.end, as_dict=True).items():
            known = self.best.get(end)
            if known is not None:
                rows = pl.concat([known, rows]).filter(value == value.max())
            self.best[end] = rows

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        complete = [end for end in self.best if isinstance(end, int) and end <= watermark]
        for end in sorted(complete):
            ctx.emit_batch(self.best[end])
            self.best.delete(end)


class Records(Operator):
    """Passes on what is higher than anything seen before under its key (FERDiS's query 5).

    The counts of one auction come from one shard in the order of their windows, so what passes
    does not depend on how the shards were interleaved.
    """

    highest = Keyed[int]()

    def __init__(self, key: str, value: str) -> None:
        self.key = key
        self.value = value

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        keep = []
        for key, value in frame.select(self.key, self.value).iter_rows():
            higher = value > self.highest.get(key, -1)
            if higher:
                self.highest[key] = value
            keep.append(higher)
        ctx.emit_batch(frame.filter(pl.Series(keep, dtype=pl.Boolean)))


class Totals(Operator):
    """Adds counts up per key and passes on the totals: the stateful end of Incremental WordCount."""

    totals = Keyed[int](init=int)

    def __init__(self, key: str, value: str) -> None:
        self.key = key
        self.value = value

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        after = []
        for key, value in frame.select(self.key, self.value).iter_rows():
            self.totals[key] += value
            after.append(self.totals[key])
        ctx.emit_batch(frame.with_columns(pl.Series("total", after, pl.Int64)))
