"""`Paced`: another source's records at a steady rate, for measurements and demonstrations.

Record number k of a shard is due k / rate after the start. The start is when the shard first
opened the source, and it is part of the offset: after a failure the source catches up with all
that became due in the meantime, as a live feed would, so that a measured latency counts the time
the pipeline was down. A clock that is set back holds nothing up: records go on being due from where
they were.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from everstream.connectors.checks import at_least_one
from everstream.connectors.wrapping import Wrapping
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.clocks import ForwardClock
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.pipeline.types import T
from everstream.state.saved import Saved

SMALLEST_FRAME_S = 0.001
"""At high rates records are given in frames at least this far apart, not one by one."""
SHORTEST_WAIT_S = 1e-6
ROUNDING_RECORDS = 1e-6


@dataclass(frozen=True)
class PacedOffset(Saved, word="paced-offset"):
    """`given` records were given since `start_s`: all before `inner`, and `skip` from there on."""

    start_s: float
    given: int
    inner: Any
    skip: int


class Paced(Wrapping[T]):
    """Gives the records of `source` at `rate` records per second over all shards together.

    Never more than is due, in frames of at most `batch` records. With `due="due_us"` each record
    has, in a column of that name, when it was due, in microseconds since 1970: what a latency is
    measured from if waiting is to count.

    >>> slow = es.Paced(es.Range(3), rate=1000)
    >>> es.Pipeline("paced").source(slow).collect().run().collected()
    [0, 1, 2]
    """

    def __init__(
        self,
        source: Source[T],
        rate: float,
        *,
        clock: Callable[[], float] = time.time,
        batch: int = 65_536,
        due: str | None = None,
    ) -> None:
        if not 0 < rate < float("inf"):
            raise UserError(f"rate must be a positive number of records per second, not {rate}.")
        at_least_one(batch=batch)
        super().__init__(source)
        self._rate = rate
        self._clock = clock
        self._batch = batch
        self._due_column = due

    def describe_offsets(self) -> dict[str, Any]:
        return {**super().describe_offsets(), "of": self._source.describe_offsets()}

    def open(self, shard: int, shards: int) -> Reader:
        inner = self._source.open(shard, shards)
        rate = self._rate / shards
        clock = ForwardClock(self._clock)
        return _PacedReader(inner, rate, clock, self._batch, self._due_column)


class _PacedReader(Reader):
    def __init__(
        self,
        inner: Reader,
        rate: float,
        clock: ForwardClock,
        batch: int,
        due_column: str | None,
    ) -> None:
        self._inner = inner
        self._rate = rate
        self._clock = clock
        self._batch = batch
        self._due_column = due_column
        self._offset = PacedOffset(clock(), 0, inner.offset, 0)
        self._held: Batch = []
        self._to_skip = 0
        self._last_frame_s = float("-inf")
        self._inner_is_idle = False
        self._held_rejected: list[Rejected] = []
        self._rejected: list[Rejected] = []

    @property
    def offset(self) -> PacedOffset:
        return self._offset

    def fence(self, generation: int) -> None:
        self._inner.fence(generation)

    def forget(self, offset: PacedOffset) -> None:
        self._inner.forget(offset.inner)

    def seek(self, offset: PacedOffset) -> None:
        self._inner.seek(offset.inner)
        self._offset = offset
        self._clock.not_before(offset.start_s + offset.given / self._rate)
        self._held = []
        self._held_rejected, self._rejected = [], []
        self._to_skip = offset.skip
        self._last_frame_s = float("-inf")

    def read(self) -> Batch | EndOfStream | None:
        now_s = self._clock()
        self._inner_is_idle = False
        while not len(self._held):
            more = self._inner.read()
            self._held_rejected += self._inner.take_rejected()
            if more is None or isinstance(more, EndOfStream):
                if self._held_rejected and not self._to_skip:
                    self._inner_was_given(self._offset.given)
                self._inner_is_idle = more is None
                return more
            self._held = more[self._to_skip :]
            self._to_skip = max(self._to_skip - len(more), 0)
            if not self._to_skip and not len(self._held):
                # The frame was given to its last record: it counts as read.
                self._inner_was_given(self._offset.given)
        count = min(self._due(now_s), self._batch)
        if count < 1 or (count < self._batch and now_s < self._last_frame_s + SMALLEST_FRAME_S):
            return None
        return self._give(count, now_s)

    def ready_in_s(self) -> float:
        if self._inner_is_idle:
            return self._inner.ready_in_s()
        due_s = self._offset.start_s + (self._offset.given + 1) / self._rate
        next_s = max(due_s, self._last_frame_s + SMALLEST_FRAME_S)
        return max(next_s - self._clock(), SHORTEST_WAIT_S)

    def take_rejected(self) -> list[Rejected]:
        """Only with the frame they were found with: until then it would be read again."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def close(self) -> None:
        self._inner.close()

    def _inner_was_given(self, given: int) -> None:
        """All that was read from the source has been given on."""
        self._offset = replace(self._offset, given=given, inner=self._inner.offset, skip=0)
        self._rejected += self._held_rejected
        self._held_rejected = []

    def _due(self, now_s: float) -> int:
        """How many records are due and not yet given."""
        elapsed_s = now_s - self._offset.start_s
        return int(elapsed_s * self._rate + ROUNDING_RECORDS) - self._offset.given

    def _give(self, count: int, now_s: float) -> Batch:
        frame, self._held = self._held[:count], self._held[count:]
        given = self._offset.given + len(frame)
        if self._due_column is not None:
            frame = self._with_due(frame, self._due_column)
        if len(self._held):
            skip = self._offset.skip + len(frame)
            self._offset = replace(self._offset, given=given, skip=skip)
        else:
            self._inner_was_given(given)
        self._last_frame_s = now_s
        return frame

    def _with_due(self, frame: Batch, name: str) -> Batch:
        numbers = np.arange(1, len(frame) + 1) + self._offset.given
        due_us = (self._offset.start_s + numbers / self._rate) * 1e6
        column = pl.Series(name, due_us.astype(np.int64))
        return columns_of(frame, "Paced(due=...)").with_columns(column)
