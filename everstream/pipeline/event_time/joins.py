"""Joins of two streams by key and event time.

Both streams are keyed alike, so rows that may match meet in one shard. There each side is kept in
chunks by time until the watermark shows that no match can come any more. A window join emits the
pairs of a window when the window ends, an interval join emits each pair at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.chunks import (
    Chunks,
    emit_overdue,
    kept_in,
    overdue_in,
    redistribute_chunks,
)
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.event_time.window_aggregates import END, START, matched
from everstream.pipeline.event_time.windows import Sliding
from everstream.pipeline.graph import ByKey, Edge, Kind
from everstream.pipeline.keys import Keying
from everstream.pipeline.methods.base import Options
from everstream.pipeline.operator import OUT, Context, Operator
from everstream.pipeline.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.times import NO_WATERMARK, TimeOf, in_seconds, in_unit
from everstream.pipeline.types import Row
from everstream.state.backends.memory import MemoryBackend

if TYPE_CHECKING:
    from everstream.pipeline.methods.time import TimeMethods
    from everstream.pipeline.stream import Stream

LEFT, RIGHT = "left", "right"
_TIME = "__time"
_RIGHT_TIME = "__time_right"
_FIRED = "fired"
_EXACT = 2**53
"""Up to here, every whole number is exactly a float."""
_ZONE = "zone"
"""The time zone of the left side's times, or "" for none; missing if they are numbers."""


class _Join(Operator, ABC):
    """Two sides, each with its key columns and its times."""

    def __init__(self, keys: dict[str, list[str]], times: dict[str, TimeOf]) -> None:
        self.keys = keys
        self.times = times

    def on_start(self, ctx: Context) -> None:
        self.sides = {side: Chunks(ctx.state, side, owner=ctx.operator) for side in (LEFT, RIGHT)}

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        kept = kept_in(parts)
        mine: dict[Any, Any] = merged(kept, _ZONE, itemgetter(0))
        for side in (LEFT, RIGHT):
            mine |= redistribute_chunks(kept.values(), side, partial(place.owns_rows, side=side))
        return {CONTEXT_STATE: mine}

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        time = self.times[ctx.input]
        given = time.read(batch, ctx.operator)
        if given.null_count():
            raise UserError(f"'{ctx.operator}': a record has no time.")
        if isinstance(given.dtype, pl.Datetime) and ctx.input == LEFT and _ZONE not in ctx.state:
            ctx.state.put(_ZONE, given.dtype.time_zone or "")
        rows = frame.with_columns(time.microseconds(given).alias(_TIME))
        passed = self.passed(ctx.input, ctx.watermark)
        if ctx.watermark != NO_WATERMARK and rows.get_column(_TIME).min() < passed:  # type: ignore[operator]
            late = rows.get_column(_TIME) < passed
            ctx.emit_batch(frame.filter(late), LATE)
            rows = rows.filter(~late)
        if not rows.is_empty():
            self.add(ctx.input, rows, ctx)

    @abstractmethod
    def passed(self, side: str, watermark: int) -> int:
        """Rows of this side from before this time are late."""

    @abstractmethod
    def add(self, side: str, rows: pl.DataFrame, ctx: Context) -> None:
        """Take rows of one side that are on time."""

    def joined(self, left: pl.DataFrame, right: pl.DataFrame, operator: str) -> pl.DataFrame:
        """Pairs with equal keys: a NaN equals every NaN, a null equals nothing."""
        left_keys, right_keys = self.keys[LEFT], self.keys[RIGHT]
        for one, other in zip(left_keys, right_keys, strict=True):
            left, right = _alike(left, right, one, other, operator)
        return matched(left, right, left_keys, right_keys, "inner")

    def put_away(self, side: str, rows: pl.DataFrame, width_us: int) -> None:
        """Keep rows in groups that span this much time."""
        groups = rows.get_column(_TIME)
        groups = groups - groups % width_us
        for group in groups.unique().to_list():
            self.sides[side].add(group, rows.filter(groups == group))


