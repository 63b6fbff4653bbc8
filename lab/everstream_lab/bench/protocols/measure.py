"""One run of the grid: a paced query with at most one kill, measured at its sink or outside.

Latency counts from the moment a record was due, so waiting shows. The kill is SIGKILL for the
process of the query's middle operator. The output is held against the answer of plain SQL.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np

from everstream.connectors.collect import Collect
from everstream.core.orders import Outcome
from everstream.engine.faults.kills import Kill
from everstream.engine.result import RunResult
from everstream.engine.run import run
from everstream.pipeline.graph import Broadcast, Graph
from everstream.pipeline.operator import OUT
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.connectors.row import Untouched
from everstream_lab.bench.latency import Arrivals, Timed, read_arrivals, wall_clock_s
from everstream_lab.bench.protocols.grid import Cell, Setting, checkpointing
from everstream_lab.bench.protocols.outside import observer
from everstream_lab.bench.recovery.recovery_time import recovery
from everstream_lab.bench.workloads.catalogue import QUERIES
from everstream_lab.bench.workloads.verdict import EXACT

Columns: TypeAlias = dict[str, list[float | None]]
STEP_S = 0.1
AROUND_S = (3.0, 6.0)
"""How much before and after the kill the curves show."""


@dataclass
class Measured:
    """The figures of one run."""

    cell: Cell
    input_per_s: float
    output_per_s: float
    mean_ms: float
    p95_ms: float
    p99_ms: float
    deviation_ms: float
    regular: int
    forced: int
    size_bytes: int
    log_bytes: int
    take_ms: float
    """How long a shard stood still for a checkpoint, on average."""
    lost: int
    duplicated: int
    untrue: int
    lost_frames: int
    recovery_s: float | None = None
    restore_s: float | None = None
    rollback_s: float | None = None
    checkpoints_back: int | None = None
    went_back: int | None = None
    """How many shards went back."""
    shards: int | None = None
    replayed: int | None = None
    take_deviation_ms: float = 0.0
    durable_ms: float = 0.0
    """From the decision to a durable checkpoint, on average; the shard works on meanwhile."""
    lost_messages: int = 0
    """Records that an operator had sent and the next one never received."""
    curve: Columns = field(default_factory=dict)
    """Around the kill, or from the start: at_s, records_per_s, mean_ms, p99_ms."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "cell": self.cell.to_json()}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Measured":
        return cls(**{**body, "cell": Cell(**body["cell"])})


def measure(
    cell: Cell, setting: Setting, master: str = "local[4]", *, verify: bool = True
) -> Measured:
    """Run it. Takes about as long as the setting says.

    Without `verify` the output is not kept and not compared: at high rates that takes longer than
    the run, and its lost, duplicated and untrue rows are 0.
    """
    query = QUERIES[cell.query]
    pipeline = Pipeline(f"protocols-{cell.query}")
    inputs = setting.inputs(query, pipeline)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="everstream-protocols-"))
        sink = Collect() if verify else Untouched()
        stream = query.build(inputs)
        stream.sink(Timed(sink, folder), name="collect")
        outside = None
        if cell.at == "kafka":
            outside = stack.enter_context(observer(Path(folder) / "kafka"))
            outside.watch(stream)
        kills = [Kill(query.target, after_s=setting.kill_s)] if cell.failure else []
        result = run(
            pipeline,
            engine=cell.engine,
            checkpoint=checkpointing(cell.protocol, cell.interval_s, cell.log),
            master=master,
            kill=kills,
        )
        arrivals = read_arrivals(folder) if outside is None else outside.arrivals()
    if result.outcome is not Outcome.FINISHED:
        # Ctrl-C stops the run with a checkpoint; here it means the whole grid.
        raise KeyboardInterrupt
    verdict = query.judge(inputs, result.to_polars()) if verify else EXACT
    began_s = float(arrivals.due_s.min()) if len(arrivals.due_s) else 0.0
    killed_s = _killed_s(result)
    calm = arrivals.between(began_s + setting.warm_up_s, killed_s or np.inf)
    latency = calm.latency()
    lasted_s = (calm.at_s[-1] - calm.at_s[0]) if len(calm.at_s) > 1 else np.inf
    checkpoint_stats = result.checkpoint_stats
    taken = max(1, checkpoint_stats.regular + checkpoint_stats.forced)
    measured = Measured(
        cell,
        setting.rate(query),
        float(latency.records / lasted_s),
        latency.mean_s * 1e3,
        latency.p95_s * 1e3,
        latency.p99_s * 1e3,
        latency.deviation_s * 1e3,
        checkpoint_stats.regular,
        checkpoint_stats.forced,
        checkpoint_stats.size_bytes,
        checkpoint_stats.log_bytes,
        1e3 * checkpoint_stats.capture_s / taken,
        verdict.lost,
        verdict.duplicated,
        verdict.untrue,
        result.lost_frames,
        take_deviation_ms=1e3 * _deviation_s(result),
        durable_ms=1e3 * (checkpoint_stats.capture_s + checkpoint_stats.upload_s) / taken,
        lost_messages=lost_messages(pipeline.graph, result.counts),
    )
    if killed_s is not None:
        _add_recovery(measured, result, arrivals, killed_s, query.beat_s(inputs))
    else:
        measured.curve = _curve(arrivals, began_s, setting.warm_up_s, setting.run_s)
    return measured


