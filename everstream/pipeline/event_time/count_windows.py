"""Windows of a number of records per key, in the order in which they arrive.

Each record has a number among those of its key. Records are added up per pane, the longest run of numbers
that no window cuts in two, and a window is the sum of its panes. What is kept are the number of records of
each key, in pages of an array, and the parts of panes that belong to a window which is not full yet.
"""

from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np
import polars as pl

from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.chunks import Chunks
from everstream.pipeline.aggregation.local_parts import key_frame, records_frame
from everstream.pipeline.aggregation.running import Accumulator, OfRecords, Slots, saved_values
from everstream.pipeline.batch import Batch, rows_together
from everstream.pipeline.event_time.window_aggregates import END, START
from everstream.pipeline.event_time.windows import CountWindow
from everstream.pipeline.keyed_state.spreading import Entries
from everstream.pipeline.operator import Context
from everstream.state.backends.protocol import StateBackend

_SLOT, _PANE, _WINDOW = "__slot", "__pane", "__window"
_COUNT, _PARTS = "count", "parts"
_ALL = pl.Series("__all", [0])
"""The key of all records of a stream without keys."""


class CountWindows(OfRecords):
    """Emits a row for each window that becomes full."""

    why_in_memory = (
        "how many records each key had is an array over all keys, which a batch changes at once"
    )
    record_by_record = True

    def __init__(self, aggregates: Aggregates, window: CountWindow) -> None:
        super().__init__(aggregates)
        self.window = window
        self.pane = gcd(window.size, window.step)

    def describe_state(self) -> dict[str, Any]:
        named = self.aggregates.describe()
        return {"operator": "count_window", "window": self.window.describe(), "columns": named}

    def columns_used(self, side: str) -> Sequence[Any]:
        return [column for one in self.aggregates.named.values() for column in one.columns_used]

    def on_start(self, ctx: Context) -> None:
        self.open(ctx.state)

    def open(self, store: StateBackend[Any, Any]) -> None:
        self.slots = Slots(store)
        self.counts = Accumulator(store, _COUNT, "add")
        self.parts = Chunks(store, _PARTS, self._compacted)

    def _take_over(
        self, entries: Entries, rows: Any, slots: Any, store: StateBackend[Any, Any]
    ) -> None:
        self.counts.update(slots, saved_values(entries, _COUNT, "add")[rows])
        mine = pl.DataFrame({_SLOT: rows, "__new": slots})
        for key, parts in entries.items():
            if key[0] == _PARTS:
                moved = parts.join(mine, on=_SLOT, how="inner")
                if not moved.is_empty():
                    moved = moved.with_columns(pl.col("__new").alias(_SLOT))
                    self.parts.add(0, moved.select(parts.columns))

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = records_frame(batch, ctx)
        keys = key_frame(ctx.keying, batch)
        taken = {START, END, *self.aggregates.named} & {*keys.columns}
        self.refuse_names(taken, ctx)
        grouped = keys if keys.width else pl.DataFrame([_ALL.new_from_index(0, len(frame))])
        groups, slots, nth, last = self.numbered(grouped)
        before = self._counted(slots)
        panes = pl.Series(_PANE, (before + nth - 1) // self.pane)
        parts = self.aggregates.of_records(frame, [pl.Series(_SLOT, slots), panes])
        firsts, counted = before[last], before[last] + nth[last]
        self.counts.update(slots[last], pl.Series(nth[last]))
        windows, row = self._filled(slots[last], firsts, counted)
        if not windows.is_empty():
            results = self._results(windows, parts)
            names = groups.columns if keys.width else []
            its_keys = groups[row[results.get_column(_WINDOW).to_numpy()]].select(names)
            merged = pl.concat([its_keys, results], how="horizontal")
            ctx.emit_batch(self.aggregates.results(merged, [*names, START, END]))
        left = self._open_parts(parts)
        if not left.is_empty():
            self.parts.add(0, left)

    def _counted(self, slots: Any) -> Any:
        """How many records the key of each row had before this batch."""
        known = self.counts.values
        counted = np.zeros(len(slots), np.int64)
        inside = slots < len(known)
        counted[inside] = known[slots[inside]]
        return counted

    def _filled(self, slots: Any, before: Any, after: Any) -> tuple[pl.DataFrame, Any]:
        """The windows that have become full, and the row of `slots` that each belongs to."""
        step = self.window.step
        often = after // step - before // step
        row = np.repeat(np.arange(len(slots)), often)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(often) - often, often)
        ends = (before[row] // step + 1 + nth) * step
        starts = np.maximum(ends - self.window.size, 0)
        windows = {_SLOT: slots[row], START: starts, END: ends, _WINDOW: np.arange(len(row))}
        return pl.DataFrame(windows), row

    def _results(self, windows: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
        """The parts of each window, added up, in the order of the windows."""
        kept = [parts]
        if self.parts:
            wanted = np.zeros(len(self.slots), np.bool_)
            wanted[windows.get_column(_SLOT).to_numpy()] = True
            before = self.parts.read([0])
            kept.append(before.filter(wanted[before.get_column(_SLOT).to_numpy()]))
        panes = pl.int_ranges(pl.col(START) // self.pane, pl.col(END) // self.pane)
        wanted_panes = windows.with_columns(panes.alias(_PANE)).explode(_PANE)
        every = rows_together(kept, "window")
        inside = wanted_panes.join(every, on=[_SLOT, _PANE], how="inner")
        of_each = [pl.col(START).first(), pl.col(END).first()]
        return self.aggregates.merged(inside, [_WINDOW], of_each).sort(_WINDOW)

    def _open_parts(self, parts: pl.DataFrame) -> pl.DataFrame:
        """Without panes all of whose windows are full."""
        step = self.window.step
        last_end = (pl.col(_PANE) * self.pane + self.window.size) // step * step
        counted = self._counted(parts.get_column(_SLOT).to_numpy())
        return parts.filter(last_end > pl.Series(counted))

    def _compacted(self, parts: pl.DataFrame) -> pl.DataFrame:
        return self.aggregates.merged(self._open_parts(parts), [_SLOT, _PANE])
