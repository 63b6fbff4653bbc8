"""Builds events from what engines have: plans, manifests, measures and recovery reports."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest, shown_once
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.measuring import Histogram, Losses, Measures
from everstream.core.plan import Plan, edges_of, operators_of, shards_of
from everstream.engine.faults.kills import Kill
from everstream.events import (
    EpochStable,
    Killing,
    MetricsSampled,
    RecoveryUpdated,
    RunStarted,
    RunStatus,
    ShardCheckpoint,
)
from everstream.hiding import hidden_in, without_secret

FOLLOWED = 50
"""The newest recovery reports, which may still change."""


@dataclasses.dataclass(frozen=True)
class About:
    """Facts about a run besides its plan."""

    run: str
    """Identifies this run among all runs of the store."""
    store: str
    engine: str
    protocol: str
    interval_s: float | None
    logs: bool
    spark_ui: str | None
    configuration: dict[str, str]


def run_started(plan: Plan, about: About, total_records: int | None, at: float = 0.0) -> RunStarted:
    return RunStarted(
        at=at,
        run=about.run,
        pipeline=plan.graph.name,
        store=without_secret(about.store),
        engine=about.engine,
        protocol=about.protocol,
        interval_s=about.interval_s,
        logs=about.logs,
        operators=operators_of(plan),
        edges=edges_of(plan),
        shards=shards_of(plan),
        workers=len(plan.workers),
        spark_ui=about.spark_ui,
        configuration=hidden_in(about.configuration),
        total_records=total_records,
        shown_once=tuple(shown_once(plan)),
    )


def sampled(measures: Measures, status: RunStatus) -> MetricsSampled:
    shards = {
        str(shard): {**plain(meter), "counts": _lists(measures.counts.get(shard, {}))}
        for shard, meter in measures.shards.items()
    }
    workers = {
        str(worker): {**plain(process), "machine": process.machine.partition("/")[0]}
        for worker, process in measures.workers.items()
    }
    return _sampled(status, shards, workers, measures.wall_s)


def sampled_from(manifest: EpochManifest | None, status: RunStatus) -> MetricsSampled:
    """For engines without permanent processes to measure: each shard's progress by its checkpoint."""
    records = manifest.records.values() if manifest is not None else ()
    shards = {str(record.shard): {"counts": _lists(record.counts)} for record in records}
    return _sampled(status, shards, {})


def _sampled(
    status: RunStatus, shards: dict[str, Any], workers: dict[str, Any], at: float = 0.0
) -> MetricsSampled:
    phase, epoch, totals = status.phase.value, int(status.epoch), dict(status.totals)
    return MetricsSampled(phase, epoch, status.records_read, totals, shards, workers, at=at)


def _lists(counts: Mapping[str, tuple[int, int]]) -> dict[str, list[int]]:
    return {name: list(pair) for name, pair in counts.items()}


def epoch_stable(manifest: EpochManifest, at: float = 0.0) -> EpochStable:
    records = manifest.records.values()
    slowest = max(records, key=lambda record: record.capture_s + record.upload_s, default=None)
    return EpochStable(
        at=at,
        epoch=int(manifest.epoch),
        final=manifest.final,
        duration_s=round(manifest.duration_s, 4),
        bytes=manifest.size_bytes,
        slowest=None if slowest is None else str(slowest.shard),
        shards=tuple(_shard_checkpoint(record) for record in records),
        began_s=round(manifest.began_s, 4),
    )


def killing(kill: Kill, plan: Plan) -> Killing:
    return Killing(kill.operator, kill.shard, str(kill), kill.of_driver(plan))


def recovery_updated(report: RecoveryReport, name: str, at: float) -> RecoveryUpdated:
    """name: the same in all events about this failure; at: when it happened."""
    body = hidden_in(report.to_json())
    return RecoveryUpdated(
        at=at,
        id=name,
        **{
            **body,
            "shards": tuple(body["shards"]),
            "went_back": tuple(body["went_back"]),
            "from_epoch": int(report.from_epoch),
        },
    )


class RecoveryUpdates:
    """Follows the recovery reports of a run, which become complete as it recovers."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._sent: dict[str, RecoveryUpdated] = {}

    def changed(
        self, reports: Sequence[RecoveryReport], now_s: float, at: float
    ) -> list[RecoveryUpdated]:
        """The reports with news. `now_s` is on the clock of the reports, `at` is wall-clock time."""
        updates = []
        for report in reports[-FOLLOWED:]:
            name = f"{self._run}-{report.detected_s:.6f}"
            known = self._sent.get(name)
            # Two clocks drift apart; a failure happens once.
            happened_at = at - (now_s - report.start_s) if known is None else known.at
            event = recovery_updated(report, name, happened_at)
            if event != known:
                self._sent[name] = event
                updates.append(event)
        while len(self._sent) > 2 * FOLLOWED:
            del self._sent[next(iter(self._sent))]
        return updates


def _shard_checkpoint(record: CheckpointRecord) -> ShardCheckpoint:
    return ShardCheckpoint(
        shard=str(record.shard),
        number=int(record.number),
        aligned_s=round(record.aligned_s, 6),
        capture_s=round(record.capture_s, 6),
        upload_s=round(record.upload_s, 6),
        bytes=record.size_bytes,
        forced=record.forced,
        spilled=bool(record.spilled),
    )


def plain(measured: Any) -> dict[str, Any]:
    """The fields of a meter as values that JSON can hold."""
    return {
        field.name: _value(getattr(measured, field.name)) for field in dataclasses.fields(measured)
    }


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _value(inner) for name, inner in value.items()}
    if isinstance(value, Histogram):
        return {str(bucket): count for bucket, count in enumerate(value.counts) if count}
    if isinstance(value, Losses):
        return plain(value)
    return value
