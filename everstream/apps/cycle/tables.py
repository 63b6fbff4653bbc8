"""The tables of an execution, each as CSV and as Parquet: the files that SPBench writes.

`general` has a row per run, `parallelism` one per setting with means and deviations over its
repeats, `monitor` one per sample, `latency` one per item.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from everstream.apps.cycle.outcome import Outcome
from everstream.apps.cycle.statistics import Estimate, estimate


def write_tables(outcomes: Sequence[Outcome], folder: Path) -> dict[str, pl.DataFrame]:
    """All tables of an execution by name; the pieces that its runs left are gone then."""
    tables = {"general": general(outcomes), "parallelism": parallelism(outcomes)}
    for name in ("monitor", "latency"):
        pieces = sorted(folder.glob(f"{name}-[0-9]*.parquet"))
        if pieces:
            frames = [pl.read_parquet(piece) for piece in pieces]
            tables[name] = pl.concat(frames, how="diagonal_relaxed")
            for piece in pieces:
                piece.unlink()
    for name, table in tables.items():
        table.write_csv(folder / f"{name}.csv")
        table.write_parquet(folder / f"{name}.parquet")
    return tables


def read_tables(folder: Path) -> dict[str, pl.DataFrame]:
    """What `write_tables` wrote."""
    names = ("general", "parallelism", "monitor", "latency")
    found = {name: folder / f"{name}.parquet" for name in names}
    return {name: pl.read_parquet(path) for name, path in found.items() if path.exists()}


def general(outcomes: Sequence[Outcome]) -> pl.DataFrame:
    """A row per run."""
    return pl.DataFrame([_row(outcome) for outcome in outcomes], infer_schema_length=None)


def _row(outcome: Outcome) -> dict[str, Any]:
    planned = outcome.planned
    settings = planned.settings
    return {
        "run": planned.number,
        "benchmark": planned.benchmark,
        "application": planned.application,
        "interface": planned.interface,
        "input": planned.size,
        "workers": planned.workers,
        "repeat": planned.repeat,
        "items": outcome.items,
        "execution_time_s": outcome.wall_s,
        "throughput": outcome.items_per_s,
        "latency_ms": outcome.latency_ms,
        "latency_min_ms": outcome.latency_min_ms,
        "latency_max_ms": outcome.latency_max_ms,
        "latency_p50_ms": outcome.latency_p50_ms,
        "latency_p99_ms": outcome.latency_p99_ms,
        "cpu_percent": outcome.cpu_percent,
        "memory_kb": outcome.memory_kb,
        "batch": planned.batch,
        "interval": settings.interval,
        "frequency": settings.frequency,
        "pattern": settings.pattern,
        "in_memory": settings.in_memory,
        "checkpoint": settings.checkpoint,
        "every": settings.every,
        "checkpoints": outcome.checkpoints,
        "kills": " ".join(settings.kills),
        "recoveries": len(outcome.recoveries),
        "exact": outcome.exact,
    }


def parallelism(outcomes: Sequence[Outcome]) -> pl.DataFrame:
    """A row per interface, workers and batch: means over the repeats, with their deviations."""
    groups: dict[tuple[str, str, int, int], list[Outcome]] = {}
    for outcome in outcomes:
        planned = outcome.planned
        key = (planned.application, planned.interface, planned.workers, planned.batch)
        groups.setdefault(key, []).append(outcome)
    return pl.DataFrame(
        [
            {
                **dict(zip(("application", "interface", "workers", "batch"), key, strict=True)),
                "repeats": len(some),
                **_spread("throughput", [one.items_per_s for one in some]),
                **_spread("latency_ms", [one.latency_ms for one in some]),
                **_spread("execution_time_s", [one.wall_s for one in some]),
                **_spread("cpu_percent", [one.cpu_percent for one in some]),
                **_spread("memory_kb", [one.memory_kb for one in some]),
                "exact": all(one.exact is not False for one in some),
            }
            for key, some in groups.items()
        ],
        infer_schema_length=None,
    )


def _spread(name: str, values: Sequence[float | int | None]) -> dict[str, float | None]:
    known = [float(value) for value in values if value is not None]
    found: Estimate | None = estimate(known) if known else None
    return {
        name: found.mean if found else None,
        f"{name}_deviation": found.deviation if found else None,
    }
