"""Joins of two streams by key and event time: what they have in common.

Both streams are keyed alike, so rows that may match meet in one shard. There each side is kept in
chunks by time until the watermark shows that no match can come any more. A window join emits the
pairs of a window when the window ends, an interval join emits each pair at once. An outer join also
emits rows without a partner, as soon as no partner can come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.chunks import TIME, Chunks, kept_in, redistribute_chunks
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.event_time.outer import (
    INNER,
    LEFT,
    RIGHT,
    How,
    Outer,
    Types,
    outer,
    renamed,
    require_free,
)
from everstream.pipeline.event_time.window_aggregates import matched
from everstream.pipeline.graph import Broadcast, ByKey, Edge, Kind, OnDemand, Routing
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.keys import Keying
from everstream.pipeline.methods.base import Options
from everstream.pipeline.operator import OUT, Context, Operator
from everstream.pipeline.times import NO_WATERMARK, TimeOf
from everstream.pipeline.types import Row

if TYPE_CHECKING:
    from everstream.pipeline.methods.time import TimeMethods
    from everstream.pipeline.stream import Stream

RIGHT_TIME = "__time_right"
_EXACT = 2**53
"""Up to here, every whole number is exactly a float."""
ZONE = "zone"
"""The time zone of the left side's times, or "" for none; missing if they are numbers."""


