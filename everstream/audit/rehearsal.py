"""Prepares a user's pipeline for an audit: it never writes to its real output.

Every sink is replaced by one that collects its records (`StandIn`) or, on request, writes to a separate
place beside the real one. In a disturbed run sources are slowed as well and do not end before a gate is
opened, so that even a short pipeline lives long enough to be killed with records in flight. For that
purpose their frames are cut into smaller ones, unless an operator looks at whole batches: its output
would change with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from everstream.audit.throttled_source import ThrottledSource
from everstream.connectors.agreed_schema import Agreement
from everstream.connectors.collect import Collect
from everstream.connectors.columns import Columns
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.graph import Graph, Kind, Node
from everstream.pipeline.operator import Operator
from everstream.pipeline.operators import builtin
from everstream.pipeline.operators.builtin import Branch, Filter, MapBatches, Select, WithColumns
from everstream.pipeline.sink import Committable, Permit, Sink, SinkShard, Writer
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline


class StandIn(Collect):
    """Collects what this sink would store.

    A sink with columns stores a value in the type its shards have agreed on, or refuses the record.
    That depends on which records come first, so its stand-in decides as it would, in the store of
    the run: an audit sees a column that drifts in type from batch to batch.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.max_shards = sink.max_shards
        self._sink = sink

    def open(self, shard: SinkShard) -> Writer:
        columns = self._sink.columns(shard)
        collecting = super().open(shard)
        return collecting if columns is None else _Settling(collecting, columns)

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        super().start_fresh(pipeline, operator, store, replace)
        Agreement(pipeline, operator, store).forget()


class _Settling(Writer):
    def __init__(self, collecting: Writer, columns: Columns) -> None:
        self._collecting = collecting
        self._columns = columns

    def write(self, batch: Batch) -> None:
        if len(batch):
            settled = self._columns.settle(batch)
            # Where types may still widen, a number is written as it came.
            self._collecting.write(batch if self._columns.widens else settled)

    def saved(self) -> Any:
        return self._columns.saved()

    def restore(self, saved: Any) -> None:
        self._columns.restore(saved)

    def prepare(self, checkpoint: int) -> Committable | None:
        return self._collecting.prepare(checkpoint)

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        return self._collecting.recover(transactions, permit)

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        return self._collecting.adopt(transactions)

    def close(self) -> None:
        self._collecting.close()


@dataclass(frozen=True)
class Rehearsal:
    """How a pipeline is changed for one run of an audit."""

    gate: str | None = None
    """Sources are held until a file of this name exists; None: they run as they are."""
    lasts_s: float = 0.0
    """How long the records of each source are spread over, if its gate stays shut."""
    records: tuple[tuple[str, int], ...] = ()
    """Source -> how many records it has."""
    audit_copy: str | None = None
    """Sinks that can write an audit copy do, to places with this label; None: all are replaced."""


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
        real = None if how.audit_copy is None else node.what.audit_copy(how.audit_copy)
        return real or StandIn(node.what)
    if node.kind is Kind.SOURCE and how.gate is not None:
        assert isinstance(node.what, Source)
        rate = dict(how.records).get(node.name, 0) / how.lasts_s
        return ThrottledSource(node.what, rate, how.gate, whole_frames=looks_at_batches(graph))
    return node.what


def collected(graph: Graph, store: str, how: Rehearsal) -> dict[str, list[Any]]:
    """Sink -> every record that a rehearsal with this store has put into its stand-in."""
    return {
        node.name: [
            record
            for batch in _stand_in(node, how, graph).results(graph.name, node.name, store)
            for record in records_of(batch)
        ]
        for node in graph.of_kind(Kind.SINK)
    }


def real_sinks(graph: Graph) -> list[str]:
    """The sinks that a rehearsal can put to the test themselves."""
    sinks = graph.of_kind(Kind.SINK)
    return [
        n.name for n in sinks if isinstance(n.what, Sink) and n.what.audit_copy("any") is not None
    ]


def clear(graph: Graph, how: Rehearsal) -> None:
    """Remove what sinks have written to audit copies."""
    for node in graph.of_kind(Kind.SINK):
        if how.audit_copy is not None and isinstance(node.what, Sink):
            real = node.what.audit_copy(how.audit_copy)
            if real is not None:
                real.clear_audit_copy(graph.name, node.name)


def looks_at_batches(graph: Graph) -> bool:
    """Whether what an operator gives may depend on where a batch begins and ends."""
    return any(
        _sees_batches(node.what) for node in graph.nodes.values() if isinstance(node.what, Operator)
    )


def _sees_batches(operator: Operator) -> bool:
    if type(operator).__module__ != builtin.__name__:
        own = type(operator).process_batch is not Operator.process_batch
        return own and not operator.record_by_record
    # An expression may well hold a sum over the batch.
    if isinstance(operator, Filter):
        return isinstance(operator.predicate, pl.Expr)
    if isinstance(operator, Branch):
        return any(isinstance(predicate, pl.Expr) for predicate in operator.predicates)
    return isinstance(operator, MapBatches | WithColumns | Select)
