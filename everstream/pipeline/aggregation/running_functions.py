"""Ranks, neighbours and cumulative aggregates per key without a window, in the order in which records arrive.

The state is rows: of each key the last few records, for its neighbours, and how often each value has come, for
its ranks. They are kept in groups by key. A batch reads the groups of its keys, and works on their rows and its
own at once. Cumulative aggregates are running aggregates (`running.py`).

A record with a neighbour that is still to come waits for it. So the rows that leave may be of any age, and the
watermark is held back until the input ends.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.chunks import Chunks, kept_in, redistribute_chunks
from everstream.pipeline.aggregation.running import RunningRecords
from everstream.pipeline.aggregation.window_functions import (
    Cumulative,
    Ranked,
    Shifted,
    WindowFunction,
)
from everstream.pipeline.batch import Batch, columns_of, rows_together
from everstream.pipeline.event_time.window_aggregates import matched
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place
from everstream.pipeline.keys import hash_column
from everstream.pipeline.operator import Context, Operator

_RECENT, _VALUES = "recent", "/values"
_VALUE, _TIMES, _KEY = "__value", "__times", "__key"
_BUCKETS = 16
_SMALL_ROWS = 4_096
_LATER = pl.len() - 1 - pl.int_range(pl.len(), dtype=pl.Int64)
"""How many records of the key come after this one."""
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class RunningFunctions(Operator):
    """Each record with functions of those of its key so far, and of the next ones."""

    def __init__(self, key: pl.Expr, functions: Mapping[str, WindowFunction]) -> None:
        self.key = key
        self.functions = dict(functions)
        self.ranks = {n: one for n, one in functions.items() if isinstance(one, Ranked)}
        shifts = {n: one for n, one in functions.items() if isinstance(one, Shifted)}
        self.lags = {name: one for name, one in shifts.items() if one.by > 0}
        self.leads = {name: one for name, one in shifts.items() if one.by < 0}
        self.longest_lead = max((-one.by for one in self.leads.values()), default=0)
        self.depth = max((abs(one.by) for one in shifts.values()), default=0)
        sums = {n: one.aggregate for n, one in functions.items() if isinstance(one, Cumulative)}
        self.running = RunningRecords(Aggregates(sums)) if sums else None
        self.why_in_memory = self.running.why_in_memory if self.running else None
        self.announces_watermarks = bool(self.leads)
        self.key_columns = list(dict.fromkeys(key.meta.root_names()))
        plain = [pl.struct(self.key_columns), *map(pl.col, self.key_columns[:1])]
        self._plain = any(key.meta.eq(one) for one in plain)
        """Whether the key is these columns, not something computed from them."""

    def columns_used(self, side: str) -> Sequence[Any]:
        return [self.key, *(c for one in self.functions.values() for c in one.columns_used)]

    def describe_state(self) -> dict[str, Any]:
        columns = [f"{name}={one.describe()}" for name, one in self.functions.items()]
        return {"operator": "running_functions", "columns": columns}

    def on_start(self, ctx: Context) -> None:
        self.recent = Chunks(ctx.state, _RECENT, self._last, ctx.operator, _SMALL_ROWS)
        self.values = {
            name: Chunks(ctx.state, name + _VALUES, self._counted, ctx.operator, _SMALL_ROWS)
            for name in self.ranks
        }
        if self.running is not None:
            self.running.open(ctx.state)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        kept = kept_in(parts).values()
        mine: dict[Any, Any] = {}
        if self.running is not None:
            mine |= self.running.redistribute(parts, place)[CONTEXT_STATE]
        for name in (_RECENT, *(name + _VALUES for name in self.ranks)):
            mine |= redistribute_chunks(kept, name, partial(place.owns_rows))
        return {CONTEXT_STATE: mine}

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        for name, one in self.functions.items():
            if name in frame.columns:
                raise UserError(
                    f"'{ctx.operator}': the records already have a column '{name}'. Give the new one "
                    "another name."
                )
            for column in one.columns_used:
                if isinstance(column, str) and column not in frame.columns:
                    raise UserError(
                        f"'{ctx.operator}': {name} needs column '{column}', but the records have: "
                        f"{', '.join(frame.columns)}."
                    )
        rows = frame
        if self.running is not None:
            rows = self.running.with_aggregates(rows, batch, ctx)
        buckets = self._buckets(frame)
        for name, rank in self.ranks.items():
            rows = rows.with_columns(self._place(name, rank, frame, buckets, ctx).alias(name))
        if self.depth:
            rows = self._with_neighbours(frame, rows, buckets, ctx)
        ctx.emit_batch(self._ordered(rows))

    def on_end(self, ctx: Context) -> None:
        if not self.leads:
            return
        for bucket in self.recent.groups:
            rows = self.recent.read([bucket])
            rows = self._led(rows.filter(_LATER.over(self.key) < self.longest_lead))
            self.recent.drop(bucket)
            ctx.emit_batch(self._ordered(rows))

    def _ordered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The columns of the records first."""
        return rows.select(pl.exclude(*self.functions), *self.functions)

    def _with_neighbours(
        self, frame: pl.DataFrame, rows: pl.DataFrame, buckets: Numbers, ctx: Context
    ) -> pl.DataFrame:
        """The records that have all their neighbours, with those."""
        shown = {one.column for one in self.lags.values()}
        needed = [n for n in frame.columns if n in shown or n in self.key_columns]
        before = self._of_same_keys(self.recent, frame, buckets)
        before = None if before is None else self._last(before)
        if self.lags:
            seen = _together([before, frame], needed, ctx)
            lags = (
                pl.col(one.column).shift(one.by).over(self.key).alias(name)
                for name, one in self.lags.items()
            )
            rows = rows.hstack(seen.select(*lags).tail(len(frame)))
        kept = rows if self.leads else rows.select(needed)
        self._add(self.recent, kept, buckets, _LATER.over(self.key) < self.depth)
        if not self.leads:
            return rows
        if before is not None:
            before = before.filter(_LATER.over(self.key) < self.longest_lead)
        rows = self._led(_together([before, rows], None, ctx))
        return rows.filter(_LATER.over(self.key) >= self.longest_lead)

    def _led(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(
            pl.col(one.column).shift(one.by).over(self.key).alias(name)
            for name, one in self.leads.items()
        )

    def _place(
        self, name: str, rank: Ranked, frame: pl.DataFrame, buckets: Numbers, ctx: Context
    ) -> pl.Series:
        """The place of each record among those of its key so far."""
        there = frame.get_column(rank.column).is_not_null()
        now = frame.select(*self.key_columns, pl.col(rank.column).alias(_VALUE)).filter(there)
        places = np.zeros(len(frame), np.float64 if rank.method == "average" else np.int64)
        if len(now):
            kept = self._of_same_keys(self.values[name], frame, buckets)
            before = None if kept is None else self._counted(kept)
            places[there.to_numpy()] = self._places(rank, before, now, ctx)
            counted = now.with_columns(pl.lit(1, pl.Int64).alias(_TIMES))
            self._add(self.values[name], counted, buckets[there.to_numpy()])
        return pl.Series(places).set(~there, None)

    def _places(
        self, rank: Ranked, before: pl.DataFrame | None, now: pl.DataFrame, ctx: Context
    ) -> Any:
        """Of records without nulls; before: how often each value of their keys has come."""
        first = 0 if before is None else len(before)
        every = _together([before, now], [*self.key_columns, _VALUE], ctx)
        every = every.with_row_index(_KEY).select(
            pl.col(_KEY).first().over(self.key).cast(pl.Int64),
            pl.col(_VALUE).rank("dense").cast(pl.Int64),
        )
        width = len(every) + 1
        keys = every.get_column(_KEY).to_numpy()
        known, codes = np.unique(
            keys * width + every.get_column(_VALUE).to_numpy(), return_inverse=True
        )
        times = np.ones(first, np.int64)
        counted = np.ones(len(now), bool)
        if before is not None and rank.method != "dense":
            times = before.get_column(_TIMES).to_numpy()
        if rank.method == "dense":  # a value counts once
            counted[:] = False
            counted[np.unique(codes[first:], return_index=True)[1]] = True
            counted &= ~np.isin(codes[first:], codes[:first])
        mine, keys = codes[first:], keys[first:]
        so_far = np.zeros(len(known) + 1, np.int64)
        np.add.at(so_far, codes[:first] + 1, times)
        so_far = np.cumsum(so_far)

        def below(bounds: Any) -> Any:
            """How many came before each record, of those whose code is below its bound."""
            return so_far[bounds] + _earlier_below(mine, counted, bounds)

        start, end = (
            np.searchsorted(known, keys * width),
            np.searchsorted(known, (keys + 1) * width),
        )
        less, up_to = below(mine) - below(start), below(mine + 1) - below(start)
        if rank.descending:
            all_of_key = below(end) - below(start)
            less, up_to = all_of_key - up_to, all_of_key - less
        if rank.method in ("min", "dense"):
            return less + 1
        return (less + up_to) / 2 + 1 if rank.method == "average" else up_to + 1

    def _of_same_keys(
        self, kept: Chunks, frame: pl.DataFrame, buckets: Numbers
    ) -> pl.DataFrame | None:
        """Rows that are kept for the keys of these records, and maybe for others; None if there are none."""
        wanted = [bucket for bucket in np.unique(buckets).tolist() if bucket in kept]
        if not wanted:
            return None
        rows = kept.read(wanted)
        names = self.key_columns
        if self._plain and all(rows.schema[n] == frame.schema[n] for n in names):
            rows = matched(rows, frame.select(names), names, names, "semi", nulls_equal=True)
        return rows

    def _add(
        self, kept: Chunks, rows: pl.DataFrame, buckets: Numbers, only: pl.Expr | None = None
    ) -> None:
        rows = rows.with_columns(pl.Series(_KEY, buckets))
        if only is not None:
            rows = rows.filter(only)
        for (bucket,), some in rows.partition_by(_KEY, as_dict=True).items():
            kept.add(int(bucket), some.drop(_KEY))

    def _last(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(_LATER.over(self.key) < self.depth)

    def _counted(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.group_by(*self.key_columns, _VALUE, maintain_order=True).agg(
            pl.col(_TIMES).sum()
        )

    def _buckets(self, frame: pl.DataFrame) -> Numbers:
        # Other bits than those that shards are chosen by.
        hashes = hash_column(frame.select(self.key).to_series())
        return np.asarray((hashes >> np.uint64(32)) % np.uint64(_BUCKETS), dtype=np.int64)


def _together(
    frames: list[pl.DataFrame | None], columns: list[str] | None, ctx: Context
) -> pl.DataFrame:
    """The rows of these frames, of all columns or of those that are named."""
    there = [frame for frame in frames if frame is not None]
    if columns is not None:
        there = [frame.select(n for n in columns if n in frame.columns) for frame in there]
    return there[0] if len(there) == 1 else rows_together(there, ctx.operator)


def _earlier_below(codes: Numbers, counted: Any, bounds: Numbers) -> Numbers:
    """For each position, how many positions before it count and have a code below its bound.

    By halves: each position in the right half of a block looks into the sorted left half. Blocks of one
    size are looked at together.
    """
    found = np.zeros(len(codes), dtype=np.int64)
    positions = np.arange(len(codes))
    most = max(int(codes.max()), int(bounds.max())) + 1
    size = 1
    while size < len(codes):
        half = positions // size
        right = half % 2 == 1
        offset = half // 2 * most
        ordered = np.sort((codes + offset)[~right & counted])
        least = np.searchsorted(ordered, offset[right])
        found[right] += np.searchsorted(ordered, (bounds + offset)[right]) - least
        size *= 2
    return found
