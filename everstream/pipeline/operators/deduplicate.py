"""Deduplication: the first record of each key passes, later ones are dropped for a while.

What is saved are the keys and times of the records that have passed, in groups of time, so that a
checkpoint holds those that are new and a group is dropped as one. A table in memory, built from them,
tells for each key until when its records are dropped.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.chunks import TIME, Chunks, kept_in, redistribute_chunks
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.batch import Batch, columns_of, where
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.operators.key_table import KeyTable, Numbers, key_codes
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, TimeOf

_SEEN = "seen"
_ROUNDS = 8
"""So often a key may pass in a batch before its records are looked at one by one."""


class Deduplicate(Operator):
    """The first record of each key, and the next one after `within` of it, and so on."""

    def __init__(self, names: list[str], within_us: int | None, time: TimeOf | None) -> None:
        """within_us: None for ever. time: None for processing time."""
        self.names = names
        self.within_us = within_us
        self.time = time
        self.before: dict[str, Any] | None = None

    def columns_used(self, side: str) -> Sequence[Any]:
        return self.names

    def columns_after(self, inputs: Mapping[str, pl.Schema]) -> pl.Schema:
        return inputs[""]

    def describe_state(self) -> dict[str, Any]:
        time = "none" if self.within_us is None else "processing" if self.time is None else "event"
        return {"operator": "deduplicate", "within_us": self.within_us, "time": time}

    def goes_on_from(self, before: dict[str, Any] | None) -> None:
        self.before = before

    @property
    def _width_us(self) -> int:
        return max((self.within_us or 0) // 8, 100_000)

    @property
    def _by_clock(self) -> bool:
        return self.within_us is not None and self.time is None

    def on_start(self, ctx: Context) -> None:
        self.seen = Chunks(ctx.state, _SEEN, owner=ctx.operator)
        self.over_us = NO_WATERMARK
        """Keys that are dropped until then are over."""
        self.table = KeyTable(NO_WATERMARK)
        self.table.keep(lambda until: until > self.over_us)
        if self.seen and self.before is not None:  # the groups had another width
            rows = self.seen.read(self.seen.groups)
            for group in self.seen.groups:
                self.seen.drop(group)
            self.seen.add_by_time(rows, self._width_us)
        for group in self.seen.groups:
            rows = self.seen.read([group])
            until = self._until(rows.get_column(TIME).to_numpy())
            places = self.table.places(*key_codes(rows.select(self.names)))
            np.maximum.at(self.table.values, places, until)
        if self._by_clock:
            self._ask_to_wake(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        kept = kept_in(parts).values()
        return {CONTEXT_STATE: redistribute_chunks(kept, _SEEN, partial(place.owns_rows))}

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        missing = [name for name in self.names if name not in frame.columns]
        if missing:
            raise UserError(
                f"'{ctx.operator}' looks for duplicates by column '{missing[0]}', but the records "
                f"have: {', '.join(frame.columns)}."
            )
        times = self._times(batch, len(frame), ctx)
        if self.time is not None and self.within_us is not None and ctx.watermark != NO_WATERMARK:
            late = times < ctx.watermark
            if late.any():
                mask = pl.Series(late)
                ctx.emit_batch(where(batch, mask), LATE)
                batch, frame, times = where(batch, ~mask), frame.filter(~mask), times[~late]
                if not len(frame):
                    return
        keys = frame.select(self.names)
        first = self._passing(self.table.places(*key_codes(keys)), times)
        if first.all():
            ctx.emit_batch(batch)
        elif first.any():
            keys, times, batch = keys.filter(first), times[first], where(batch, pl.Series(first))
            ctx.emit_batch(batch)
        else:
            return
        self._remember(keys.with_columns(pl.Series(TIME, times)))
        if self._by_clock:
            self._ask_to_wake(ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        if self.time is not None:
            self._forget(watermark)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        self._forget(int(now_s * 1e6))
        self._ask_to_wake(ctx)

    def _times(self, batch: Batch, rows: int, ctx: Context) -> Numbers:
        if self.within_us is None:
            return np.zeros(rows, dtype=np.int64)
        if self.time is None:
            return np.full(rows, int(ctx.now_s * 1e6), dtype=np.int64)
        given = self.time.read(batch, ctx.operator)
        if given.null_count():
            raise UserError(f"'{ctx.operator}': a record has no time.")
        return self.time.microseconds(given).to_numpy()

    def _until(self, times: Numbers) -> Numbers:
        """Until when records are dropped after one with this time has passed."""
        if self.within_us is None:
            return np.full(len(times), END_OF_TIME, dtype=np.int64)
        return np.asarray(times + self.within_us, dtype=np.int64)

    def _passing(self, places: Numbers, times: Numbers) -> Any:
        """Which rows pass, if they are looked at in order."""
        passing = np.zeros(len(places), dtype=bool)
        until = self.table.values
        rows, rounds = np.arange(len(places)), 0
        while len(rows := rows[times[rows] >= until[places[rows]]]):
            if rounds == _ROUNDS:
                self._pass_one_by_one(rows, places, times, passing)
                break
            first = self.table.first(rows, places[rows])
            now = rows[first]
            passing[now] = True
            until[places[now]] = self._until(times[now])
            rows, rounds = rows[~first], rounds + 1
        return passing

    def _pass_one_by_one(
        self, rows: Numbers, places: Numbers, times: Numbers, passing: Any
    ) -> None:
        until, after = self.table.values, self._until(times)
        for row, place in zip(rows.tolist(), places[rows].tolist(), strict=True):
            if times[row] >= until[place]:
                passing[row] = True
                until[place] = after[row]

    def _remember(self, rows: pl.DataFrame) -> None:
        self.seen.add_by_time(rows, self._width_us)

    def _forget(self, now_us: int) -> None:
        if self.within_us is None:
            return
        self.over_us = max(self.over_us, now_us)
        for group in self.seen.groups:
            if group + self._width_us + self.within_us <= now_us:
                self.seen.drop(group)

    def _ask_to_wake(self, ctx: Context) -> None:
        for group in self.seen.groups[:1]:
            ctx.wake_at((group + self._width_us + (self.within_us or 0)) / 1e6)
