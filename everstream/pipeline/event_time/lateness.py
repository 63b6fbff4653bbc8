"""Which records are late: each is judged by the records before it, not by where its batch begins.

The watermark for a record is the greatest event time of all records that came before it through
the same shard of `event_time`, minus the lateness given there. `event_time` computes it for a
whole batch at once, and it travels with the batch through operators that keep or drop records.
It costs nothing until it is used.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from everstream.pipeline.times import NO_WATERMARK, TimeOf

Watermarks: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_EARLIEST = NO_WATERMARK // 2
"""Represents "no watermark" in computations."""


class RecordWatermarks:
    """The watermark by which each record of a batch is judged."""

    def __init__(self, time: TimeOf, given: pl.Series, lateness_us: int, before: int) -> None:
        """given: the event times as the records have them; before: what was announced before."""
        self._time = time
        self._given = given
        self._lateness_us = lateness_us
        self._before = before
        self._latest: int | None = None
        self._all: Watermarks | None = None
        self._parts: Sequence[RecordWatermarks] = ()
        """Of joined batches: theirs. Between two of them, time may have moved by itself."""
        self._rows: list[Any] = []
        """Which records are left: masks or slices, each applied to the result of the one before."""

    def of(self, rows: Any) -> "RecordWatermarks":
        """The watermarks of some of the records: a mask, or a slice."""
        some = RecordWatermarks(self._time, self._given, self._lateness_us, self._before)
        some._latest, some._all, some._parts = self._latest, self._all, self._parts
        some._rows = [*self._rows, rows]
        return some

    @classmethod
    def joined(cls, parts: Sequence["RecordWatermarks"]) -> "RecordWatermarks":
        """Of several batches, none of which has lost a record: each record is judged as in its own."""
        first = parts[0]
        if len(parts) == 1:
            return first
        given = pl.concat([part._given for part in parts])
        whole = cls(first._time, given, first._lateness_us, first._before)
        whole._latest = max(part.latest for part in parts)
        whole._parts = parts
        return whole

    def like(self, other: "RecordWatermarks") -> bool:
        """Whether the times of both are of one kind."""
        return self._time is other._time and self._given.dtype == other._given.dtype

    @property
    def is_whole(self) -> bool:
        """Whether it is of all records that `event_time` was given in one batch."""
        return not self._rows

    @property
    def values(self) -> Watermarks:
        return self._left(self._watermarks)

    @property
    def latest(self) -> int:
        """No record is behind a later watermark than this one.

        Usually it is the watermark from before the batch: times that are in order, or out of it by
        less than the lateness, leave no record behind another one of the same batch.
        """
        if self._latest is None:
            if self._in_order():
                self._latest = self._before
            else:
                behind = self._watermarks[self._times() < self._watermarks]
                self._latest = int(behind.max()) if len(behind) else self._before
        return self._latest

    def runs(self) -> Iterator[tuple[slice, int]]:
        """The records in order, cut wherever one is behind a watermark not yet announced.

        Each run comes with the watermark to announce before it, `NO_WATERMARK` if there is none.
        """
        watermarks = self.values
        behind = np.flatnonzero(self._left(self._times()) < watermarks)
        reached, first = np.unique(watermarks[behind], return_index=True)
        cuts = [(0, NO_WATERMARK), *zip(behind[first].tolist(), reached.tolist(), strict=True)]
        ends = [start for start, _ in cuts[1:]] + [len(watermarks)]
        for (start, watermark), end in zip(cuts, ends, strict=True):
            if start < end:
                yield slice(start, end), watermark

    def _times(self) -> Watermarks:
        times = self._time.microseconds(self._given)
        return times.fill_null(_EARLIEST).to_numpy()

    def _in_order(self) -> bool:
        given = self._given
        if self._lateness_us < 0 or given.null_count():
            return False
        return (given.dtype.is_integer() or given.dtype.is_temporal()) and given.is_sorted()

    @property
    def _watermarks(self) -> Watermarks:
        if self._all is None:
            parts = [part._watermarks for part in self._parts]
            self._all = np.concatenate(parts) if parts else self._worked_out(self._times())
        return self._all

    def _worked_out(self, times: Watermarks) -> Watermarks:
        watermarks = np.empty_like(times)
        watermarks[:1] = max(self._before, _EARLIEST)
        np.subtract(times[:-1], self._lateness_us, out=watermarks[1:])
        return np.maximum.accumulate(watermarks, out=watermarks)

    def _left(self, values: Watermarks) -> Watermarks:
        for rows in self._rows:
            values = values[rows]
        return values
