"""Prepares a user's pipeline for an audit: it never writes to its real output.

Every sink is replaced by one that collects its records (`stand_in`) or, on request, writes to a separate
place beside the real one. In a disturbed run sources are slowed as well and do not end before a gate is
opened, so that even a short pipeline lives long enough to be killed with records in flight. For that
purpose their frames are cut into smaller ones, unless an operator looks at whole batches: its output
would change with them.
"""

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from everstream.audit.stand_in import StandIn
from everstream.audit.throttled_source import ThrottledSource
from everstream.pipeline.batch import records_of
from everstream.pipeline.graph import Graph, Kind, Node
from everstream.pipeline.operator import Operator
from everstream.pipeline.operators import builtin
from everstream.pipeline.operators.builtin import Branch, Filter, MapBatches, Select, WithColumns
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline


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
        if real is not None:
            return real
        return StandIn(node.what)
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
