"""The view of a run as Prometheus metrics. Names follow Flink's where the meaning is the same.

Counters never fall, although processes restart and roll back to checkpoints: they count the work
done, including repeated work. Unknown gauges are left out.
"""

from collections.abc import Iterable, Iterator, Sequence

from everstream.core.measuring import BUCKETS, Histogram, lower_s
from everstream.events import RunStarted
from everstream.extras import extra
from everstream.observability.history.flow import RunMetrics
from everstream.observability.history.run_view import RunView

with extra("ui"):
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

PREFIX = "everstream_"
SHARD_LABELS = ("pipeline", "operator", "shard", "worker")
WORKER_LABELS = ("pipeline", "worker")
EVERY_BUCKETS = 8
"""The histogram has a bound at each doubling, not at each of its finer buckets."""

OPERATOR_COUNTERS = {
    "in": ("num_records_in", "Records an operator has received, including replayed ones."),
    "out": ("num_records_out", "Records an operator has emitted, including repeated ones."),
    "late": ("num_late_records_dropped", "Records that arrived after their window had closed."),
    "skipped": ("num_records_skipped", "Records skipped because of an error."),
    "dead_letters": ("num_dead_letters", "Skipped records that were kept as dead letters."),
}
SHARD_COUNTERS = {
    "bytes_in": ("num_bytes_in", "Bytes from other processes."),
    "bytes_out": ("num_bytes_out", "Bytes to other processes."),
    "busy_s": ("busy_time_seconds", "Time spent working."),
    "waiting_s": ("idle_time_seconds", "Time with nothing to do."),
    "blocked_s": (
        "back_pressured_time_seconds",
        "Time blocked because downstream operators had no room.",
    ),
    "replayed": ("num_records_replayed", "Records delivered again from senders' logs."),
    "suppressed": ("num_duplicates_suppressed", "Records that arrived again and were recognised."),
    "commits": ("num_commits", "Transactions of sinks that were committed."),
}
SHARD_GAUGES = {
    "frames_waiting": ("input_queue_length", "Frames waiting at the inputs."),
    "state_bytes": ("state_size_bytes", "Size of a checkpoint of the whole state."),
    "state_keys": ("state_keys", "Keys in the state."),
    "log_bytes": ("log_size_bytes", "Sent messages that are kept for replay."),
    "behind": ("records_behind", "Records that a paced source should have emitted by now."),
}
WORKER_COUNTERS = {
    "cpu_s": ("worker_cpu_seconds", "CPU time of the worker's process."),
    "collecting_s": ("worker_gc_time_seconds", "Time in Python's garbage collection."),
}
WORKER_GAUGES = {
    "memory_bytes": ("worker_memory_bytes", "Resident memory of the worker's process."),
    "peak_bytes": ("worker_memory_peak_bytes", "Peak resident memory of the worker's process."),
}


