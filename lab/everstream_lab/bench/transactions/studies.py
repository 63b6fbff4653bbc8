"""The studies: schemes compared, threads, workload knobs, what each optimisation brings.

Each study returns plain rows of facts; `report` turns them into pages, `figures` into
verdicts. All of them kill a real process once per configuration.
"""

import timeit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from everstream.transactions.compiled import spin
from everstream_lab.bench.transactions.config import Configuration, default_shape
from everstream_lab.bench.transactions.makespan import Makespan, model
from everstream_lab.bench.transactions.measure import Bench, Facts, Progress
from everstream_lab.recovery.fast import FastOptions
from everstream_lab.workloads.transactions import Workload

MODEL_WORKERS = (2, 4, 8, 16, 24, 32, 48, 64)
_MODEL_EVENTS = 40_960


@dataclass(frozen=True)
class Plan:
    """What to measure and how hard."""

    folder: Path
    workloads: Sequence[str]
    schemes: Sequence[str]
    events: int
    threads: int
    epoch_events: int
    operation_cost_s: float
    recoveries: int
    runs: int
    verify: bool
    spare: bool
    patience: int
    seed: int
    knobs: dict[str, Any]


def base_of(plan: Plan, workload: str, events: int | None = None, **knobs: Any) -> Configuration:
    """The configuration of a workload: killed in the middle of its last but one epoch."""
    epochs = max(4, (events or plan.events) // plan.epoch_events)
    total = epochs * plan.epoch_events
    cost_s = plan.operation_cost_s
    shape = default_shape(workload, **{**plan.knobs, **knobs, "operation_cost_s": cost_s})
    return Configuration(
        workload=workload,
        scheme="none",
        folder=str(plan.folder / workload),
        events=total,
        threads=plan.threads,
        epoch_events=plan.epoch_events,
        snapshot_epoch=2,
        crash_event=total - plan.epoch_events - plan.epoch_events // 2,
        seed=plan.seed,
        cost_iterations=spin_iterations(cost_s),
        shape=shape,
    )


def _bench(plan: Plan, base: Configuration, progress: Progress) -> Bench:
    return Bench(base, plan.verify, progress, plan.spare, plan.patience)


def compare(plan: Plan, progress: Progress) -> list[Facts]:
    """Runtime throughput, recovery time and breakdown of every scheme on every workload."""
    rows = []
    for workload in plan.workloads:
        base = base_of(plan, workload)
        bench = _bench(plan, base, progress)
        for scheme in plan.schemes:
            facts = bench.measure(replace(base, scheme=scheme), plan.recoveries, plan.runs)
            rows.append({"workload": workload, **facts})
    return rows


def factors(plan: Plan, progress: Progress) -> list[Facts]:
    """`fast` without its optimisations, then with one more at a time."""
    full = FastOptions(selective=False, adaptive_replay=False)
    steps = {
        "simple": replace(full, restructure=False, abort_pushdown=False, task_assignment=False),
        "+ restructure": replace(full, abort_pushdown=False, task_assignment=False),
        "+ abort pushdown": replace(full, task_assignment=False),
        "+ task assignment": full,
        "selective logging": replace(full, selective=True),
    }
    rows = []
    for workload in plan.workloads:
        base = replace(base_of(plan, workload, plan.events // 2), scheme="fast")
        bench = _bench(plan, base, progress)
        for step, options in steps.items():
            facts = bench.measure(replace(base, fast=options), plan.recoveries)
            rows.append({"workload": workload, "step": step, **facts})
    return rows


def scalability(plan: Plan, progress: Progress, threads: Sequence[int]) -> list[Facts]:
    """Recovered events per second over threads."""
    rows = []
    for workload in plan.workloads:
        base = base_of(plan, workload, plan.events // 2)
        bench = _bench(plan, base, progress)
        for count in threads:
            for scheme in plan.schemes:
                config = replace(base, scheme=scheme, threads=count)
                rows.append({"workload": workload, **bench.measure(config, plan.recoveries)})
    return rows


SWEEPS: dict[str, tuple[dict[str, float], tuple[float, ...]]] = {
    "multi_partition": ({"skew": 0.0, "aborts": 0.0}, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    "skew": ({"multi_partition": 0.0, "aborts": 0.0, "length": 1}, (0.0, 0.3, 0.6, 0.9, 1.2)),
    "aborts": ({"skew": 0.0, "multi_partition": 0.0}, (0.0, 0.2, 0.4, 0.6, 0.8)),
}


def sensitivity(
    plan: Plan, progress: Progress, sweeps: Mapping[str, Sequence[float]] | None = None
) -> list[Facts]:
    """Grep and Sum with one knob turned at a time, as the others stand still.

    `sweeps` has the values of each knob; default: those of all in `SWEEPS`.
    """
    rows = []
    chosen = sweeps or {knob: values for knob, (_, values) in SWEEPS.items()}
    for knob, values in chosen.items():
        fixed = SWEEPS[knob][0]
        for value in values:
            base = base_of(plan, "grep-sum", plan.events // 4, **{**fixed, knob: value})
            bench = _bench(plan, base, progress)
            for scheme in plan.schemes:
                facts = bench.measure(replace(base, scheme=scheme), plan.recoveries)
                rows.append({"knob": knob, "value": value, **facts})
    return rows


CONTENTION: dict[str, dict[str, Any]] = {
    "LSFD": {"skew": 0.0, "multi_partition": 0.0},
    "LSMD": {"skew": 0.0, "multi_partition": 0.8},
    "HSFD": {"skew": 1.2, "multi_partition": 0.0},
    "HSMD": {"skew": 1.2, "multi_partition": 0.8},
}
"""Low or high skew, few or many dependencies: the classes of workload in the paper's section VI-B."""
EPOCH_SIZES = (512, 1024, 2048, 4096, 8192, 16_384)
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of transactions over partitions, in the study of selective logging."""


def commit_epochs(
    plan: Plan, progress: Progress, classes: Sequence[str], sizes: Sequence[int]
) -> list[Facts]:
    """Grep and Sum under `fast`: throughput and recovery by how many events an epoch has."""
    rows = []
    for name in classes:
        base = replace(base_of(plan, "grep-sum", **CONTENTION[name]), scheme="fast")
        bench = _bench(plan, base, progress)
        for size in sizes:
            snapshot_epoch = max(1, 2 * plan.epoch_events // size)
            config = replace(base, epoch_events=size, snapshot_epoch=snapshot_epoch)
            facts = bench.measure(config, plan.recoveries, plan.runs)
            since = config.crash_event - snapshot_epoch * size
            rows.append(
                {
                    "contention": name,
                    "epoch_events": size,
                    "recovered_per_s": since / facts["recovery"]["work_s"],
                    **facts,
                }
            )
    return rows


def selective_logging(plan: Plan, progress: Progress, shares: Sequence[float]) -> list[Facts]:
    """The ledger with full and with selective logging: recovery gained by throughput given up.

    Both are against `checkpoint`, which logs nothing. A scheme that costs no throughput is counted
    as if it cost a hundredth: less cannot be told from chance.
    """
    rows = []
    for share in shares:
        base = base_of(plan, "ledger", multi_partition=share)
        bench = _bench(plan, base, progress)
        without = bench.measure(replace(base, scheme="checkpoint"), plan.recoveries, plan.runs)
        for logging, selective in (("full", False), ("selective", True)):
            options = FastOptions(selective=selective, adaptive_replay=False)
            config = replace(base, scheme="fast", fast=options)
            facts = bench.measure(config, plan.recoveries, plan.runs)
            gained = without["recovery"]["work_s"] / facts["recovery"]["work_s"]
            given_up = 1 - facts["throughput_per_s"] / without["throughput_per_s"]
            rows.append(
                {
                    "knob": "multi_partition",
                    "value": share,
                    "logging": logging,
                    "efficiency": gained / max(given_up, 0.01),
                    **facts,
                }
            )
    return rows


def makespans(plan: Plan, rows: Sequence[Facts], progress: Progress) -> dict[str, list[Makespan]]:
    """The model for more workers than there are here, from the operation cost measured here."""
    models = {}
    for workload in plan.workloads:
        progress(f"{workload}: modelling")
        built = base_of(plan, workload).build()
        events = built.events(_MODEL_EVENTS, plan.seed)
        measured = operation_cost_s(built, rows, workload) or plan.operation_cost_s or 1e-7
        models[workload] = model(built, events, plan.epoch_events, measured, MODEL_WORKERS)
    return models


def operation_cost_s(workload: Workload, rows: Sequence[Facts], name: str) -> float | None:
    """Seconds one operation took while running, measured inside the kernels."""
    costs = [
        float(row["run"]["transaction_cost_s"])
        for row in rows
        if row["workload"] == name and row["threads"] > 1
    ]
    if not costs:
        return None
    sample = workload.events(10_000, 1)
    keys = np.array([len(declared.keys) for declared in workload.transactions])
    kinds = (
        sample["transaction"].to_physical().to_numpy()
        if len(keys) > 1
        else np.zeros(len(sample), np.int64)
    )
    return min(costs) / float(keys[kinds].mean())


def spin_iterations(cost_s: float, rounds: int = 5) -> int:
    """Iterations of `spin` that take `cost_s` on an idle core of this machine."""
    if cost_s <= 0:
        return 0
    probe = 200_000
    spin(10, 1)
    best_s = min(timeit.repeat(lambda: spin(probe, 12345), number=1, repeat=rounds))
    return max(1, round(cost_s / best_s * probe))
