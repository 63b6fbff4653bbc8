"""Operators that see records in the order of event time, whatever order they came in.

Records wait until the watermark has passed them and are then handed over sorted, in one frame.
So what such an operator gives does not depend on how shards and channels were interleaved: a run
with failures can be compared with a query over a table, row by row.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import polars as pl

from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.operator import Context, Operator

_NEXT = "next frame"


class InOrder(Operator, ABC):
    """Subclasses take complete frames in `in_order`, sorted by time and then by `ties`."""

    time: str = "time"
    ties: Sequence[str] = ()

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        number = ctx.state.get(_NEXT, 0)
        ctx.state.put(("waiting", number), columns_of(batch, ctx.operator))
        ctx.state.put(_NEXT, number + 1)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        ready = take_before(ctx, watermark, self.time)
        self.in_order([frame.sort(self.time, *self.ties) for frame in ready], watermark, ctx)

    @abstractmethod
    def in_order(self, ready: Sequence[pl.DataFrame], watermark: int, ctx: Context) -> None:
        """All records before the watermark that were not handed over yet, one frame per schema."""


def take_before(ctx: Context, watermark: int, time: str) -> list[pl.DataFrame]:
    """The waiting records before the watermark, out of the state; one frame per schema.

    Each frame waits under a separate key, so that a checkpoint contains only changes.
    """
    ready: dict[tuple[str, ...], list[pl.DataFrame]] = {}
    for key in ctx.state:
        if not isinstance(key, tuple) or key[0] != "waiting":
            continue
        frame: pl.DataFrame = ctx.state[key]
        times: Any = frame[time]
        if times.min() >= watermark:
            continue
        if times.max() < watermark:
            ctx.state.delete(key)
            due = frame
        else:
            due = frame.filter(pl.col(time) < watermark)
            ctx.state.put(key, frame.filter(pl.col(time) >= watermark))
        ready.setdefault(tuple(due.columns), []).append(due)
    return [pl.concat(frames) for frames in ready.values()]
