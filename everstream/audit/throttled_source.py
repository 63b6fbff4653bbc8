"""`ThrottledSource`: another source's records, slowly, and no end before a gate is opened."""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

from everstream.connectors.wrapping import Wrapping, WrappingReader
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader, Source

LONGEST_WAIT_S = 1.0
"""A source with few, large frames does not hold one back for longer than this."""
FRAMES_PER_S = 20
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class ThrottledOffset:
    """All before `inner` was given, and `skip` records from there on."""

    inner: Any
    skip: int


class ThrottledSource(Wrapping):
    """The records of `source` at about `rate` per second, and no end before the gate opens.

    Unlike `Paced` it does not make up for time that was lost to a failure: what follows a kill is
    as slow as what came before it, and the next kill finds records on their way.
    """

    def __init__(self, source: Source, rate: float, gate: str, *, whole_frames: bool) -> None:
        super().__init__(source)
        self._rate = rate
        self._gate = gate
        self._whole_frames = whole_frames

    def open(self, shard: int, shards: int) -> Reader:
        rate = self._rate / shards
        largest = None if self._whole_frames else max(1, int(rate / FRAMES_PER_S))
        return _ThrottledReader(self._source.open(shard, shards), rate, self._gate, largest)


class _ThrottledReader(WrappingReader):
    def __init__(self, inner: Reader, rate: float, gate: str, largest: int | None) -> None:
        super().__init__(inner)
        self._rate = rate
        self._gate = gate
        self._largest = largest
        self._begin_at(ThrottledOffset(inner.offset, 0))

    def _begin_at(self, offset: ThrottledOffset) -> None:
        self._offset = offset
        self._to_skip = offset.skip
        self._held: Batch = []
        self._ended = False
        self._given_s = time.monotonic()

    @property
    def offset(self) -> ThrottledOffset:
        return self._offset

    def inner_offset(self, offset: ThrottledOffset) -> Any:
        return offset.inner

    @property
    def holds(self) -> bool:
        return len(self._held) > 0

    def seek(self, offset: ThrottledOffset) -> None:
        super().seek(offset)
        self._begin_at(offset)

    def read(self) -> Batch | EndOfStream | None:
        is_open = os.path.exists(self._gate)
        if not self._ended and not len(self._held):
            more = self._inner.read()
            if more is None:
                return None
            if isinstance(more, EndOfStream):
                self._ended = True
            else:
                self._hold(more)
        if self._ended:
            return END if is_open else None
        if not len(self._held) or (self._waits_s() > 0 and not is_open):
            return None
        return self._give()

    def ready_in_s(self) -> float:
        if self._ended:
            return LOOK_EVERY_S
        if len(self._held):
            return min(max(self._waits_s(), 0.001), LOOK_EVERY_S)
        return self._inner.ready_in_s()

    def _hold(self, more: Batch) -> None:
        self._held = more[self._to_skip :]
        self._to_skip -= len(more) - len(self._held)
        if not len(self._held) and not self._to_skip:
            # The frame was given to its last record: it counts as read.
            self._offset = ThrottledOffset(self._inner.offset, 0)

    def _give(self) -> Batch:
        size = self._next_size()
        frame, self._held = self._held[:size], self._held[size:]
        if len(self._held):
            self._offset = replace(self._offset, skip=self._offset.skip + size)
        else:
            self._offset = ThrottledOffset(self._inner.offset, 0)
        self._given_s = time.monotonic()
        return frame

    def _next_size(self) -> int:
        return len(self._held) if self._largest is None else min(self._largest, len(self._held))

    def _waits_s(self) -> float:
        """For how long the next frame is held back if the gate stays shut."""
        pause_s = min(self._next_size() / self._rate, LONGEST_WAIT_S) if self._rate else 0.0
        return self._given_s + pause_s - time.monotonic()
