"""The second half of a windowed aggregation: parts are kept until their window ends.

Rows of parts are kept pane by pane. When the watermark passes the end of a window, the parts of
its panes are merged per key and the results are emitted. A pane is dropped with its last window.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import polars as pl

from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.chunks import (
    Chunks,
    emit_overdue,
    kept_in,
    overdue_in,
    redistribute_chunks,
    renamed_chunks,
)
from everstream.pipeline.aggregation.local_parts import LAST, PANE, stretches
from everstream.pipeline.batch import Batch, columns_of, rows_together
from everstream.pipeline.event_time.windows import ONCE, Emission, PanedWindow, Session, described
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, Unit, in_seconds, in_unit
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend

START, END = "window_start", "window_end"
TIMING = "timing"
EARLY, ON_TIME, LATE_UPDATE = "early", "on_time", "late"
FIRED = "fired"
_PANES = "pane"
_EARLIER = "pane of "
"""Prefix of the rule of windows that were open when the rule changed."""
_RULE = "rule"
"""Where the rule of the kept state is recorded, once the rule has changed."""
_FRESH = "fresh"
"""The keys that have changed since the last early results, by pane."""
TOUCHED = "__touched"


class _Aggregating(Operator):
    """What windows made of panes and sessions have in common."""

    def __init__(
        self, aggregates: Aggregates, unit: Unit | None, emission: Emission = ONCE
    ) -> None:
        self.aggregates = aggregates
        self.unit: Unit | None = unit
        self.emission = emission
        self.before: dict[str, Any] | None = None

    def describe_state(self) -> dict[str, Any]:
        return {"operator": "window", "aggregates": self.aggregates.describe()}

    def goes_on_from(self, before: dict[str, Any] | None) -> None:
        self.before = before

    def rule_before(self, ctx: Context, now: str) -> str:
        """The rule under which the state was kept; from here on it is the present one."""
        described = now if self.before is None else self.before["window"]
        before: str = ctx.state.get(_RULE, described)
        if before != now or (described != now and _RULE not in ctx.state):
            ctx.state.put(_RULE, now)
        return before

    def fit(self, chunks: Chunks) -> None:
        """Convert rows from before aggregates were added or removed to the present form."""
        if self.before is not None:
            had = self.before["aggregates"]
            chunks.fit(lambda parts: self.aggregates.fitted(parts, had))

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        kept = kept_in(parts)
        names = {key[0] for entries in kept.values() for key in entries if isinstance(key, tuple)}
        mine: dict[Any, Any] = merged(kept, _RULE, min)
        for name in sorted(names):
            mine |= redistribute_chunks(kept.values(), name, lambda rows: self.owned(rows, place))
        return {CONTEXT_STATE: mine}

    def owned(self, rows: pl.DataFrame, place: Place) -> list[bool]:
        return place.owns_rows(rows)

    def wake_early(self, ctx: Context) -> None:
        """Have `on_wake` called when early results are due, at a whole multiple of their interval."""
        if self.emission.early_us is not None:
            now_us, every = int(ctx.now_s * 1e6), self.emission.early_us
            ctx.wake_at((now_us - now_us % every + every) / 1e6)

    def keys_of(self, parts: pl.DataFrame) -> list[str]:
        other = {PANE, LAST, *self.aggregates.part_names}
        return [name for name in parts.columns if name not in other]

    def results(self, merged: pl.DataFrame, end: pl.Expr, timing: pl.Expr) -> pl.DataFrame:
        """Results with keys, start (in PANE) and end, with times in the form they were given."""
        keys = self.keys_of(merged)
        timed = merged.with_columns(end.alias(LAST)).sort(LAST, PANE)
        if timed.get_column(PANE).dtype == pl.Int64:
            timed = timed.with_columns(in_unit(pl.col(PANE, LAST), self.unit))
        times = [pl.col(PANE).alias(START), pl.col(LAST).alias(END)]
        if self.emission.timing:
            timed, times = timed.with_columns(timing.alias(TIMING)), [*times, pl.col(TIMING)]
        return self.aggregates.results(timed, [*keys, *times])


class PaneAggregates(_Aggregating):
    """Tumbling, sliding and calendar windows.

    Until the allowed lateness has passed, late parts cause windows to be emitted again, for the keys that
    have changed. Early results are about the keys that have changed since the last ones.

    With discarding panes, what has been in a result is not kept: early results empty the panes, and late
    parts are a result of their own.
    """

    def __init__(
        self,
        aggregates: Aggregates,
        unit: Unit | None,
        window: PanedWindow,
        emission: Emission = ONCE,
    ) -> None:
        super().__init__(aggregates, unit, emission)
        self.window = window

    def describe_state(self) -> dict[str, Any]:
        about = {**super().describe_state(), "window": self.window.describe()}
        return {**about, "panes": "discarding"} if self.emission.discarding else about

    def on_start(self, ctx: Context) -> None:
        now = self.window.describe()
        before = self.rule_before(ctx, now)
        self.fresh = Chunks(ctx.state, _FRESH, _distinct, ctx.operator)
        if before != now:
            renamed_chunks(ctx.state, _PANES, f"{_EARLIER}{before}")
            renamed_chunks(ctx.state, f"{_EARLIER}{now}", _PANES)
        if before != now or self.emission.early_us is None:
            for pane in self.fresh.groups:
                self.fresh.drop(pane)
        self.panes = Chunks(ctx.state, _PANES, self._compacted, ctx.operator)
        self.rules = [(self.window, self.panes), *self._earlier(ctx.state)]
        """How windows are made, and what is kept for them: the present rule first."""
        for _, panes in self.rules:
            self.fit(panes)
        self.fired: int = ctx.state.get(FIRED, NO_WATERMARK)
        """Windows that end up to here have been emitted."""
        self.boundary: int | None = None
        emit_overdue(ctx)
        if self.fresh or (self.emission.discarding and self.panes):
            self.wake_early(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """A window that fired in one part counts as fired in all: no later record is older."""
        kept = kept_in(parts)
        mine = super().redistribute(parts, place)[CONTEXT_STATE] | merged(kept, FIRED, max)
        fired = mine.get(FIRED, NO_WATERMARK)
        overdue: list[pl.DataFrame] = []
        for number, entries in kept.items():
            own = MemoryBackend[Any, Any]()
            own.load(super().redistribute({number: parts[number]}, place)[CONTEXT_STATE])
            panes, after = Chunks(own, _PANES, self._compacted), entries.get(FIRED, NO_WATERMARK)
            for window, kept_panes in [(self.window, panes), *self._earlier(own)]:
                starts = _over(window, kept_panes, after, fired)
                if starts:
                    overdue.append(self._window_results(window, kept_panes, starts, ON_TIME))
        return {CONTEXT_STATE: mine | overdue_in(overdue, kept)}

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        self.add(columns_of(batch, ctx.operator), ctx)

    def add(self, parts: pl.DataFrame, ctx: Context) -> None:
        panes = parts.get_column(PANE).to_physical()
        self.panes.add_by(parts, panes)
        if self.emission.early_us is not None:
            if not self.emission.discarding:
                keys = parts.select(*self.keys_of(parts), PANE)
                self.fresh.add_by(keys, panes)
            self.wake_early(ctx)
        if self.emission.allowed_us:
            self._emit_again(parts, panes, ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        allowed_us = self.emission.allowed_us
        boundary = self.window.open_from(watermark)
        if boundary == self.boundary and not allowed_us and len(self.rules) == 1:
            return
        self.boundary = boundary
        over = [_over(window, panes, self.fired, watermark) for window, panes in self.rules]
        for starts, (window, panes) in zip(over, self.rules, strict=True):
            if starts:
                ctx.emit_batch(self._window_results(window, panes, starts, ON_TIME))
        if any(over) or allowed_us:
            self.fired = watermark
            ctx.state.put(FIRED, watermark)
        kept_us = 0 if self.emission.discarding else allowed_us
        for window, panes in self.rules:
            for pane in panes.groups:
                if window.last_end(pane) + kept_us <= watermark:
                    panes.drop(pane)
        for pane in self.fresh.groups:
            if self.window.last_end(pane) <= watermark:
                self.fresh.drop(pane)
        self.rules[1:] = [rule for rule in self.rules[1:] if rule[1]]

    def on_wake(self, now_s: float, ctx: Context) -> None:
        """Early results: of what has changed, in windows that have not ended."""
        discarding = self.emission.discarding
        changed = self.panes if discarding else self.fresh
        windows: dict[int, list[int]] = {}
        for pane in changed.groups:
            for start in self.window.starts(pane, max(self.fired, ctx.watermark)):
                windows.setdefault(start, []).append(pane)
        for start, panes in sorted(windows.items()):
            only = None
            if not discarding:
                only = self.fresh.read(panes)
                only = only.select(self.keys_of(only)).unique() if self.keys_of(only) else None
            ctx.emit_batch(self._window_results(self.window, self.panes, [start], EARLY, only))
        for pane in changed.groups:
            changed.drop(pane)

    def _earlier(self, store: StateBackend[Any, Any]) -> list[tuple[PanedWindow, Chunks]]:
        """Windows that were opened under other rules, and are completed under those."""
        names = dict.fromkeys(key[0] for key in store if isinstance(key, tuple))
        return [
            (described(name.removeprefix(_EARLIER)), Chunks(store, name, self._compacted))
            for name in names
            if name.startswith(_EARLIER)
        ]

    def _emit_again(self, parts: pl.DataFrame, panes: pl.Series, ctx: Context) -> None:
        keys = self.keys_of(parts)
        late = Chunks(MemoryBackend[Any, Any](), _PANES)
        for pane in panes.unique().to_list():
            here = parts.filter(panes == pane)
            changed = here.select(keys).unique() if keys else None
            over = self.fired - self.emission.allowed_us
            for start in self.window.starts(pane, over, self.fired):
                if self.emission.discarding:
                    late.add_by(here, here.get_column(PANE).to_physical())
                    results = self._window_results(self.window, late, [start], LATE_UPDATE)
                    late.drop(pane)
                else:
                    results = self._window_results(
                        self.window, self.panes, [start], LATE_UPDATE, changed
                    )
                ctx.emit_batch(results)

    def _window_results(
        self,
        window: PanedWindow,
        panes: Chunks,
        starts: Iterable[int],
        timing: str,
        only: pl.DataFrame | None = None,
    ) -> pl.DataFrame:
        windows: list[pl.DataFrame] = []
        for start in starts:
            parts = panes.read(window.panes(start))
            if only is not None:
                parts = matched(parts, only, only.columns, only.columns, "semi", nulls_equal=True)
            kind = parts.get_column(PANE).dtype
            ends = [pl.lit(at, pl.Int64).cast(kind) for at in (start, window.end(start))]
            windows.append(parts.with_columns(ends[0].alias(PANE), ends[1].alias(LAST)))
        together = self._merged(rows_together(windows, "window"), [PANE, LAST])
        return self.results(together, pl.col(LAST), pl.lit(timing))

    def _compacted(self, parts: pl.DataFrame) -> pl.DataFrame:
        return self._merged(parts, [PANE])

    def _merged(self, parts: pl.DataFrame, times: list[str]) -> pl.DataFrame:
        return self.aggregates.merged(parts, [*self.keys_of(parts), *times])


class ProcessingTimeAggregates(PaneAggregates):
    """Windows of the time at which records arrive here, by the clock of this machine."""

    def __init__(self, aggregates: Aggregates, window: PanedWindow) -> None:
        super().__init__(aggregates, "us", window)

    def describe_state(self) -> dict[str, Any]:
        return {**super().describe_state(), "time": "processing time"}

    def on_start(self, ctx: Context) -> None:
        super().on_start(ctx)
        self._ask_to_wake(ctx)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        # The clock may be behind that of another machine, or of an earlier run.
        now = max(int(ctx.now_s * 1e6), self.fired)
        pane = pl.lit(self.window.panes_of(pl.Series([now]))[0], pl.Int64)
        parts = columns_of(batch, ctx.operator)
        dated = parts.with_columns(pane.cast(pl.Datetime("us", "UTC")).alias(PANE))
        self.add(dated.select(*self.keys_of(dated), PANE, *self.aggregates.part_names), ctx)
        self._ask_to_wake(ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        """Event time does not matter here, but its end does: no more records will come."""
        if watermark == END_OF_TIME:
            super().on_watermark(watermark, ctx)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        super().on_watermark(int(now_s * 1e6), ctx)
        self._ask_to_wake(ctx)

    def _ask_to_wake(self, ctx: Context) -> None:
        for window, panes in self.rules:
            for pane in panes.groups[:1]:
                ctx.wake_at(window.end(window.starts(pane, self.fired)[0]) / 1e6)


class SessionAggregates(_Aggregating):
    """Sessions. Stretches are kept by the time at which their session would end; those of one
    key are merged only when one of them may have ended."""

    of_session: Sequence[pl.Expr] = ()
    """Further expressions of the rows of a session."""

    def __init__(
        self,
        aggregates: Aggregates,
        unit: Unit | None,
        window: Session,
        emission: Emission = ONCE,
    ) -> None:
        super().__init__(aggregates, unit, emission)
        self.gap_us = window.gap_us

    def describe_state(self) -> dict[str, Any]:
        return {**super().describe_state(), "window": self._rule}

    @property
    def _rule(self) -> str:
        return f"a gap of {in_seconds(self.gap_us)}"

    def on_start(self, ctx: Context) -> None:
        self.ends = Chunks(ctx.state, "session", owner=ctx.operator)
        self.fit(self.ends)
        if self.rule_before(ctx, self._rule) != self._rule and self.ends:
            everything = self.ends.read(self.ends.groups)
            for group in self.ends.groups:
                self.ends.drop(group)
            self._keep(everything)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        self._keep(columns_of(batch, ctx.operator))

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        passed = watermark - self.emission.allowed_us if watermark != END_OF_TIME else watermark
        groups = [group for group in self.ends.groups if group * self.gap_us <= passed]
        if not groups:
            return
        oldest = self.ends.read(groups)
        over = oldest.filter(pl.col(LAST).to_physical() + self.gap_us <= passed)
        if over.is_empty():
            return
        # The other stretches of those keys may belong to the same sessions.
        keys = self.keys_of(over)
        everything = self.ends.read(self.ends.groups)
        for group in self.ends.groups:
            self.ends.drop(group)
        touched = everything
        if keys:
            wanted = over.select(keys).unique().with_columns(pl.lit(True).alias(TOUCHED))
            marked = matched(everything, wanted, keys, keys, "left", nulls_equal=True)
            touched = marked.filter(pl.col(TOUCHED)).drop(TOUCHED)
            self._keep(marked.filter(pl.col(TOUCHED).is_null()).drop(TOUCHED))
        sessions = self._joined(touched, keys)
        finished = pl.col(LAST).to_physical() + self.gap_us <= passed
        done = sessions.filter(finished)
        self._keep(sessions.filter(~finished))
        gap = span(self.gap_us, done.get_column(LAST).dtype)
        if not done.is_empty():
            ctx.emit_batch(self.results(done, pl.col(LAST) + gap, pl.lit(ON_TIME)))

    def _keep(self, parts: pl.DataFrame) -> None:
        if not parts.is_empty():
            ends = parts.get_column(LAST).to_physical() + self.gap_us
            self.ends.add_by(parts, ends // self.gap_us)

    def _joined(self, parts: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
        first, last = (parts.get_column(name).to_physical() for name in (PANE, LAST))
        numbered = parts.with_columns(stretches(parts.select(keys), first, last + self.gap_us))
        of_each = [
            *(pl.col(key).first() for key in keys),
            pl.col(PANE).min(),
            pl.col(LAST).max(),
            *self.of_session,
        ]
        return self.aggregates.merged(numbered, ["__stretch"], of_each).drop("__stretch")


def _distinct(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.unique()


def _over(window: PanedWindow, panes: Chunks, after: int, watermark: int) -> list[int]:
    """The starts of the windows that end after `after` and have ended by now."""
    groups = panes.groups
    return sorted({start for pane in groups for start in window.starts(pane, after, watermark)})


def span(duration_us: int, kind: pl.DataType) -> Any:
    """A duration that can be added to times of this kind."""
    return duration_us if kind == pl.Int64 else pl.duration(microseconds=duration_us)


_CONSTANT = "__constant"


# Polars joins a single sorted column by merging, and finds no match for a NaN there. It hashes several
# columns together, and then all NaN are equal. A frame of one row counts as sorted. So a single column
# of floats is joined together with a column of constants.
def matched(
    left: pl.DataFrame,
    right: pl.DataFrame,
    left_on: Sequence[str],
    right_on: Sequence[str],
    how: Literal["inner", "left", "semi"],
    nulls_equal: bool = False,
) -> pl.DataFrame:
    """`left.join(right, ...)`, in which a NaN equals every NaN."""
    left_keys, right_keys = [*left_on], [*right_on]
    lonely = len(left_keys) == 1 and left.schema[left_keys[0]].is_float()
    if lonely:
        left = left.with_columns(pl.lit(0, pl.Int8).alias(_CONSTANT))
        right = right.with_columns(pl.lit(0, pl.Int8).alias(_CONSTANT))
        left_keys, right_keys = [*left_keys, _CONSTANT], [*right_keys, _CONSTANT]
    joined = left.join(
        right,
        left_on=left_keys,
        right_on=right_keys,
        how=how,
        suffix="_right",
        nulls_equal=nulls_equal,
    )
    return joined.drop(_CONSTANT) if lonely else joined
