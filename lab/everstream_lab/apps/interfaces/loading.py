"""A pipeline's sources under a load, and their items in company: by count or by time."""

import copy
import time
from dataclasses import dataclass, replace
from typing import Any

from everstream.connectors.generate.paced import Paced
from everstream.connectors.wrapping import Wrapping, WrappingReader
from everstream.pipeline.batch import Batch, joined
from everstream.pipeline.graph import Kind
from everstream.pipeline.operator import Operator
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline
from everstream_lab.apps.interfaces.job import Job, batch_at


def loaded(pipeline: Pipeline, job: Job, items: int) -> Pipeline:
    """A copy of the pipeline whose sources give their items as the job says."""
    if job.load is None and not job.batch_to and not gathers(job):
        return pipeline
    sizes = Sizes(job.batch, job.batch_to, items)
    nodes = dict(pipeline.graph.nodes)
    for name, node in nodes.items():
        if node.kind is Kind.SOURCE and isinstance(node.what, Source):
            source: Source[Any] = node.what
            if job.load is not None:
                source = Paced(source, job.load, batch=job.batch, catch_up=job.catch_up)
            if job.batch > 1 or job.batch_to:
                source = Together(source, sizes, job.interval_s)
            nodes[name] = replace(node, what=source)
    return pipeline.with_nodes(nodes)


def gathers(job: Job) -> bool:
    """Whether batches are closed by time though there is no load: the source reads item by item."""
    return job.load is None and job.interval_s > 0 and job.batch > 1


def uncut(pipeline: Pipeline) -> Pipeline:
    """A copy of the pipeline whose operators get batches as the source made them, however slow they are."""
    nodes = dict(pipeline.graph.nodes)
    for name, node in nodes.items():
        if isinstance(node.what, Operator):
            twin = copy.copy(node.what)
            twin.whole_batches = True
            nodes[name] = replace(node, what=twin)
    return pipeline.with_nodes(nodes)


@dataclass(frozen=True)
class Sizes:
    """How many items form a batch, over the course of the run."""

    batch: int
    batch_to: int
    items: int

    def at(self, position: int) -> int:
        return batch_at(self.batch, self.batch_to, position, self.items)


class Together(Wrapping[Any]):
    """Items of another source in batches of at least the given size; of fewer after `within_s`.

    With `within_s` 0 a batch waits for as long as it takes.
    """

    def __init__(self, source: Source[Any], sizes: Sizes, within_s: float) -> None:
        super().__init__(source)
        self._sizes = sizes
        self._within_s = within_s

    def open(self, shard: int, shards: int) -> Reader:
        return _TogetherReader(self._source.open(shard, shards), self._sizes, self._within_s)


class _TogetherReader(WrappingReader):
    """Items that wait for a full batch were not emitted: after a failure they are read again."""

    def __init__(self, inner: Reader, sizes: Sizes, within_s: float) -> None:
        super().__init__(inner)
        self._sizes = sizes
        self._within_s = within_s
        self._offset = (inner.offset, 0)
        self._waiting: list[Batch] = []
        self._records = 0
        self._since_s = 0.0
        self._born_s = 0.0
        self._ended: EndOfStream | None = None

    @property
    def offset(self) -> tuple[Any, int]:
        """Of the inner reader, and how many records were given before it."""
        return self._offset

    def inner_offset(self, offset: tuple[Any, int]) -> Any:
        return offset[0]

    @property
    def holds(self) -> bool:
        return bool(self._waiting)

    def seek(self, offset: tuple[Any, int]) -> None:
        super().seek(offset)
        self._offset = offset
        self._waiting, self._records, self._ended = [], 0, None

    def born_s(self) -> float:
        return self._born_s

    def read(self) -> Batch | EndOfStream | None:
        count = self._sizes.at(self._offset[1])
        if self._ended is None and self._records < count:
            batch = self._inner.read()
            if isinstance(batch, EndOfStream):
                self._ended = batch
            elif batch is not None and len(batch):
                if not self._waiting:
                    self._since_s = time.monotonic()
                    self._born_s = self._inner.born_s() or time.time()
                self._waiting.append(batch)
                self._records += len(batch)
        waited = self._within_s > 0 and time.monotonic() - self._since_s >= self._within_s
        if self._waiting and (self._records >= count or waited or self._ended is not None):
            (given,) = joined(self._waiting)
            self._offset = (self._inner.offset, self._offset[1] + self._records)
            self._waiting, self._records = [], 0
            return given
        return self._ended

    def ready_in_s(self) -> float:
        wait_s = self._inner.ready_in_s()
        if self._waiting and self._within_s > 0:
            left_s = self._within_s - (time.monotonic() - self._since_s)
            wait_s = min(wait_s, max(left_s, 0.0005))
        return wait_s