def exposition(run_view: RunView) -> tuple[bytes, str]:
    """The text, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(list(families(run_view))))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def families(run_view: RunView) -> Iterator[Metric]:
    if (run := run_view.run) is None:
        return
    yield from _of_the_run(run_view)
    yield from _of_operators(run, run_view.flow)
    yield from _of_shards(run, run_view.flow)
    yield from _of_workers(run, run_view.flow)
    yield _latency(run_view)


class _Collector:
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _of_the_run(run_view: RunView) -> Iterator[Metric]:
    name = run_view.pipeline
    newest = next((c for c in reversed(run_view.checkpoints) if c["failed"] is None), {})
    up = run_view.ended is None and bool(run_view.flow.alive)
    gauges: dict[str, tuple[str, float | None]] = {
        "up": ("1 while workers are running, else 0.", float(up)),
        "last_checkpoint_epoch": ("The newest stable epoch.", run_view.epoch),
        "last_checkpoint_duration_seconds": (
            "Duration of the newest checkpoint, from its start until it was stable.",
            newest.get("duration_s"),
        ),
        "last_checkpoint_size_bytes": (
            "Bytes written by the newest checkpoint.",
            newest.get("bytes"),
        ),
        "last_checkpoint_timestamp_seconds": (
            "When the newest checkpoint became stable, in seconds since 1970.",
            run_view.last_stable_at,
        ),
        "checkpoint_interval_seconds": ("Time between two checkpoints.", run_view.interval_s),
    }
    for metric, (says, value) in gauges.items():
        if value is not None:
            yield _family(GaugeMetricFamily, metric, says, [([name], value)], ["pipeline"])
    counters = {
        "number_of_completed_checkpoints": ("Epochs that became stable.", run_view.completed),
        "number_of_failed_checkpoints": ("Checkpoints that failed.", run_view.failed_checkpoints),
        "num_restarts": ("Failures of workers and drivers.", run_view.failures_seen),
        "num_driver_restarts": ("Drivers that died.", run_view.drivers_lost),
    }
    for metric, (says, value) in counters.items():
        yield _family(CounterMetricFamily, metric, says, [([name], value)], ["pipeline"])


def _of_operators(run: RunStarted, flow: RunMetrics) -> Iterator[Metric]:
    placed = [
        (operator.name, shard, labels)
        for operator in run.operators
        for shard, labels in _shards(run, operator.name, operator.chain)
    ]
    for side, (metric, says) in OPERATOR_COUNTERS.items():
        values = [(labels, flow.rising.sums.get((side, shard, n))) for n, shard, labels in placed]
        yield _family(CounterMetricFamily, metric, says, values)


def _of_shards(run: RunStarted, flow: RunMetrics) -> Iterator[Metric]:
    chains = dict.fromkeys(operator.chain for operator in run.operators)
    placed = [pair for chain in chains for pair in _shards(run, chain, chain)]
    for field, (metric, says) in SHARD_COUNTERS.items():
        sums = [(labels, flow.rising.sums.get((field, shard))) for shard, labels in placed]
        yield _family(CounterMetricFamily, metric, says, sums)
    for field, (metric, says) in SHARD_GAUGES.items():
        values = [(labels, flow.now(shard, field)) for shard, labels in placed]
        yield _family(GaugeMetricFamily, metric, says, values)
    marks = [(labels, flow.now(shard, "watermark")) for shard, labels in placed]
    yield _family(
        GaugeMetricFamily,
        "current_input_watermark_seconds",
        "The watermark, in seconds since 1970.",
        [(labels, None if mark is None else mark / 1000) for labels, mark in marks],
    )


def _of_workers(run: RunStarted, flow: RunMetrics) -> Iterator[Metric]:
    name, workers = run.pipeline, [str(number) for number in range(run.workers)]
    for field, (metric, says) in WORKER_COUNTERS.items():
        sums = [([name, w], flow.rising.sums.get((field, "worker", w))) for w in workers]
        yield _family(CounterMetricFamily, metric, says, sums, WORKER_LABELS)
    up = [([name, worker], float(worker in flow.alive)) for worker in workers]
    says = "1 while the worker's process is alive."
    yield _family(GaugeMetricFamily, "worker_up", says, up, WORKER_LABELS)
    alive = [worker for worker in workers if worker in flow.alive]
    for field, (metric, says) in WORKER_GAUGES.items():
        values = [([name, worker], flow.workers[worker].get(field) or None) for worker in alive]
        yield _family(GaugeMetricFamily, metric, says, values, WORKER_LABELS)


def _latency(run_view: RunView) -> Metric:
    family = HistogramMetricFamily(
        f"{PREFIX}latency_seconds", "Latency from source to sink.", labels=["pipeline", "operator"]
    )
    for sink in sorted(run_view.flow.latency):
        histogram = run_view.flow.latency_sums(sink)
        family.add_metric(
            [run_view.pipeline, sink], _cumulated(histogram), sum_value=_sum_s(histogram)
        )
    return family


def _cumulated(histogram: Histogram) -> list[tuple[str, float]]:
    buckets, below = [], 0
    for start in range(0, BUCKETS, EVERY_BUCKETS):
        below += sum(histogram.counts[start : start + EVERY_BUCKETS])
        buckets.append((f"{lower_s(start + EVERY_BUCKETS):.6g}", float(below)))
    return [*buckets, ("+Inf", float(below))]


def _sum_s(histogram: Histogram) -> float:
    """As precise as the buckets are."""
    return sum(count * lower_s(b + 0.5) for b, count in enumerate(histogram.counts) if count)


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    metric: str,
    says: str,
    values: Iterable[tuple[Sequence[str], float | None]],
    labels: Sequence[str] = SHARD_LABELS,
) -> Metric:
    """A counter or a gauge, with the values that are known."""
    family = kind(PREFIX + metric, says, labels=labels)
    for of, value in values:
        if value is not None:
            family.add_metric(of, value)
    return family


def _shards(run: RunStarted, operator: str, chain: str) -> list[tuple[str, list[str]]]:
    return [
        (shard, [run.pipeline, operator, shard.rpartition(":")[2], str(worker)])
        for shard, worker in run.shards.items()
        if shard.rpartition(":")[0] == chain
    ]
