"""The second half of a windowed aggregation: parts wait until time says that a window is over.

Rows of parts are kept pane by pane. When the watermark passes the end of a window, the parts of
its panes are merged per key and the results go out; a pane is dropped with its last window.
"""

from collections.abc import Iterable
from typing import Any

import polars as pl

from everstream.pipeline.aggregates import Aggregates
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.chunks import Chunks
from everstream.pipeline.local_parts import LAST, PANE, stretches
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, US_PER, Unit, in_seconds
from everstream.pipeline.windows import Session, Sliding

START, END = "window_start", "window_end"
_FIRED = "fired"
_TOUCHED = "__touched"


class _Aggregating(Operator):
    """What windows that are made of panes and sessions have in common."""

    def __init__(self, aggregates: Aggregates, unit: Unit) -> None:
        self.aggregates = aggregates
        self.unit: Unit = unit

    def describe_state(self) -> dict[str, Any]:
        return {"operator": "window", "aggregates": self.aggregates.describe()}

    def keys_of(self, parts: pl.DataFrame) -> list[str]:
        other = {PANE, LAST, *self.aggregates.part_names}
        return [name for name in parts.columns if name not in other]

    def results(self, merged: pl.DataFrame, end: pl.Expr) -> pl.DataFrame:
        """Results with keys, start (in PANE) and end, times as they were given."""
        keys = self.keys_of(merged)
        timed = merged.with_columns(end.alias(LAST)).sort(LAST, PANE)
        if timed.get_column(PANE).dtype == pl.Int64:
            timed = timed.with_columns(pl.col(PANE, LAST) // US_PER[self.unit])
        times = [pl.col(PANE).alias(START), pl.col(LAST).alias(END)]
        return self.aggregates.results(timed, [*keys, *times])


class PaneAggregates(_Aggregating):
    """Tumbling and sliding windows. Until the allowed lateness is over, late parts make those
    windows that were emitted already be emitted again, for the keys that have changed."""

    def __init__(
        self, aggregates: Aggregates, unit: Unit, window: Sliding, allowed_us: int
    ) -> None:
        super().__init__(aggregates, unit)
        self.window = window
        self.allowed_us = allowed_us

    def describe_state(self) -> dict[str, Any]:
        return {**super().describe_state(), "window": self.window.describe()}

    def on_start(self, ctx: Context) -> None:
        self.panes = Chunks(ctx.state, "pane", self._compacted)
        self.fired: int = ctx.state.get(_FIRED, NO_WATERMARK)
        """Windows that end up to here have been emitted."""
        self.boundary: int | None = None

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        self.add(columns_of(batch, ctx.operator), ctx)

    def add(self, parts: pl.DataFrame, ctx: Context) -> None:
        panes = parts.get_column(PANE).to_physical()
        first, last = panes.min(), panes.max()
        if first == last:
            self.panes.add(int(first), parts)  # type: ignore[arg-type]
        else:
            for pane in panes.unique().to_list():
                self.panes.add(pane, parts.filter(panes == pane))
        if self.allowed_us:
            self._emit_again(parts, panes, ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        boundary = (watermark - self.window.size_us) // self.window.every_us
        if boundary == self.boundary and not self.allowed_us:
            return
        self.boundary = boundary
        starts = {
            start
            for pane in self.panes.groups
            for start in self.window.starts(pane, self.fired, watermark)
        }
        if starts:
            ctx.emit_batch(self._window_results(sorted(starts)))
        if starts or self.allowed_us:
            self.fired = watermark
            ctx.state.put(_FIRED, watermark)
        for pane in self.panes.groups:
            if self.window.last_end(pane) + self.allowed_us <= watermark:
                self.panes.drop(pane)

    def _emit_again(self, parts: pl.DataFrame, panes: pl.Series, ctx: Context) -> None:
        keys = self.keys_of(parts)
        for pane in panes.unique().to_list():
            changed = parts.filter(panes == pane).select(keys).unique() if keys else None
            over = self.fired - self.allowed_us
            for start in self.window.starts(pane, over, self.fired):
                ctx.emit_batch(self._window_results([start], changed))

    def _window_results(
        self, starts: Iterable[int], only: pl.DataFrame | None = None
    ) -> pl.DataFrame:
        windows: list[pl.DataFrame] = []
        for start in starts:
            parts = self.panes.read(self.window.panes(start))
            if only is not None:
                parts = parts.join(only, on=only.columns, how="semi", nulls_equal=True)
            kind = parts.get_column(PANE).dtype
            windows.append(parts.with_columns(pl.lit(start, pl.Int64).cast(kind).alias(PANE)))
        together = pl.concat(windows, how="vertical_relaxed")
        size = _span(self.window.size_us, together.get_column(PANE).dtype)
        return self.results(self._compacted(together), pl.col(PANE) + size)

    def _compacted(self, parts: pl.DataFrame) -> pl.DataFrame:
        return self.aggregates.merged(parts, [*self.keys_of(parts), PANE])


class ProcessingTimeAggregates(PaneAggregates):
    """Windows of the time at which their records arrive here, by the clock of this machine."""

    def __init__(self, aggregates: Aggregates, window: Sliding) -> None:
        super().__init__(aggregates, "us", window, 0)

    def describe_state(self) -> dict[str, Any]:
        return {**super().describe_state(), "time": "processing time"}

    def on_start(self, ctx: Context) -> None:
        super().on_start(ctx)
        self._ask_for_timer(ctx)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        # A clock may be behind that of another machine, or of an earlier run.
        now = max(int(ctx.now_s * 1e6), self.fired)
        pane = pl.lit(now - now % self.window.pane_us, pl.Int64)
        parts = columns_of(batch, ctx.operator)
        self.add(parts.with_columns(pane.cast(pl.Datetime("us", "UTC")).alias(PANE)), ctx)
        self._ask_for_timer(ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        """Event time does not matter here, but its end does: nothing more will come."""
        if watermark == END_OF_TIME:
            super().on_watermark(watermark, ctx)

    def on_timer(self, now_s: float, ctx: Context) -> None:
        super().on_watermark(int(now_s * 1e6), ctx)
        self._ask_for_timer(ctx)

    def _ask_for_timer(self, ctx: Context) -> None:
        for pane in self.panes.groups[:1]:
            ctx.call_at((self.window.starts(pane, self.fired)[0] + self.window.size_us) / 1e6)


class SessionAggregates(_Aggregating):
    """Sessions. Stretches are kept by the time their session would end with them; those of one
    key are joined only when one of them may be over."""

    def __init__(
        self, aggregates: Aggregates, unit: Unit, window: Session, allowed_us: int
    ) -> None:
        super().__init__(aggregates, unit)
        self.gap_us = window.gap_us
        self.allowed_us = allowed_us

    def describe_state(self) -> dict[str, Any]:
        return {**super().describe_state(), "window": f"a gap of {in_seconds(self.gap_us)}"}

    def on_start(self, ctx: Context) -> None:
        self.ends = Chunks(ctx.state, "session")

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        self._keep(columns_of(batch, ctx.operator))

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        passed = watermark - self.allowed_us if watermark != END_OF_TIME else watermark
        groups = [group for group in self.ends.groups if group * self.gap_us <= passed]
        if not groups:
            return
        oldest = self.ends.read(groups)
        over = oldest.filter(pl.col(LAST).to_physical() + self.gap_us <= passed)
        if over.is_empty():
            return
        # Whatever else there is of those keys may belong to the same sessions.
        keys = self.keys_of(over)
        everything = self.ends.read(self.ends.groups)
        for group in self.ends.groups:
            self.ends.drop(group)
        touched = everything
        if keys:
            wanted = over.select(keys).unique().with_columns(pl.lit(True).alias(_TOUCHED))
            marked = everything.join(wanted, on=keys, how="left", nulls_equal=True)
            touched = marked.filter(pl.col(_TOUCHED)).drop(_TOUCHED)
            self._keep(marked.filter(pl.col(_TOUCHED).is_null()).drop(_TOUCHED))
        sessions = self._joined(touched, keys)
        finished = pl.col(LAST).to_physical() + self.gap_us <= passed
        done = sessions.filter(finished)
        self._keep(sessions.filter(~finished))
        gap = _span(self.gap_us, done.get_column(LAST).dtype)
        if not done.is_empty():
            ctx.emit_batch(self.results(done, pl.col(LAST) + gap))

    def _keep(self, parts: pl.DataFrame) -> None:
        groups = (parts.get_column(LAST).to_physical() + self.gap_us) // self.gap_us
        for group in groups.unique().to_list():
            self.ends.add(group, parts.filter(groups == group))

    def _joined(self, parts: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
        first, last = (parts.get_column(name).to_physical() for name in (PANE, LAST))
        numbered = parts.with_columns(stretches(parts.select(keys), first, last + self.gap_us))
        of_each = [*(pl.col(key).first() for key in keys), pl.col(PANE).min(), pl.col(LAST).max()]
        return self.aggregates.merged(numbered, ["__stretch"], of_each).drop("__stretch")


def _span(duration_us: int, kind: pl.DataType) -> Any:
    """A duration that can be added to times of this kind."""
    return duration_us if kind == pl.Int64 else pl.duration(microseconds=duration_us)
