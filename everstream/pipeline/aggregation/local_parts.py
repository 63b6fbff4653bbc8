"""The first half of every aggregation: each batch becomes parts in the shard that has the records.

A row of parts represents all records of one key in one pane, or in one stretch of a session.
Records that are too late for their window leave by the output "late" instead. Lateness is judged
by the records before (`pipeline/event_time/lateness.py`), before the streams of several shards
meet. So it depends neither on which shard is faster nor on where batches begin and end.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.batch import Batch, columns_of, exact_series, rows_together, where
from everstream.pipeline.event_time.windows import PanedWindow, Session
from everstream.pipeline.keys import Keying, KeyingByOthers
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.times import NO_WATERMARK, TimeOf

LATE = "late"
PANE = "__pane"
"""The start of the pane; for a session, the time of its first record."""
LAST = "__last"
"""For a session: the time of its last record."""
_FEW_PANES = 2


def key_frame(keying: Keying | None, batch: Batch) -> pl.DataFrame:
    """The keys of the records as columns: under their own names, or as `key`."""
    if keying is None:
        return pl.DataFrame()
    if keying.on_columns:
        column = keying.key_column(batch)
    else:
        keys: list[Any] = keying.keys(batch)
        if keys and all(isinstance(key, tuple) for key in keys):
            if len({*map(len, keys)}) > 1:
                raise UserError(
                    "keys are tuples of several lengths. Let key_by give equally many values."
                )
            parts = zip(*keys, strict=True)
            return pl.DataFrame([_key_part(f"key_{at}", part) for at, part in enumerate(parts)])
        column = _key_part("key", keys)
    if column.dtype == pl.Struct:
        return column.struct.unnest()
    return column.to_frame()


def _key_part(name: str, values: Sequence[Any]) -> pl.Series:
    """Each value as it is: keys that are not equal must not become equal."""
    try:
        return pl.Series(name, values)
    except (TypeError, OverflowError, UnicodeError, pl.exceptions.PolarsError):
        return exact_series(name, values, "key_by")


def keyed_by_columns(besides: list[str]) -> Keying:
    """The key of rows of parts: all columns but these."""
    return KeyingByOthers(besides)


def records_frame(batch: Batch, ctx: Context) -> pl.DataFrame:
    """The batch as columns; records that are not dicts become the column `value`."""
    if isinstance(batch, list) and batch and not isinstance(batch[0], dict):
        return exact_series("value", batch, ctx.operator).to_frame()
    return columns_of(batch, ctx.operator)


class LocalParts(Operator):
    """From records to rows of parts, per key and, with a window, per pane."""

    repeatable = True
    keeps_rows = True
    judges_lateness = True

    def __init__(
        self,
        keying: Keying | None,
        aggregates: Aggregates,
        window: PanedWindow | Session | None = None,
        time: TimeOf | None = None,
        allowed_us: int = 0,
        times: Sequence[str] = ("window_start", "window_end"),
    ) -> None:
        """times: the columns of results that tell about the window."""
        self.keying = keying
        self.aggregates = aggregates
        self.window = window
        self.time = time
        """None for windows of processing time: those are assigned in the second stage."""
        self.allowed_us = allowed_us
        self.times = times
        # Late parts cause their windows to be emitted again, at once.
        self.gathers = time is not None and isinstance(window, PanedWindow) and not allowed_us

    def is_due(self, before: int, watermark: int) -> bool:
        """Whether a window ends in between."""
        return before == NO_WATERMARK or bool(self._passed(before) != self._passed(watermark))

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        keys = key_frame(self.keying, batch)
        self._check_names(keys)
        frame = records_frame(batch, ctx)
        if self.time is None or self.window is None:
            by: list[Any] = [*keys] or [pl.lit(0).alias(PANE)]
            ctx.emit_batch(self.aggregates.of_records(frame, by))
            return
        given = self.time.read(batch, ctx.operator)
        if given.null_count():
            raise UserError(f"'{ctx.operator}': a record has no time.")
        times = self.time.microseconds(given)
        late = self._late(times, ctx)
        if late is not None:
            ctx.emit_batch(where(batch, late), LATE)
            on_time = ~late
            frame, keys = frame.filter(on_time), keys.filter(on_time) if keys.width else keys
            times = times.filter(on_time)
            if frame.is_empty():
                return
        if isinstance(self.window, Session):
            parts = self._stretches(frame, keys, times, self.window.gap_us)
        else:
            panes = self.window.panes_of(times).alias(PANE)
            parts = self._by_pane(frame, keys, panes, self.window.pane_us)
        ctx.emit_batch(_in_kind(parts, given.dtype))

    def _late(self, times: pl.Series, ctx: Context) -> pl.Series | None:
        """True for each record whose windows have all ended; None if there is none."""
        judged = ctx.judged
        last = ctx.watermark if judged is None else max(ctx.watermark, judged.latest)
        if last == NO_WATERMARK:
            return None
        passed = self._passed(last)
        if times.min() >= passed:
            return None
        if judged is not None:
            passed = self._passed(pl.Series(np.maximum(judged.values, ctx.watermark)))
        late = times < passed
        return late if late.any() else None

    def _passed(self, watermark: Any) -> Any:
        """The time before which all windows have ended, at this watermark or at each of these."""
        passed = watermark - self.allowed_us
        return self.window.open_from(passed) if isinstance(self.window, PanedWindow) else passed

    def _by_pane(
        self, frame: pl.DataFrame, keys: pl.DataFrame, panes: pl.Series, pane_us: int
    ) -> pl.DataFrame:
        """Parts per key and pane. Cutting the batch is cheaper than grouping by one more column."""
        first, last = int(panes.min()), int(panes.max())  # type: ignore[arg-type]
        if not keys.width or last - first > _FEW_PANES * pane_us:
            return self.aggregates.of_records(frame, [*keys, panes])
        cut = []
        for pane in range(first, last + 1, max(pane_us, 1)):
            here, its_keys = frame, keys
            if first != last:
                inside = panes == pane
                here, its_keys = frame.filter(inside), keys.filter(inside)
            if not here.is_empty():
                parts = self.aggregates.of_records(here, [*its_keys])
                dated = parts.with_columns(pl.lit(pane, pl.Int64).alias(PANE))
                cut.append(dated.select(*keys.columns, PANE, *self.aggregates.part_names))
        return rows_together(cut, "window")

    def _stretches(
        self, frame: pl.DataFrame, keys: pl.DataFrame, times: pl.Series, gap_us: int
    ) -> pl.DataFrame:
        """Parts of the sessions within this batch."""
        lasting = [series.alias(f"__key_{index}") for index, series in enumerate(keys)]
        dated = frame.with_columns(*lasting, times.alias(PANE), times.alias(LAST))
        of_each = [
            *(
                pl.col(f"__key_{index}").first().alias(name)
                for index, name in enumerate(keys.columns)
            ),
            pl.col(PANE).min(),
            pl.col(LAST).max(),
        ]
        numbers = stretches(keys, times, times + gap_us)
        return self.aggregates.of_records(dated, [numbers], of_each).drop(numbers.name)

    def _check_names(self, keys: pl.DataFrame) -> None:
        taken = {*self.times} if self.window is not None else set()
        twice = (taken | set(self.aggregates.named)) & set(keys.columns)
        if twice:
            raise UserError(
                f"column '{twice.pop()}' of the key has the name of a result column. Use "
                "key_by(pl.col(...).alias(...)), or another name for the aggregate."
            )


def stretches(keys: pl.DataFrame, start: pl.Series, end: pl.Series) -> pl.Series:
    """Numbers rows so that rows of one key that overlap or touch share a number."""
    names = keys.columns
    rows = pl.DataFrame([*keys, start.alias("__start"), end.alias("__end")])
    rows = rows.with_row_index("__row").sort(*names, "__start")
    others = [pl.col(name).ne_missing(pl.col(name).shift(1)) for name in names]
    other_key = np.zeros(len(rows), np.bool_)
    if names:
        other_key |= rows.select(pl.any_horizontal(others)).to_series().to_numpy()
    starts, ends = rows["__start"].to_numpy(), rows["__end"].to_numpy()
    # The furthest end so far within the key: each key is lifted above all before it, so one
    # cumulative maximum does for all. Ranks replace times that would not fit.
    key, low = np.cumsum(other_key), ends.min()
    span = int(ends.max()) - int(low) + 1
    if span * (int(key[-1]) + 1) < 2**62:
        reach = np.maximum.accumulate(ends - low + key * span) - key * span + low
    else:
        order = np.sort(ends)
        lifted = np.maximum.accumulate(np.searchsorted(order, ends) + key * len(ends))
        reach = order[lifted - key * len(ends)]
    begins = other_key
    begins[1:] |= starts[1:] >= reach[:-1]
    numbers = np.empty(len(rows), np.int64)
    numbers[rows["__row"].to_numpy()] = np.cumsum(begins)
    return pl.Series("__stretch", numbers)


def _in_kind(parts: pl.DataFrame, kind: pl.DataType) -> pl.DataFrame:
    """Times given as datetimes stay datetimes in the results."""
    if isinstance(kind, pl.Datetime):
        kept = pl.Datetime("us", kind.time_zone)
        columns = [name for name in (PANE, LAST) if name in parts.columns]
        return parts.with_columns(pl.col(columns).cast(kept))
    return parts
