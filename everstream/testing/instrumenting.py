"""A pipeline as a test runs it: its sources are fed, and its sinks keep their output in memory.

The operators stay as they are, as do names, keys, shards and the descriptions that upgrades are
checked by. Sinks are added where a test wants to see records that the pipeline itself drops.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from everstream.core.checkpointing.record import DEAD_LETTERS
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.batch import Batch
from everstream.pipeline.event_time.joins import TimeJoin
from everstream.pipeline.event_time.window_rows import WindowRows
from everstream.pipeline.graph import Edge, Graph, Kind, Node, OnDemand
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.operators.deduplicate import Deduplicate
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline
from everstream.runtime.payload import BatchPayload
from everstream.simulation.outside import OutsideSink, OutsideWriter
from everstream.testing.feeds import FedSource


class CapturedSink(OutsideSink):
    """Keeps output in memory, exactly once, under the name of its operator and a suffix."""

    def __init__(self, run: int, about: dict[str, Any], suffix: str = "") -> None:
        super().__init__(run)
        self._about = about
        self._suffix = suffix

    def open(self, who: SinkShard) -> Writer:
        return CapturedWriter(self.world, replace(who, operator=who.operator + self._suffix))

    def describe_output(self) -> dict[str, Any]:
        return self._about


class CapturedWriter(OutsideWriter):
    """Copies what it is given, as a write does: the operator may change its objects later."""

    def __init__(self, run: int, shard: SinkShard) -> None:
        super().__init__(run, shard)
        self.output = shard.operator
        """The name that its output is kept under."""

    def write(self, batch: Batch) -> None:
        super().write(BatchPayload(encoded=BatchPayload(batch).encoded).batch)


class FedEventTime(EventTime):
    """Announces the watermarks of its source, too, not only the times of the records."""

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        ctx.advance_watermark(watermark)


def late_name(operator: str) -> str:
    """The sink with the late records of an operator."""
    return emitted_name(operator, LATE)


def emitted_name(operator: str, output: str) -> str:
    """The sink with everything that an operator has emitted at one of its outputs."""
    return f"{operator}..{output}"


def sorts_out_late_records(node: Node) -> bool:
    """Whether records that are too late leave this operator by their own output."""
    what = node.what
    return isinstance(what, TimeJoin | Deduplicate | WindowRows) or (
        isinstance(what, Operator) and what.judges_lateness
    )


def instrumented(pipeline: Pipeline, run: int, *, all_outputs: bool = False) -> Pipeline:
    """The pipeline with fed sources and captured sinks, which a run finds by its number.

    all_outputs: also capture what every source and operator emits, not only late records.
    """
    graph = pipeline.graph
    nodes = {name: _instrumented(node, run) for name, node in graph.nodes.items()}
    twin = pipeline.with_nodes(nodes)
    for edge in dict.fromkeys([*_late_edges(graph), *(_edges(graph) if all_outputs else ())]):
        about = {"sink": "Captured", "delivery": OutsideSink.delivery.value}
        sink = CapturedSink(run, about)
        twin.graph.nodes[edge.receiver] = Node(edge.receiver, Kind.SINK, sink)
        twin.graph.edges.append(edge)
    return twin


def _instrumented(node: Node, run: int) -> Node:
    what: Source[Any] | Operator | Sink = node.what
    if node.kind is Kind.SOURCE:
        assert isinstance(what, Source)
        what = FedSource(run, node.name, what)
    elif node.kind is Kind.SINK:
        assert isinstance(what, Sink)
        what = CapturedSink(run, what.describe_output())
    elif type(what) is EventTime:
        what = FedEventTime(what.time, what.lateness_us, what.idle_after_s, what.max_drift_us)
    letters = node.dead_letters
    if letters is not None:
        letters = CapturedSink(run, letters.describe_output(), DEAD_LETTERS)
    return replace(node, what=what, dead_letters=letters)


def _late_edges(graph: Graph) -> Iterator[Edge]:
    for node in graph.of_kind(Kind.OPERATOR):
        if sorts_out_late_records(node):
            yield Edge(node.name, late_name(node.name), OnDemand(), LATE)


def _edges(graph: Graph) -> Iterator[Edge]:
    """One for each output that a source or an operator uses."""
    used = {(edge.sender, edge.output) for edge in graph.edges}
    for sender, output in sorted(used):
        yield Edge(sender, emitted_name(sender, output), OnDemand(), output)
