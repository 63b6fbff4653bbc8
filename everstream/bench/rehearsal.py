"""A user's pipeline made fit for an audit: nothing it does reaches its real sinks.

Every sink is replaced by `Collect` under the same name. In a run that is to be disturbed, sources
are slowed as well and do not end before a gate is opened, so that even a short pipeline lives long
enough to be killed with records on their way. For that their frames are cut into smaller ones,
unless an operator looks at whole batches: its output would change with them.
"""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from everstream.connectors.collect import Collect
from everstream.pipeline import builtin
from everstream.pipeline.batch import Batch
from everstream.pipeline.builtin import Branch, Filter, MapBatches, Select, WithColumns
from everstream.pipeline.graph import Graph, Kind, Node
from everstream.pipeline.operator import Operator
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline

LONGEST_WAIT_S = 1.0
"""A source with few, large frames does not hold one back for longer than this."""
FRAMES_PER_S = 20
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Rehearsal:
    """How a pipeline is changed for one run of an audit."""

    gate: str | None = None
    """Sources are held until a file of this name exists; None: they run as they are."""
    lasts_s: float = 0.0
    """How long the records of each source are spread over, if its gate stays shut."""
    records: tuple[tuple[str, int], ...] = ()
    """Source -> how many records it has."""


def rehearsed(pipeline: Pipeline, how: Rehearsal) -> Pipeline:
    """A copy of the pipeline as an audit runs it; the original stays as it is."""
    copy = Pipeline(pipeline.name)
    nodes = {
        name: replace(node, what=_stand_in(node, how, pipeline.graph))
        for name, node in pipeline.graph.nodes.items()
    }
    copy.graph = Graph(pipeline.name, nodes, list(pipeline.graph.edges))
    return copy


def _stand_in(node: Node, how: Rehearsal, graph: Graph) -> Any:
    if node.kind is Kind.SINK:
        assert isinstance(node.what, Sink)
        collect = Collect()
        collect.max_shards = node.what.max_shards
        return collect
    if node.kind is Kind.SOURCE and how.gate is not None:
        assert isinstance(node.what, Source)
        rate = dict(how.records).get(node.name, 0) / how.lasts_s
        return Held(node.what, rate, how.gate, whole_frames=looks_at_batches(graph))
    return node.what


def looks_at_batches(graph: Graph) -> bool:
    """Whether what an operator gives may depend on where a batch begins and ends."""
    return any(
        _sees_batches(node.what) for node in graph.nodes.values() if isinstance(node.what, Operator)
    )


def _sees_batches(operator: Operator) -> bool:
    if type(operator).__module__ != builtin.__name__:
        return type(operator).process_batch is not Operator.process_batch
    # An expression may well hold a sum over the batch.
    if isinstance(operator, Filter):
        return isinstance(operator.predicate, pl.Expr)
    if isinstance(operator, Branch):
        return any(isinstance(predicate, pl.Expr) for predicate in operator.predicates)
    return isinstance(operator, MapBatches | WithColumns | Select)


@dataclass(frozen=True)
class HeldOffset:
    """All before `inner` was given, and `skip` records from there on."""

    inner: Any
    skip: int


class Held(Source):
    """The records of `source` at about `rate` per second, and no end before the gate opens.

    Unlike `Paced` it does not make up for time that was lost to a failure: what follows a kill is
    as slow as what came before it, and the next kill finds records on their way.
    """

    def __init__(self, source: Source, rate: float, gate: str, *, whole_frames: bool) -> None:
        self._source = source
        self._rate = rate
        self._gate = gate
        self._whole_frames = whole_frames
        self.max_shards = source.max_shards
        self.on_error = source.on_error

    def open(self, shard: int, shards: int) -> Reader:
        rate = self._rate / shards
        largest = None if self._whole_frames else max(1, int(rate / FRAMES_PER_S))
        return _HeldReader(self._source.open(shard, shards), rate, self._gate, largest)

    def total_records(self) -> int | None:
        return self._source.total_records()

    def check(self) -> None:
        self._source.check()

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        self._source.before_run(pipeline, operator, store, resuming)


class _HeldReader(Reader):
    def __init__(self, inner: Reader, rate: float, gate: str, largest: int | None) -> None:
        self._inner = inner
        self._rate = rate
        self._gate = gate
        self._largest = largest
        self._begin_at(HeldOffset(inner.offset, 0))

    def _begin_at(self, offset: HeldOffset) -> None:
        self._offset = offset
        self._to_skip = offset.skip
        self._held: Batch = []
        self._ended = False
        self._given_s = time.monotonic()

    @property
    def offset(self) -> HeldOffset:
        return self._offset

    def fence(self, generation: int) -> None:
        self._inner.fence(generation)

    def take_rejected(self) -> list[Rejected]:
        return self._inner.take_rejected()

    def seek(self, offset: HeldOffset) -> None:
        self._inner.seek(offset.inner)
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

    def close(self) -> None:
        self._inner.close()

    def _hold(self, more: Batch) -> None:
        self._held = more[self._to_skip :]
        self._to_skip -= len(more) - len(self._held)
        if not len(self._held) and not self._to_skip:
            # The frame was given to its last record: it counts as read.
            self._offset = HeldOffset(self._inner.offset, 0)

    def _give(self) -> Batch:
        size = self._next_size()
        frame, self._held = self._held[:size], self._held[size:]
        if len(self._held):
            self._offset = replace(self._offset, skip=self._offset.skip + size)
        else:
            self._offset = HeldOffset(self._inner.offset, 0)
        self._given_s = time.monotonic()
        return frame

    def _next_size(self) -> int:
        return len(self._held) if self._largest is None else min(self._largest, len(self._held))

    def _waits_s(self) -> float:
        """For how long the next frame is held back if the gate stays shut."""
        pause_s = min(self._next_size() / self._rate, LONGEST_WAIT_S) if self._rate else 0.0
        return self._given_s + pause_s - time.monotonic()
