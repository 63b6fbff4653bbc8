"""A source that gives the first half of its numbers, and the rest once a file is there."""

from pathlib import Path

from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader, Source

BATCH = 10


class Gated(Source[int]):
    """The numbers below `stop`, with a pause in the middle that ends when somebody says so."""

    def __init__(self, gate: Path, stop: int) -> None:
        self.gate = gate
        self.stop = stop

    def open(self, shard: int, shards: int) -> Reader:
        return _GatedReader(self)


class _GatedReader(Reader):
    def __init__(self, source: Gated) -> None:
        self._source = source
        self._next = 0

    @property
    def offset(self) -> int:
        return self._next

    def seek(self, offset: int) -> None:
        self._next = offset

    def read(self) -> Batch | EndOfStream | None:
        first, stop = self._next, self._source.stop
        if first >= stop:
            return END
        if first >= stop // 2 and not self._source.gate.exists():
            return None
        self._next = min(first + BATCH, stop)
        return list(range(first, self._next))
