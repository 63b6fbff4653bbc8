"""Makes the events of runs that never were, from plans, meters and manifests as a run has them."""

from collections.abc import Mapping
from dataclasses import replace

import everstream as es
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, Epoch, ShardId, WorkerId
from everstream.core.measuring import Histogram, Measures, Meter, WorkerMeasures
from everstream.core.orders import Phase
from everstream.core.plan import Plan, make_plan, plan_changed
from everstream.engine.reporting.building import (
    About,
    epoch_stable,
    run_started,
    sampled,
)
from everstream.events import EpochStable, MetricsSampled, PlanChanged, RunStarted, RunStatus

START = 1_700_000_000.0
NUMBERS, FOLD = ShardId("numbers", 0), ShardId("fold", 0)


def about(run: str = "a" * 32, **changed: object) -> About:
    fields: dict[str, object] = {
        "run": run,
        "store": "s3://user:secret@bucket/folder?key=secret",
        "engine": "tasks",
        "protocol": "aligned",
        "interval_s": 5.0,
        "logs": False,
        "spark_ui": None,
        "configuration": {"workers": "2"},
    }
    return About(**{**fields, **changed})  # type: ignore[arg-type]


def plan(shards: int) -> Plan:
    pipeline = es.Pipeline("told")
    stream = pipeline.source(es.Range(10), name="numbers", shards=1).key_by(lambda n: n)
    stream.fold(init=int, update=max, name="fold", shards=shards).sink(
        es.JsonLines("x"), name="out"
    )
    return make_plan(pipeline, 2)


def run(at: float = START, shards: int = 2, **changed: object) -> RunStarted:
    return run_started(plan(shards), about(**changed), 10, at)  # type: ignore[arg-type]


def rescaled(at: float, before: int, after: int) -> PlanChanged:
    return replace(plan_changed(plan(before), plan(after)), at=at)


def sample(
    seconds: float,
    given: int,
    taken: int,
    *,
    attempt: int = 0,
    meter: Mapping[str, object] | None = None,
    latency_s: float | None = None,
    fold_worker: bool = True,
) -> MetricsSampled:
    """So many seconds after the start so many records were given by the source, taken by the sink."""
    of_fold = Meter(**{"busy_s": seconds / 2, **(meter or {})})  # type: ignore[arg-type]
    if latency_s is not None:
        of_fold.latency["out"] = Histogram()
        of_fold.latency["out"].add(latency_s, taken)
    workers = {WorkerId(0): WorkerMeasures("here/id", 100, 0, cpu_s=seconds, memory_bytes=10)}
    if fold_worker:
        workers[WorkerId(1)] = WorkerMeasures("here/id", 101 + attempt, attempt, memory_bytes=20)
    counts = {"fold": (taken, taken), "out": (taken, 0)}
    measures = Measures(
        START + seconds,
        {NUMBERS: Meter(), FOLD: of_fold},
        {NUMBERS: {"numbers": (0, given)}, FOLD: counts},
        workers,
    )
    return sampled(measures, RunStatus(Phase.RUNNING, len(workers), given, {}, 3, []))


def checkpoint(seconds: float, number: int, shards: int = 2) -> EpochStable:
    places = [ShardId("fold", n) for n in range(shards)]
    records = {
        shard: CheckpointRecord(
            shard, CheckpointNumber(number), ("fold",), capture_s=0.01, upload_s=shard.number / 10
        )
        for shard in places
    }
    manifest = EpochManifest(Epoch(number), records, "told", duration_s=0.25)
    return epoch_stable(manifest, START + seconds)
