"""The built-in operators behind the methods of a Stream.

Column operators run one Polars expression on the whole batch. Those that take a Python function
loop over the batch inside one call, so that the engine around them does nothing per record.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import polars as pl

from everstream.pipeline.batch import Batch, columns_of, where
from everstream.pipeline.event_time.lateness import RecordWatermarks
from everstream.pipeline.keyed_state.spreading import Spread
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.operators.forms import Form, as_batch_of, form_for, in_form
from everstream.pipeline.operators.purity import all_plain, is_plain
from everstream.pipeline.times import TimeOf

Predicate: TypeAlias = Callable[[Any], object] | pl.Expr


class Map(Operator):
    """One record in, one record out."""

    repeatable = True
    keeps_rows = True

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        function = self.function
        ctx.emit_rows([function(record) for record in ctx.reading(batch)])


class FlatMap(Operator):
    """One record in, any number out."""

    repeatable = True

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        self.function = function

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        function = self.function
        ctx.emit_batch([out for record in ctx.reading(batch) for out in function(record)])


class Filter(Operator):
    """Keeps the records for which the predicate is true."""

    repeatable = True
    keeps_rows = True

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate
        self.pure = is_plain(predicate)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        if ctx.judged is None:
            ctx.emit_batch(kept(self.predicate, batch, ctx))
            return
        mask = mask_of(self.predicate, batch, ctx)
        ctx.emit_rows(where(batch, mask), mask)


class Branch(Operator):
    """Sends each record to the output of the first predicate that is true, the rest to the last."""

    repeatable = True
    keeps_rows = True

    def __init__(self, predicates: Sequence[Predicate]) -> None:
        self.predicates = list(predicates)
        self.pure = all_plain(predicates)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        rest = batch
        for output, predicate in enumerate(self.predicates):
            mask = mask_of(predicate, rest, ctx)
            ctx.emit_rows(where(rest, mask), mask, branch_output(output))
            rest = where(rest, ~mask)
            if ctx.judged is not None:
                ctx.judged = ctx.judged.of((~mask).to_numpy())
        ctx.emit_rows(rest, output=branch_output(len(self.predicates)))


class MapBatches(Operator):
    """A function from batch to batch."""

    whole_batches = True
    """Its output may depend on where the batch begins and ends."""

    def __init__(self, function: Callable[[Any], Any], as_: Form | None = None) -> None:
        self.function = function
        self.form, self.record_batch = form_for(function, as_)

    def describe_state(self) -> None:
        """The function sees no state."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        given = in_form(batch, self.form, self.record_batch, ctx.operator)
        ctx.emit_batch(as_batch_of(self.function(given), ctx.operator))


class _Expressions(Operator):
    repeatable = True
    keeps_rows = True

    def __init__(self, expressions: Sequence[Any], named: dict[str, Any]) -> None:
        self.expressions = list(expressions)
        self.named = named
        self.pure = all_plain([*expressions, *named.values()])


class WithColumns(_Expressions):
    """Adds or replaces columns."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        ctx.emit_rows(frame.with_columns(*self.expressions, **self.named))


class Select(_Expressions):
    """Keeps or computes exactly these columns."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        chosen = frame.select(*self.expressions, **self.named)
        if len(chosen) == len(frame):
            ctx.emit_rows(chosen)
        else:  # an expression reduced the number of rows
            ctx.emit_batch(chosen)


class Fold(Operator):
    """Keeps one value per key; emits (key, value) whenever it changes."""

    spread: Spread = "key"

    def __init__(self, init: Callable[[], Any], update: Callable[[Any, Any], Any]) -> None:
        self.init = init
        self.update = update

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        assert ctx.keying is not None
        init, update = self.init, self.update
        keys = ctx.keying.keys(batch)
        values = ctx.state.changing(keys)
        out = []
        pairs, finished = zip(keys, ctx.reading(batch), strict=True), False
        while not finished:
            try:
                for key, record in pairs:
                    value = update(values[key] if key in values else init(), record)
                    values[key] = value
                    out.append((key, value))
                finished = True
            except Exception as error:
                ctx.reject(record, error)  # then continue with the next record
        ctx.emit_batch(out)


