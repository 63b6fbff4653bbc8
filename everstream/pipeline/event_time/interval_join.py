"""The interval join: pairs of rows whose times are close, each emitted when both rows are there.

An outer join has to know, when no partner of a row can come any more, whether one has come. Rows with
one key and one time have the same partners. So once such rows find a partner, their key and time are
kept as a mark until the rows are dropped. What has no mark comes out without a partner when the
watermark passes: the marks follow their keys to other shards, and the time up to which rows have come
out is saved with them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from everstream.pipeline.aggregation.chunks import TIME, Chunks, emit_overdue, kept_in, overdue_in
from everstream.pipeline.event_time.joins import (
    RIGHT_TIME,
    TimeJoin,
    alike,
    rows_except,
)
from everstream.pipeline.event_time.outer import INNER, LEFT, RIGHT, Outer
from everstream.pipeline.event_time.window_aggregates import matched
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.operator import Context
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, TimeOf, in_seconds
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend

_MARKS = {LEFT: "left matched", RIGHT: "right matched"}
_SETTLED = {LEFT: "left settled", RIGHT: "right settled"}
"""Rows from before this time have come out without a partner, or found one."""
_NUMBER = "__number"


class IntervalJoin(TimeJoin):
    """Pairs whose times differ by an amount within an interval: right minus left."""

    def __init__(
        self,
        keys: dict[str, list[str]],
        times: dict[str, TimeOf],
        lowest_us: int,
        highest_us: int,
        outer: Outer = INNER,
    ) -> None:
        super().__init__(keys, times, outer)
        self.lowest_us, self.highest_us = lowest_us, highest_us
        self.width_us = max((highest_us - lowest_us) // 4, 100_000)
        # A partner may come this long after a row, and the pair has the times of both.
        self.watermark_delay_us = max(highest_us, -lowest_us, 0)

    def describe_state(self) -> dict[str, Any]:
        between = f"{in_seconds(self.lowest_us)} to {in_seconds(self.highest_us)}"
        return self.describe_join(operator="interval_join", between=between)

    @property
    def names(self) -> dict[str, str]:
        return {**super().names, **{_MARKS[side]: side for side in self.outer.sides}}

    def on_start(self, ctx: Context) -> None:
        super().on_start(ctx)
        self.marks = self._marks(ctx.state, ctx.operator)
        self.settled = {side: ctx.state.get(_SETTLED[side], NO_WATERMARK) for side in self.marks}
        for side in (
            _MARKS.keys() - self.marks.keys()
        ):  # kept by an earlier version that needed them
            ctx.state.delete(_SETTLED[side])
            unneeded = Chunks(ctx.state, _MARKS[side])
            for group in unneeded.groups:
                unneeded.drop(group)
        emit_overdue(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """What has come out of one part counts for all: no later row is older."""
        kept = kept_in(parts)
        mine = super().redistribute(parts, place)[CONTEXT_STATE]
        for side in self.outer.sides:
            mine |= merged(kept, _SETTLED[side], max)
        overdue: list[pl.DataFrame] = []
        for number, entries in kept.items():
            own = MemoryBackend[Any, Any]()
            own.load(super().redistribute({number: parts[number]}, place)[CONTEXT_STATE])
            marks = self._marks(own, place.operator)
            for side in self.outer.sides:
                name = _SETTLED[side]
                after, until = (given.get(name, NO_WATERMARK) for given in (entries, mine))
                rows = Chunks(own, side)
                overdue += self._unmatched(side, rows, marks[side], after, until, place.operator)
        return {CONTEXT_STATE: mine | overdue_in(overdue, kept)}

    def passed(self, side: str, watermark: int) -> int:
        return watermark

    def add(self, side: str, rows: pl.DataFrame, ctx: Context) -> None:
        reach = (self.lowest_us, self.highest_us)
        if side == RIGHT:
            reach = (-self.highest_us, -self.lowest_us)
        times, other = rows.get_column(TIME), self.sides[RIGHT if side == LEFT else LEFT]
        first, last = times.min() + reach[0], times.max() + reach[1]  # type: ignore[operator]
        near = [g for g in other.groups if g + self.width_us > first and g <= last]
        pairs = self._pairs(side, rows, other, near, ctx) if near else None
        if pairs is not None:
            ctx.emit_batch(pairs.drop(TIME, RIGHT_TIME))
            for marked in self.marks:
                self._mark(marked, pairs)
        if side in self.marks:
            rows = self._settle(side, rows, pairs, ctx)
        if not rows.is_empty():
            self.sides[side].add_by_time(rows, self.width_us)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        """Evict a row when no row that can still come is close enough."""
        bounds = {LEFT: watermark - self.highest_us, RIGHT: watermark + self.lowest_us}
        keep = {side: max(min(us, END_OF_TIME), NO_WATERMARK) for side, us in bounds.items()}
        for side, marks in self.marks.items():
            after, until = self.settled[side], keep[side]
            if until > after:
                self.settled[side] = until
                rows = self.sides[side]
                for alone in self._unmatched(side, rows, marks, after, until, ctx.operator):
                    ctx.emit_batch(alone)
                    ctx.state.put(_SETTLED[side], until)
        for side, chunks in self.sides.items():
            for group in chunks.groups:
                if group + self.width_us <= keep[side]:
                    chunks.drop(group)
                    if side in self.marks and group in self.marks[side]:
                        self.marks[side].drop(group)

    def _pairs(
        self, side: str, rows: pl.DataFrame, other: Chunks, near: list[int], ctx: Context
    ) -> pl.DataFrame:
        partners = other.read(near)
        sides = (rows, partners) if side == LEFT else (partners, rows)
        apart = pl.col(RIGHT_TIME) - pl.col(TIME)
        pairs = self.joined(*sides, ctx.operator)
        return pairs.filter(apart.is_between(self.lowest_us, self.highest_us))

    def _marks(self, store: StateBackend[Any, Any], operator: str) -> dict[str, Chunks]:
        return {
            side: Chunks(store, _MARKS[side], pl.DataFrame.unique, operator)
            for side in self.outer.sides
        }

    def _marked(self, side: str, pairs: pl.DataFrame) -> pl.DataFrame:
        """The keys and times of the rows of one side that these pairs have."""
        keys = zip(self.keys[side], self.keys[LEFT], strict=True)
        time = TIME if side == LEFT else RIGHT_TIME
        return pairs.select(
            *(pl.col(key).alias(name) for name, key in keys), pl.col(time).alias(TIME)
        ).unique()

    def _mark(self, side: str, pairs: pl.DataFrame) -> None:
        found = self._marked(side, pairs)
        found = found.filter(pl.col(TIME) >= self.settled[side])
        if not found.is_empty():
            self.marks[side].add_by_time(found, self.width_us)

    def _settle(
        self, side: str, rows: pl.DataFrame, pairs: pl.DataFrame | None, ctx: Context
    ) -> pl.DataFrame:
        """Emit rows for which no partner can come and none is there. Returns the other rows."""
        over = rows.get_column(TIME) < self.settled[side]
        if not over.any():
            return rows
        marks = None if pairs is None else self._marked(side, pairs)
        alone = self._alone(side, rows.filter(over), marks, ctx.operator)
        ctx.emit_batch(alone)
        return rows.filter(~over)

    def _unmatched(
        self, side: str, rows: Chunks, marks: Chunks, after: int, until: int, operator: str
    ) -> Iterator[pl.DataFrame]:
        """Rows from `after` on and before `until` that have found no partner, if there are any."""
        groups = [g for g in rows.groups if g < until and g + self.width_us > after]
        if not groups:
            return
        due = rows.read(groups).filter(pl.col(TIME).is_between(after, until, closed="left"))
        if due.is_empty():
            return
        marked = [group for group in groups if group in marks]
        alone = self._alone(side, due, marks.read(marked) if marked else None, operator)
        if not alone.is_empty():
            yield alone

    def _alone(
        self, side: str, rows: pl.DataFrame, marks: pl.DataFrame | None, operator: str
    ) -> pl.DataFrame:
        rows = self.fitted(side, rows, operator).sort(TIME, maintain_order=True)
        if marks is not None:
            names = [*self.keys[side], TIME]
            mine = rows.select(names).with_row_index(_NUMBER)
            for key in self.keys[side]:
                mine, marks = alike(mine, marks, key, key, operator)
            found = matched(mine, marks, names, names, "semi").get_column(_NUMBER)
            rows = rows_except(rows, found)
        return self.outer.alone(side, rows.drop(TIME), self.keys, operator)