class WindowJoin(_Join):
    """Pairs within the same tumbling or sliding window."""

    def __init__(
        self, keys: dict[str, list[str]], times: dict[str, TimeOf], window: Sliding
    ) -> None:
        super().__init__(keys, times)
        self.window = window

    def describe_state(self) -> dict[str, Any]:
        return {"operator": "window_join", "window": self.window.describe()}

    def on_start(self, ctx: Context) -> None:
        super().on_start(ctx)
        self.fired: int = ctx.state.get(_FIRED, NO_WATERMARK)
        emit_overdue(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """A window that fired in one part counts as fired in all: no later row is older."""
        kept = kept_in(parts)
        mine = super().redistribute(parts, place)[CONTEXT_STATE] | merged(kept, _FIRED, max)
        late: list[pl.DataFrame] = []
        for number, entries in kept.items():
            own = MemoryBackend[Any, Any]()
            own.load(super().redistribute({number: parts[number]}, place)[CONTEXT_STATE])
            sides = {side: Chunks(own, side) for side in (LEFT, RIGHT)}
            fired, now = entries.get(_FIRED, NO_WATERMARK), mine.get(_FIRED, NO_WATERMARK)
            late += self._fired(sides, fired, now, own.get(_ZONE), place.operator)
        return {CONTEXT_STATE: mine | overdue_in(late, kept)}

    def passed(self, side: str, watermark: int) -> int:
        every, size = self.window.every_us, self.window.size_us
        return (watermark - size) // every * every + every

    def add(self, side: str, rows: pl.DataFrame, ctx: Context) -> None:
        self.put_away(side, rows, self.window.pane_us)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        zone = ctx.state.get(_ZONE)
        for pairs in self._fired(self.sides, self.fired, watermark, zone, ctx.operator):
            ctx.emit_batch(pairs)
            self.fired = watermark
            ctx.state.put(_FIRED, watermark)
        for side in self.sides.values():
            for pane in side.groups:
                if self.window.last_end(pane) <= watermark:
                    side.drop(pane)

    def _fired(
        self, sides: Mapping[str, Chunks], after: int, watermark: int, zone: str | None, name: str
    ) -> Iterator[pl.DataFrame]:
        """The pairs of each window that ends after `after` and has ended by now."""
        left, right = sides[LEFT], sides[RIGHT]
        starts = {
            start
            for pane in left.groups
            for start in self.window.starts(pane, after, watermark)
            if any(other in right for other in self.window.panes(start))
        }
        for start in sorted(starts):
            panes = self.window.panes(start)
            pairs = self.joined(left.read(panes), right.read(panes), name)
            yield self._dated(pairs, start, zone)

    def _dated(self, pairs: pl.DataFrame, start: int, zone: str | None) -> pl.DataFrame:
        """Adds the window's times, in the form of the left side's times."""
        window = pl.Series([start, start + self.window.size_us], dtype=pl.Int64)
        if zone is not None:
            window = window.cast(pl.Datetime("us", zone or None))
        else:
            window = in_unit(window, self.times[LEFT].unit)
        ends = [pl.lit(window[0], window.dtype), pl.lit(window[1], window.dtype)]
        return pairs.drop(_TIME, _RIGHT_TIME).with_columns(ends[0].alias(START), ends[1].alias(END))


class IntervalJoin(_Join):
    """Pairs whose times differ by an amount within an interval: right minus left."""

    def __init__(
        self, keys: dict[str, list[str]], times: dict[str, TimeOf], lowest_us: int, highest_us: int
    ) -> None:
        super().__init__(keys, times)
        self.lowest_us, self.highest_us = lowest_us, highest_us
        self.width_us = max((highest_us - lowest_us) // 4, 100_000)

    def describe_state(self) -> dict[str, Any]:
        between = f"{in_seconds(self.lowest_us)} to {in_seconds(self.highest_us)}"
        return {"operator": "interval_join", "between": between}

    def passed(self, side: str, watermark: int) -> int:
        return watermark

    def add(self, side: str, rows: pl.DataFrame, ctx: Context) -> None:
        reach = (self.lowest_us, self.highest_us)
        if side == RIGHT:
            reach = (-self.highest_us, -self.lowest_us)
        times, other = rows.get_column(_TIME), self.sides[RIGHT if side == LEFT else LEFT]
        first, last = times.min() + reach[0], times.max() + reach[1]  # type: ignore[operator]
        near = [g for g in other.groups if g + self.width_us > first and g <= last]
        if near:
            partners = other.read(near)
            pairs = (
                self.joined(rows, partners, ctx.operator)
                if side == LEFT
                else self.joined(partners, rows, ctx.operator)
            ).filter(
                (pl.col(_RIGHT_TIME) - pl.col(_TIME)).is_between(self.lowest_us, self.highest_us)
            )
            ctx.emit_batch(pairs.drop(_TIME, _RIGHT_TIME))
        self.put_away(side, rows, self.width_us)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        """Evict a row when no row that can still come is close enough."""
        keep = {LEFT: watermark - self.highest_us, RIGHT: watermark + self.lowest_us}
        for side, chunks in self.sides.items():
            for group in chunks.groups:
                if group + self.width_us <= keep[side]:
                    chunks.drop(group)


def _alike(
    left: pl.DataFrame, right: pl.DataFrame, one: str, other: str, operator: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both sides with a key column of one type in which equal keys are equal."""
    left_type, right_type = left.schema[one], right.schema[other]
    if (
        left_type == right_type
        or pl.Null in (left_type, right_type)
        or (left_type.is_integer() and right_type.is_integer())
    ):
        return left, right
    if _fit_floats(left.get_column(one)) and _fit_floats(right.get_column(other)):
        left = left.with_columns(pl.col(one).cast(pl.Float64))
        return left, right.with_columns(pl.col(other).cast(pl.Float64))
    if left_type.is_numeric() or right_type.is_numeric():
        raise UserError(
            f"'{operator}' joins on column '{one}', which is {left_type}, and column '{other}' of the "
            f"other stream, which is {right_type}. Values of these types cannot be compared exactly. "
            "Cast one of them before the join: .with_columns(pl.col(...).cast(...))."
        )
    return left, right


def _fit_floats(numbers: pl.Series) -> bool:
    """Whether each of these numbers is a float or exactly equal to one."""
    if not numbers.dtype.is_integer():
        return numbers.dtype.is_float()
    inside = numbers.is_between(-_EXACT, _EXACT)
    return bool(inside.all())


def join_sides(
    left: TimeMethods[Any],
    right: Stream,
    on: str | Sequence[str],
    other_on: str | Sequence[str] | None,
) -> tuple[dict[str, list[str]], dict[str, TimeOf]]:
    """The key columns and the times of both sides."""
    if left.pipeline is not right.pipeline:
        raise UserError("a join needs two streams of the same pipeline; these are from two.")
    keys = {LEFT: _names(on), RIGHT: _names(on if other_on is None else other_on)}
    if len(keys[LEFT]) != len(keys[RIGHT]) or not keys[LEFT]:
        raise UserError("a join needs the same number of key columns on both sides, at least one.")
    return keys, {LEFT: left._time(), RIGHT: right._time()}


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def attach_join(
    left: TimeMethods[Any], right: Stream, operator: _Join, base: str, options: Options
) -> Stream[Row]:
    """The node of a join: a keyed edge from each side, distinguished by its name."""
    pipeline = left.pipeline
    node = left._leaving([])._attach(base, Kind.OPERATOR, operator, options)
    for side, stream in ((LEFT, left), (RIGHT, right)):
        names = operator.keys[side]
        routing = ByKey(Keying(names[0] if len(names) == 1 else pl.struct(names)))
        for sender, output in stream._origins:
            pipeline.graph.edges.append(Edge(sender, node.name, routing, output, side))
    return left._leaving([(node.name, OUT)])
