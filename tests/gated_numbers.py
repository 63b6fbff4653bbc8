"""A source that waits in the middle of its numbers until a file lets it continue."""

from pathlib import Path

from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader, Source


class Gated(Source[int]):
    """The numbers below `stop`: half of them until the file `gate` exists, then the rest.

    A number in the file is where it waits next.
    """

    max_shards = 1

    def __init__(self, gate: Path, stop: int, batch: int = 10) -> None:
        self.gate = gate
        self.stop = stop
        self.batch = batch

    def open(self, shard: int, shards: int) -> Reader:
        return _GatedReader(self)

    def reaches(self) -> int:
        """Up to where it emits at the moment."""
        if not self.gate.exists():
            return self.stop // 2
        return int(self.gate.read_text() or self.stop)


class _GatedReader(Reader):
    offset = 0

    def __init__(self, source: Gated) -> None:
        self._source = source

    def seek(self, offset: int) -> None:
        self.offset = offset

    def read(self) -> Batch | EndOfStream | None:
        if self.offset == self._source.stop:
            return END
        first = self.offset
        self.offset = max(first, min(first + self._source.batch, self._source.reaches()))
        return list(range(first, self.offset)) or None
