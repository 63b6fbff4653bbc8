"""The stage that says what time it is: reads event times and announces watermarks."""

import polars as pl

from everstream.pipeline.batch import Batch
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.times import TimeOf


class EventTime(Operator):
    """Lets records pass and announces the greatest time seen so far, less the lateness.

    What was announced is part of the checkpoint, so time does not go back in a failure.
    """

    announces_watermarks = True
    repeatable = True
    pure = True  # the records pass as they are, and watermarks are kept with the frames

    def __init__(self, time: TimeOf, lateness_us: int) -> None:
        self.time = time
        self.lateness_us = lateness_us

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        times = self.time.read(batch, ctx.operator)
        greatest = self.time.microseconds(pl.Series([times.max()], dtype=times.dtype))[0]
        ctx.emit_batch(batch)
        if greatest is not None:
            ctx.advance_watermark(int(greatest) - self.lateness_us)
