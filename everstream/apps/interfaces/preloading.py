"""In-memory mode for a pipeline: its sources have read everything before the run's clock starts.

A source is opened before its shard is running, and reads all it has then. Where it was is a number
of batches, so a restored shard reads all of it again, and goes on from there.
"""

from dataclasses import replace
from typing import Any

from everstream.connectors.wrapping import Wrapping
from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Kind
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline


def preloaded_sources(pipeline: Pipeline) -> Pipeline:
    """A copy of the pipeline whose sources read everything first."""
    nodes = {
        name: replace(
            node, what=_InMemory(node.what) if isinstance(node.what, Source) else node.what
        )
        for name, node in pipeline.graph.nodes.items()
        if node.kind is Kind.SOURCE
    }
    return pipeline.with_nodes(nodes)


class _InMemory(Wrapping[Any]):
    def open(self, shard: int, shards: int) -> Reader:
        reader = self._source.open(shard, shards)
        batches: list[Batch] = []
        while not isinstance(batch := reader.read(), EndOfStream):
            if batch is None:
                raise UserError(
                    "in-memory mode reads all input first, and this source has nothing just now: "
                    "it has no end that could be waited for. Drop --in-memory."
                )
            batches.append(batch)
        reader.close()
        return _MemoryReader(batches)


class _MemoryReader(Reader):
    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches
        self._given = 0

    @property
    def offset(self) -> int:
        return self._given

    def seek(self, offset: int) -> None:
        self._given = offset

    def read(self) -> Batch | EndOfStream:
        if self._given == len(self._batches):
            return END
        self._given += 1
        return self._batches[self._given - 1]
