"""The loop of annotated code as a source. Its offset is the loop's position and state.

After a failure a `for` loop iterates over the same items again, up to its position, and resumes there:
the iterable must yield the same items each time. A `while` loop resumes from the values of its state.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeAlias

from everstream.annotations.stage import sendable
from everstream.connectors.options import at_least_one
from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.state.saved import dumps_by_value

LARGEST_BATCH = 4_096
STEP = 4
READS = 64
"""The number of reads that decide whether batches grow: more than can be in flight unrequested."""
SHORT_S, LONG_S = 0.002, 0.05
"""Batches that are read faster than this grow, and slower ones shrink."""

Taken: TypeAlias = tuple[list[Any], int, bool]
"""The items, how many turns of the loop they took, and whether it has ended."""


class LoopSource(Source[Any]):
    """The source of a region. `given`: names from before it, and first values of its state."""

    max_shards = 1
    loop: ClassVar[str] = ""
    """The first line of the loop, by which an offset is known to belong to it."""
    state: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        given: Mapping[str, Any] | None = None,
        *,
        batch: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if batch is not None:
            at_least_one(batch=batch)
        self.given = sendable(given)
        self.batch = batch
        self.clock = clock
        self.exact_batches = batch is not None

    def open(self, shard: int, shards: int) -> Reader:
        return LoopReader(self)

    def describe_offsets(self) -> dict[str, Any]:
        return {"source": type(self).__name__, "loop": self.loop, "state": list(self.state)}

    def stopping_point(self) -> Any:
        raise UserError(
            "the loop of annotated code runs to its end, and the values behind it are made then: run "
            "it without until='caught-up' (--until caught-up)."
        )

    def over(self) -> Iterable[Any] | None:
        """What a `for` loop goes over; None for a `while` loop, whose state is its position."""
        return None

    def take(self, items: Iterator[Any], want: int, kept: dict[str, Any]) -> Taken:
        """Up to `want` iterations of the loop. By default an item is what the loop iterates over."""
        taken = list(islice(items, want))
        return taken, len(taken), len(taken) < want


class LoopReader(Reader):
    """Turns a loop by batches, and remembers how far it has come."""

    def __init__(self, source: LoopSource) -> None:
        self._source = source
        self._position = 0
        self._ended = False
        self._kept = {name: source.given[name] for name in source.state}
        self._items: Iterator[Any] | None = None
        self._pace = AdaptiveBatchSize(source.batch, source.clock)

    @property
    def offset(self) -> tuple[int, bytes, bool]:
        return self._position, dumps_by_value(self._kept) if self._kept else b"", self._ended

    def seek(self, offset: tuple[int, bytes, bool]) -> None:
        self._position, kept, self._ended = offset
        self._kept = pickle.loads(kept) if kept else {}
        self._items = None

    def read(self) -> Batch | EndOfStream | None:
        if self._ended:
            return END
        if self._items is None:
            over = self._source.over()
            self._items = iter(()) if over is None else resumed(over, self._position)
        want = self._pace.want()
        records, turns, self._ended = self._source.take(self._items, want, self._kept)
        self._position += turns
        if records:
            return records
        return END if self._ended else None

    def ready_in_s(self) -> float:
        return 0.0


class AdaptiveBatchSize:
    """How many items to read at once: few that take long, many that take no time."""

    def __init__(self, fixed: int | None, clock: Callable[[], float]) -> None:
        self._size = fixed or 1
        self._fixed = fixed is not None
        self._clock = clock
        self._since_s = clock()
        self._reads = 0

    def want(self) -> int:
        if not self._fixed:
            self._reads += 1
            if self._reads == READS:
                self._adapt()
        return self._size

    def _adapt(self) -> None:
        now_s = self._clock()
        each_s = (now_s - self._since_s) / self._reads
        if each_s < SHORT_S:
            self._size = min(self._size * STEP, LARGEST_BATCH)
        elif each_s > LONG_S:
            self._size = max(self._size // STEP, 1)
        self._since_s, self._reads = now_s, 0


def resumed(over: Iterable[Any], position: int) -> Iterator[Any]:
    """Go over something again, without what was there before this position."""
    if isinstance(over, Sequence) and position <= len(over):
        return map(over.__getitem__, range(position, len(over))) if position else iter(over)
    items = iter(over)
    skipped = sum(1 for _ in islice(items, position))
    if skipped < position:
        raise UserError(
            f"the loop has come to item {position} before a failure, and now there are only "
            f"{skipped}: what a region goes over must give the same again."
        )
    return items