class Reduce(Operator):
    """Merges the records of each key two at a time; emits (key, value) whenever it changes."""

    spread: Spread = "key"

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        assert ctx.keying is not None
        function = self.function
        keys = ctx.keying.keys(batch)
        values = ctx.state.changing(keys)
        out = []
        pairs, finished = zip(keys, ctx.reading(batch), strict=True), False
        while not finished:
            try:
                for key, record in pairs:
                    value = function(values[key], record) if key in values else record
                    values[key] = value
                    out.append((key, value))
                finished = True
            except Exception as error:
                ctx.reject(record, error)  # then continue with the next record
        ctx.emit_batch(out)


def branch_output(index: int) -> str:
    return f"branch-{index}"


def kept(predicate: Predicate, batch: Batch, ctx: Context) -> Batch:
    if isinstance(predicate, pl.Expr):
        return columns_of(batch, ctx.operator).filter(predicate)
    if isinstance(batch, pl.DataFrame):
        return batch.filter(mask_of(predicate, batch, ctx))
    return [record for record in ctx.reading(batch) if predicate(record)]


def mask_of(predicate: Predicate, batch: Batch, ctx: Context) -> pl.Series:
    """True for each record for which the predicate is true; nulls count as False."""
    if isinstance(predicate, pl.Expr):
        chosen = columns_of(batch, ctx.operator).select(predicate).to_series()
        return chosen.cast(pl.Boolean).fill_null(False)
    return pl.Series([bool(predicate(record)) for record in ctx.reading(batch)], dtype=pl.Boolean)


class EventTime(Operator):
    """Passes records through and announces the greatest time so far, minus the lateness.

    The announced watermark is part of the checkpoint, so time does not go back in a failure, and a
    replayed record is judged as before.

    A source that is silent for `idle_after_s` does not hold back time: the watermark is then the present,
    minus that time and the lateness. What comes later and is older than that is late.
    """

    announces_watermarks = True
    repeatable = True
    keeps_rows = True
    pure = True  # the records pass unchanged, and watermarks are kept with the frames

    def __init__(
        self,
        time: TimeOf,
        lateness_us: int,
        idle_after_s: float | None = None,
        max_drift_us: int | None = None,
    ) -> None:
        """max_drift_us: how far it may be ahead of other sources that give one, before it waits."""
        self.time = time
        self.lateness_us = lateness_us
        self.idle_after_s = idle_after_s
        self.max_drift_us = max_drift_us

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        times = self.time.read(batch, ctx.operator)
        greatest = self.time.microseconds(pl.Series([times.max()], dtype=times.dtype))[0]
        before = ctx.announced
        if greatest is not None:
            ctx.advance_watermark(int(greatest) - self.lateness_us)
        ctx.judged = RecordWatermarks(self.time, times, self.lateness_us, before)
        ctx.emit_rows(batch)

    def on_silence(self, ctx: Context) -> None:
        """The source has nothing now, and has had nothing since `ctx.moment.silent_since_s`."""
        if self.idle_after_s is None or ctx.moment.silent_since_s is None:
            return
        now_s, idle_at_s = ctx.now_s, ctx.moment.silent_since_s + self.idle_after_s
        if now_s >= idle_at_s:
            ctx.advance_watermark(int((now_s - self.idle_after_s) * 1e6) - self.lateness_us)
            idle_at_s = now_s + self.idle_after_s
        ctx.wake_at(idle_at_s)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        # A source that is asked again and again must have been asked before it counts as silent: a
        # full queue downstream is no silence.
        if not ctx.moment.asked_again:
            self.on_silence(ctx)