class TimeJoin(Operator, ABC):
    """Two sides, each with its key columns and its times."""

    def __init__(
        self, keys: dict[str, list[str]], times: dict[str, TimeOf], outer: Outer = INNER
    ) -> None:
        self.keys = keys
        self.times = times
        self.outer = outer

    def describe_join(self, **about: str) -> dict[str, Any]:
        """The description of the state; an inner join does not mention `how`."""
        how = self.outer.how
        return {**about, **({"how": how} if how != "inner" else {})}

    @property
    def names(self) -> dict[str, str]:
        """The names under which rows are kept, and the side that each belongs to."""
        return {LEFT: LEFT, RIGHT: RIGHT}

    def columns_used(self, side: str) -> Sequence[Any]:
        return [*self.keys[side], self.times[side].what]

    def columns_after(self, inputs: Mapping[str, pl.Schema]) -> Mapping[str, Any] | None:
        known = {**inputs, **self.outer.schemas}
        if LEFT not in known or RIGHT not in known:
            return None
        left, right = known[LEFT], known[RIGHT]
        pairs = zip(self.keys[LEFT], self.keys[RIGHT], strict=True)
        if any(left[one] != right[other] for one, other in pairs):
            return None  # the values decide in which type the keys are compared
        others = {n: k for n, k in right.items() if n not in self.keys[RIGHT]}
        return {**left, **{renamed(name, left): kind for name, kind in others.items()}}

    def on_start(self, ctx: Context) -> None:
        self.sides = {side: Chunks(ctx.state, side, owner=ctx.operator) for side in (LEFT, RIGHT)}

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        kept = kept_in(parts)
        mine: dict[Any, Any] = merged(kept, ZONE, itemgetter(0))
        for name, side in self.names.items():
            mine |= redistribute_chunks(kept.values(), name, partial(place.owns_rows, side=side))
        return {CONTEXT_STATE: mine}

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        side = ctx.input
        frame = self.outer.fitted(side, columns_of(batch, ctx.operator), ctx.operator)
        time = self.times[side]
        given = time.read(batch, ctx.operator)
        if given.null_count():
            raise UserError(f"'{ctx.operator}': a record has no time.")
        if isinstance(given.dtype, pl.Datetime) and side == LEFT and ZONE not in ctx.state:
            ctx.state.put(ZONE, given.dtype.time_zone or "")
        rows = frame.with_columns(time.microseconds(given).alias(TIME))
        passed = self.passed(side, ctx.watermark)
        if ctx.watermark != NO_WATERMARK and rows.get_column(TIME).min() < passed:  # type: ignore[operator]
            late = rows.get_column(TIME) < passed
            ctx.emit_batch(frame.filter(late), LATE)
            rows = rows.filter(~late)
        if not rows.is_empty():
            self.add(side, rows, ctx)

    @abstractmethod
    def passed(self, side: str, watermark: int) -> int:
        """Rows of this side from before this time are late."""

    @abstractmethod
    def add(self, side: str, rows: pl.DataFrame, ctx: Context) -> None:
        """Take rows of one side that are on time."""

    def joined(self, left: pl.DataFrame, right: pl.DataFrame, operator: str) -> pl.DataFrame:
        """Pairs with equal keys: a NaN equals every NaN, a null equals nothing."""
        before = left.schema
        left, right = self.comparable(left, right, operator)
        others = [name for name in right.columns if name not in self.keys[RIGHT]]
        require_free(left.columns, others, operator)
        pairs = matched(left, right, self.keys[LEFT], self.keys[RIGHT], "inner")
        if self.outer.sides and left.schema != before:
            # A row without a partner keeps the type of its key, so those of pairs have it, too.
            pairs = pairs.with_columns(pl.col(key).cast(before[key]) for key in self.keys[LEFT])
        return pairs

    def without_partner(
        self, side: str, rows: pl.DataFrame, others: pl.DataFrame | None, operator: str
    ) -> pl.DataFrame:
        """The rows of one side that match no row of the other, in the columns of pairs."""
        if others is not None:
            mine = rows.with_row_index(_ROW)
            pair = (mine, others) if side == LEFT else (others, mine)
            comparable = dict(zip((LEFT, RIGHT), self.comparable(*pair, operator), strict=True))
            other = RIGHT if side == LEFT else LEFT
            paired = matched(
                comparable[side], comparable[other], self.keys[side], self.keys[other], "semi"
            )
            rows = rows_except(rows, paired.get_column(_ROW))
        return self.outer.alone(side, rows.drop(TIME), self.keys, operator)

    def fitted(self, side: str, rows: pl.DataFrame, operator: str) -> pl.DataFrame:
        """Kept rows in the schema of their side, also those from before it was declared."""
        if side not in self.outer.schemas:
            return rows
        fitted = self.outer.fitted(side, rows.drop(TIME), operator)
        return fitted.with_columns(rows.get_column(TIME))

    def comparable(
        self, left: pl.DataFrame, right: pl.DataFrame, operator: str
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        for one, other in zip(self.keys[LEFT], self.keys[RIGHT], strict=True):
            left, right = alike(left, right, one, other, operator)
        return left, right


_ROW = "__row"


def rows_except(rows: pl.DataFrame, numbers: pl.Series) -> pl.DataFrame:
    """The rows without those with these numbers."""
    keep = np.ones(len(rows), dtype=bool)
    keep[numbers.to_numpy()] = False
    return rows.filter(pl.Series(keep))


def alike(
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
    return dict(keys), {LEFT: left._time(), RIGHT: right._time()}


def outer_of(
    method: str,
    left: TimeMethods[Any],
    right: Stream,
    keys: Mapping[str, Sequence[str]],
    how: How,
    schema: Types | None,
    other_schema: Types | None,
) -> Outer:
    """What `how` and the schemas mean for the join of these streams."""
    graph = left.pipeline.graph
    streams = {LEFT: (graph, left._origins), RIGHT: (graph, right._origins)}
    return outer(method, how, streams, {LEFT: schema, RIGHT: other_schema}, keys)


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def attach_join(
    left: TimeMethods[Any],
    right: Stream,
    operator: TimeJoin,
    base: str,
    options: Options,
    *,
    broadcast: bool = False,
) -> Stream[Row]:
    """The node of a join: a keyed edge from each side, distinguished by its name.

    broadcast: every shard gets all rows of the right side, and those of the left side go anywhere.
    """
    pipeline = left.pipeline
    graph = pipeline.graph
    node = left._leaving([])._attach(base, Kind.OPERATOR, operator, options)
    before = len(graph.edges)
    for side, stream in ((LEFT, left), (RIGHT, right)):
        names = operator.keys[side]
        routing: Routing = ByKey(Keying(names[0] if len(names) == 1 else pl.struct(names)))
        if broadcast:
            routing = Broadcast() if side == RIGHT else OnDemand()
        for sender, output in stream._origins:
            graph.edges.append(Edge(sender, node.name, routing, output, side))
    left._check_columns(node, before)
    return left._leaving([(node.name, OUT)])