def _deviation_s(result: RunResult) -> float:
    """Of the times that shards stood still, over the checkpoints that became part of a line."""
    records = [record for manifest in result.checkpoints for record in manifest.records.values()]
    took_s = {(record.shard, record.number): record.capture_s for record in records}
    return float(np.std(list(took_s.values()))) if took_s else 0.0


def lost_messages(graph: Graph, counts: Mapping[str, tuple[int, int]]) -> int:
    """Records that were sent along an edge and not received, in a run that has finished.

    Edges with side outputs and broadcasts do not count: what was sent there is not counted apart.
    """
    lost = 0
    for name in graph.nodes:
        edges = graph.inputs(name)
        plain = all(
            one.output == OUT and not isinstance(one.routing, Broadcast)
            for edge in edges
            for one in (edge, *graph.outputs(edge.sender))
        )
        if edges and plain and name in counts and all(edge.sender in counts for edge in edges):
            sent = sum(counts[edge.sender][1] for edge in edges)
            lost += max(0, sent - counts[name][0])
    return lost


def _killed_s(result: RunResult) -> float | None:
    """When it was killed; of micro-batches, when Spark had noticed and tried again."""
    report = next((report for report in result.recoveries if report.injected), None)
    return None if report is None else wall_clock_s(report.start_s)


def _add_recovery(
    measured: Measured, result: RunResult, arrivals: Arrivals, killed_s: float, beat_s: float
) -> None:
    report = next(report for report in result.recoveries if report.injected)
    before_s = 4.0
    if len(arrivals.between(killed_s - before_s, killed_s).at_s):  # else nothing to compare with
        back = recovery(arrivals, killed_s, step_s=max(STEP_S, beat_s), before_s=before_s)
        measured.recovery_s = back.recovery_s
    if report.restored_s is not None:
        measured.restore_s = report.restored_s - report.start_s
    measured.rollback_s = report.rollback_s
    measured.checkpoints_back = report.checkpoints_back
    measured.went_back = len(report.went_back)
    measured.shards = sum(len(manifest.records) for manifest in result.checkpoints[-1:])
    measured.replayed = report.records_replayed
    earlier_s, later_s = AROUND_S
    measured.curve = _curve(arrivals, killed_s, -earlier_s, later_s)


def _curve(arrivals: Arrivals, zero_s: float, from_s: float, to_s: float) -> Columns:
    """Throughput and latency around a moment, for these times before and after it."""
    curve = arrivals.curve(STEP_S, zero_s + from_s, zero_s + to_s)
    return {
        "at_s": [round(float(at_s - zero_s), 3) for at_s in curve.start_s],
        "records_per_s": [round(float(value), 1) for value in curve.records_per_s],
        "mean_ms": [_rounded(value * 1e3) for value in curve.mean_s],
        "p99_ms": [_rounded(value * 1e3) for value in curve.p99_s],
    }


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 2)
