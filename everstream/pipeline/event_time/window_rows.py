"""Windows that keep their rows: each comes out when the window ends, with values that depend on the others."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.chunks import (
    TIME,
    Chunks,
    emit_overdue,
    kept_in,
    overdue_in,
    redistribute_chunks,
)
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.aggregation.window_functions import WindowFunction
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.event_time.window_aggregates import END, START
from everstream.pipeline.event_time.windows import PanedWindow
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.times import NO_WATERMARK, TimeOf, in_unit
from everstream.state.backends.memory import MemoryBackend

_ROWS, _FIRED = "rows", "fired"
_GIVEN = "__given"
"""The times in the form in which they were given: windows have the same."""


class WindowRows(Operator):
    """The rows of tumbling, sliding or calendar windows, with further columns."""

    def __init__(
        self,
        keys: list[pl.Expr],
        time: TimeOf,
        window: PanedWindow,
        functions: Mapping[str, WindowFunction],
    ) -> None:
        self.keys = keys
        self.time = time
        self.window = window
        self.functions = dict(functions)
        # Rows leave with their own times when their window ends.
        self.watermark_delay_us = window.longest_us

    def columns_used(self, side: str) -> Sequence[Any]:
        functions = [one for given in self.functions.values() for one in given.columns_used]
        return [*self.keys, self.time.what, *functions]

    def columns_after(self, inputs: Mapping[str, pl.Schema]) -> pl.Schema | None:
        if not isinstance(self.time.what, str | pl.Expr):
            return None
        frame = pl.DataFrame(schema=inputs[""])
        given = self.time.read(frame, "window_rows")
        times = self.time.microseconds(given)
        return self._results(frame.with_columns(times.alias(TIME), given.alias(_GIVEN)), 0).schema

    def describe_state(self) -> dict[str, Any]:
        return {"operator": "window_rows", "window": self.window.describe()}

    def on_start(self, ctx: Context) -> None:
        self.rows = Chunks(ctx.state, _ROWS, self.kept, ctx.operator)
        self.fired: int = ctx.state.get(_FIRED, NO_WATERMARK)
        emit_overdue(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """A window that fired in one part counts as fired in all: no later row is older."""
        kept = kept_in(parts)
        owns = partial(place.owns_rows)
        mine = redistribute_chunks(kept.values(), _ROWS, owns) | merged(kept, _FIRED, max)
        late: list[pl.DataFrame] = []
        for entries in kept.values():
            own = MemoryBackend[Any, Any]()
            own.load(redistribute_chunks([entries], _ROWS, owns))
            after, now = (given.get(_FIRED, NO_WATERMARK) for given in (entries, mine))
            late += self._fired(Chunks(own, _ROWS), after, now)
        return {CONTEXT_STATE: mine | overdue_in(late, kept)}

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of the rows of some panes that a window may need."""
        return rows

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        given = self.time.read(batch, ctx.operator)
        if given.null_count():
            raise UserError(f"'{ctx.operator}': a record has no time.")
        times = self.time.microseconds(given)
        rows = frame.with_columns(times.alias(TIME), given.alias(_GIVEN))
        if ctx.watermark != NO_WATERMARK:
            late = times < self.window.open_from(ctx.watermark)
            if late.any():
                ctx.emit_batch(frame.filter(late), LATE)
                rows = rows.filter(~late)
        if not rows.is_empty():
            rows = self.kept(rows)
            self.rows.add_by(rows, self.window.panes_of(rows.get_column(TIME)))

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        for results in self._fired(self.rows, self.fired, watermark):
            ctx.emit_batch(results)
            self.fired = watermark
            ctx.state.put(_FIRED, watermark)
        for pane in self.rows.groups:
            if self.window.last_end(pane) <= watermark:
                self.rows.drop(pane)

    def _fired(self, rows: Chunks, after: int, watermark: int) -> Iterator[pl.DataFrame]:
        """The results of each window that ends after `after` and has ended by now."""
        starts = {
            start for pane in rows.groups for start in self.window.starts(pane, after, watermark)
        }
        for start in sorted(starts):
            yield self._results(rows.read(self.window.panes(start)), start)

    def _results(self, rows: pl.DataFrame, start: int) -> pl.DataFrame:
        rows = rows.sort(TIME, maintain_order=True)
        kind = rows.get_column(_GIVEN).dtype
        window = pl.Series([start, self.window.end(start)], dtype=pl.Int64)
        if isinstance(kind, pl.Datetime):
            window = window.cast(pl.Datetime("us", kind.time_zone))
        else:
            window = in_unit(window, self.time.unit)
        rows = self.results(rows).drop(TIME, _GIVEN)
        ends = [pl.lit(window[0], window.dtype), pl.lit(window[1], window.dtype)]
        return rows.with_columns(ends[0].alias(START), ends[1].alias(END))

    def results(self, rows: pl.DataFrame) -> pl.DataFrame:
        """What comes out of the rows of one window, which are in order of time."""
        for name, function in self.functions.items():
            rows = function.added(name, rows, self.keys)
        return rows


_PANE = "__pane"


class WindowTop(WindowRows):
    """Of each key and window the rows with the greatest values, or the least. No others are kept."""

    def __init__(
        self,
        keys: list[pl.Expr],
        time: TimeOf,
        window: PanedWindow,
        k: int,
        by: list[str],
        reverse: list[bool],
    ) -> None:
        super().__init__(keys, time, window, {})
        self.k = k
        self.by = by
        self.reverse = reverse

    def columns_used(self, side: str) -> Sequence[Any]:
        return [*super().columns_used(side), *self.by]

    def describe_state(self) -> dict[str, Any]:
        places = zip(self.by, self.reverse, strict=True)
        by = [f"{name}, {'least' if least else 'greatest'} first" for name, least in places]
        return {**super().describe_state(), "operator": "window_top", "k": self.k, "by": by}

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        panes = self.window.panes_of(rows.get_column(TIME))
        return self._best(rows.with_columns(panes.alias(_PANE)), [pl.col(_PANE)]).drop(_PANE)

    def results(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._best(rows, [])

    def _best(self, rows: pl.DataFrame, besides: list[pl.Expr]) -> pl.DataFrame:
        """The best of each group, best first; of equal ones, those that are first in time."""
        ordered = rows.sort(
            [*self.by, TIME],
            descending=[*(not least for least in self.reverse), False],
            nulls_last=True,
            maintain_order=True,
        )
        groups = [*besides, *self.keys]
        if not groups:
            return ordered.head(self.k)
        return ordered.filter(pl.int_range(pl.len()).over(groups) < self.k)
