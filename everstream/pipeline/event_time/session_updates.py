"""Sessions that give results before they are over, and correct them afterwards.

A result of a session holds until another one replaces it. If the session has the same bounds, the later
result counts, as for other windows. If the session has grown, or has merged with others, each result whose
bounds no longer hold is first retracted: it is emitted again, unchanged, as "retracted".

Sessions are kept until the allowed lateness has passed, and what was emitted of them is kept beside them.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from everstream.pipeline.aggregation.chunks import Chunks
from everstream.pipeline.aggregation.local_parts import LAST, PANE, stretches
from everstream.pipeline.batch import Batch, columns_of, rows_together
from everstream.pipeline.event_time.window_aggregates import (
    EARLY,
    FIRED,
    LATE_UPDATE,
    ON_TIME,
    TIMING,
    TOUCHED,
    SessionAggregates,
    matched,
    span,
)
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.operator import Context
from everstream.pipeline.times import NO_WATERMARK

RETRACTED = "retracted"
_SHOWN = "shown"
_NEW = "__new"
"""Whether a session has records that are in no result yet."""
_FINAL = "__final"
"""Whether the result was emitted when the session was over, or later."""
_EMITTED = "__emitted"
_NUMBER = "__stretch"
_UNTIL = "__until"
"""When the session that a result belongs to has its last record: the result is kept with it."""
_OWN = (_NEW, _FINAL, _UNTIL, TIMING)


class SessionUpdates(SessionAggregates):
    """Sessions with early results or late corrections, each of which says what it is."""

    of_session = (pl.col(_NEW).any(),)

    def describe_state(self) -> dict[str, Any]:
        return {**super().describe_state(), "emits": "updates"}

    def on_start(self, ctx: Context) -> None:
        super().on_start(ctx)
        self.shown = Chunks(ctx.state, _SHOWN, owner=ctx.operator)
        self.fit(self.shown)
        if self.shown and self.before is not None:  # the groups had another width
            self._keep_shown(self._taken(self.shown))
        self.fired: int = ctx.state.get(FIRED, NO_WATERMARK)
        """Sessions that end up to here have been emitted."""
        if self.ends:
            self.wake_early(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """A session that is over in one part and not in another is looked at again."""
        kept = {number: states.get(CONTEXT_STATE, {}) for number, states in parts.items()}
        mine = super().redistribute(parts, place)[CONTEXT_STATE]
        return {CONTEXT_STATE: mine | merged(kept, FIRED, min)}

    def owned(self, rows: pl.DataFrame, place: Place) -> list[bool]:
        return super().owned(rows.drop(*_OWN, strict=False), place)

    def keys_of(self, parts: pl.DataFrame) -> list[str]:
        return [name for name in super().keys_of(parts) if name not in _OWN]

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        parts = columns_of(batch, ctx.operator).with_columns(pl.lit(True).alias(_NEW))
        self._keep(parts)
        # Only these can belong to a session that is over.
        behind = parts.filter(pl.col(PANE).to_physical() < self.fired)
        if not behind.is_empty():
            self._settle(behind, self.fired, LATE_UPDATE, ctx)
        self.wake_early(ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        groups = [group for group in self.ends.groups if group * self.gap_us <= watermark]
        if groups:
            end = pl.col(LAST).to_physical() + self.gap_us
            over = self.ends.read(groups).filter((end > self.fired) & (end <= watermark))
            if not over.is_empty():
                self._settle(over, watermark, ON_TIME, ctx)
        self.fired = watermark
        ctx.state.put(FIRED, watermark)
        for kept in (self.ends, self.shown):
            for group in kept.groups:
                if (group + 1) * self.gap_us + self.emission.allowed_us <= watermark:
                    kept.drop(group)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        """Early results: of the sessions that have changed."""
        if self.ends:
            changed = self.ends.read(self.ends.groups).filter(pl.col(_NEW))
            if not changed.is_empty():
                self._settle(changed, self.fired, EARLY, ctx)

    def _settle(self, rows: pl.DataFrame, passed: int, timing: str, ctx: Context) -> None:
        """Join the sessions of the keys of these rows, and emit those that are due."""
        keys = self.keys_of(rows)
        wanted = rows.select(keys).unique()
        sessions = self._joined(self._of_keys(self.ends, wanted, keys), keys)
        over = pl.col(LAST).to_physical() + self.gap_us <= passed
        due = pl.col(_NEW) & ~over if timing == EARLY else over
        sessions = sessions.with_columns(
            due.alias(_EMITTED), pl.lit(None, pl.Boolean).alias(_FINAL)
        )
        if self.shown:
            before = self._of_keys(self.shown, wanted, keys)
            sessions, shown, retracted = self._compared(sessions, before, keys)
            self._keep_shown(shown)
            self._emit(retracted.with_columns(pl.lit(RETRACTED).alias(TIMING)), ctx)
        emitted = sessions.filter(_EMITTED).drop(_EMITTED, _NEW)
        self._emit(emitted.with_columns(pl.lit(timing).alias(TIMING)), ctx)
        final = pl.lit(timing != EARLY).alias(_FINAL)
        self._keep_shown(emitted.with_columns(final, pl.col(LAST).to_physical().alias(_UNTIL)))
        left = sessions.with_columns(pl.col(_NEW) & ~pl.col(_EMITTED))
        self._keep(left.drop(_EMITTED, _FINAL))

    def _compared(
        self, sessions: pl.DataFrame, before: pl.DataFrame, keys: list[str]
    ) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """The sessions, of which only those are emitted whose result is not known; the earlier results
        that stay as they are; and those that are retracted."""
        unknown = pl.lit(None, pl.Boolean)
        before = before.with_columns(unknown.alias(_NEW), unknown.alias(_EMITTED))
        rows = rows_together([sessions, before.select(sessions.columns)], "window")
        first, last = (rows.get_column(name).to_physical() for name in (PANE, LAST))
        # An earlier result lies within the session that its records belong to now.
        rows = rows.with_columns(stretches(rows.select(keys), first, last + self.gap_us))
        is_session = pl.col(_EMITTED).is_not_null()
        bounds = pl.struct(PANE, LAST)
        rows = rows.with_columns(_holds=bounds == bounds.filter(is_session).first().over(_NUMBER))
        known = (pl.col(_FINAL) & pl.col("_holds")).any().over(_NUMBER)
        emitted = pl.col(_EMITTED) & (pl.col(_NEW) | ~known)
        rows = rows.with_columns(emitted.fill_null(False).alias("_emits"))
        until = pl.col(LAST).to_physical().max().over(_NUMBER).alias(_UNTIL)
        rows = rows.with_columns(until, _replaced=pl.col("_emits").any().over(_NUMBER))
        found = rows.filter(is_session).with_columns(pl.col("_emits").alias(_EMITTED))
        earlier = rows.filter(~is_session)
        kept = earlier.filter(~pl.col("_replaced"))
        retracted = earlier.filter(pl.col("_replaced") & ~pl.col("_holds"))
        columns = [name for name in sessions.columns if name not in (_NEW, _EMITTED)]
        columns.append(_UNTIL)
        return found.select(sessions.columns), kept.select(columns), retracted.select(columns)

    def _emit(self, sessions: pl.DataFrame, ctx: Context) -> None:
        if not sessions.is_empty():
            gap = span(self.gap_us, sessions.get_column(LAST).dtype)
            ctx.emit_batch(self.results(sessions, pl.col(LAST) + gap, pl.col(TIMING)))

    def _of_keys(self, kept: Chunks, wanted: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
        """Takes out the rows of these keys."""
        everything = self._taken(kept)
        if not keys:
            return everything
        keep = self._keep_shown if kept is self.shown else self._keep
        marked = wanted.with_columns(pl.lit(True).alias(TOUCHED))
        rows = matched(everything, marked, keys, keys, "left", nulls_equal=True)
        keep(rows.filter(pl.col(TOUCHED).is_null()).drop(TOUCHED))
        return rows.filter(pl.col(TOUCHED)).drop(TOUCHED)

    def _keep_shown(self, rows: pl.DataFrame) -> None:
        if not rows.is_empty():
            self.shown.add_by(rows, (rows.get_column(_UNTIL) + self.gap_us) // self.gap_us)

    def _taken(self, kept: Chunks) -> pl.DataFrame:
        everything = kept.read(kept.groups)
        for group in kept.groups:
            kept.drop(group)
        return everything
