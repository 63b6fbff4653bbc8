"""`pipeline.run()` in virtual time: the same core and runtime as on Spark, in milliseconds.

Sources and sinks are the real ones, on this machine's disk; only workers, network and the store's
disk are simulated. For examples, which say what a run gives and nothing about Spark.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstream.core.orders import Outcome
from everstream.core.scheme import scheme_of
from everstream.engine.handle import RunHandle
from everstream.engine.result import RunResult
from everstream.pipeline.graph import Kind
from everstream.pipeline.options import RunOptions, with_overrides
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.shapes import Shape
from everstream.simulation.workers import SimulatedWorker
from everstream.simulation.world import World


@dataclass(frozen=True)
class Given(Shape):
    """A pipeline as it is; what it puts out is for its example to say."""

    given: Pipeline = field(default_factory=lambda: Pipeline("none"))

    def pipeline(self, world: int) -> Pipeline:
        return self.given


def run(pipeline: Pipeline, options: RunOptions | None = None, **overrides: Any) -> RunResult:
    """As `everstream.engine.run.run`, without Spark; a store is a folder, and starts empty."""
    wanted = with_overrides(options or RunOptions(), overrides)
    checkpoint = wanted.checkpoint
    url = str(Path(wanted.store or "simulated-store").absolute())
    graph = pipeline.graph
    for node in graph.nodes.values():
        if isinstance(node.what, Source) and node.kind is Kind.SOURCE:
            node.what.before_run(pipeline.name, node.name, url, False)
        elif isinstance(node.what, Sink):
            node.what.start_fresh(pipeline.name, node.name, url, True)
    before, SimulatedWorker.store_url = SimulatedWorker.store_url, url
    try:
        shape = Given(pipeline.name, 1, lambda pipeline, world: None, dict, given=pipeline)
        world = World(0, shape, NO_FAULTS, scheme_of(checkpoint))
        history = world.run()
    finally:
        SimulatedWorker.store_url = before
    assert history.outcome is Outcome.FINISHED, (history.outcome, history.violations, history.notes)
    counts: dict[str, tuple[int, int]] = {}
    skipped: Counter[str] = Counter()
    for record in world.coordinator.manifests[0].records.values():
        skipped.update(record.skipped)
        for name, (records_in, records_out) in record.counts.items():
            had = counts.get(name, (0, 0))
            counts[name] = (had[0] + records_in, had[1] + records_out)
    outputs = {
        node.name: node.what.results(pipeline.name, node.name, url)
        for node in graph.of_kind(Kind.SINK)
        if isinstance(node.what, Sink)
    }
    result = RunResult(
        pipeline=pipeline.name,
        outcome=history.outcome,
        wall_s=history.virtual_s,
        startup_s=0.0,
        counts=counts,
        sources=tuple(node.name for node in graph.of_kind(Kind.SOURCE)),
        sinks=tuple(node.name for node in graph.of_kind(Kind.SINK)),
        store=url,
        skipped=dict(skipped),
        outputs={name: batches for name, batches in outputs.items() if batches is not None},
    )
    pipeline.ended(result)
    return result


def start(pipeline: Pipeline, options: RunOptions | None = None, **overrides: Any) -> RunHandle:
    """As `everstream.engine.run.start`."""
    return RunHandle(
        pipeline.graph, True, lambda handle: run(pipeline, options, **overrides)
    ).start()
