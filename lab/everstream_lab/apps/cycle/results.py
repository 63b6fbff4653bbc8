"""What repeated runs come to: means with confidence intervals, ratios, and the tables that SPBench writes.

Runs that are compared are made in turn, in one go, on one machine; only ratios of such runs mean
anything. `general` has a row per run, `parallelism` one per setting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from everstream.errors import UserError
from everstream_lab.apps.cycle.estimates import Estimate, Ratio, estimate, ratio_of
from everstream_lab.apps.cycle.outcome import Outcome


@dataclass(frozen=True)
class Side:
    """One interface with one setting; its name has how stages are spread, if that was chosen."""

    application: str
    interface: str
    workers: int
    batch: int
    throughput: Estimate
    """From the workers standing ready to the result being written."""
    with_start: Estimate
    """The same with the time until they stood ready."""
    latency_ms: Estimate | None
    against: Ratio
    """Its throughput by the base's."""
    exact: bool | None
    is_base: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "application": self.application,
            "interface": self.interface,
            "workers": self.workers,
            "batch": self.batch,
            "throughput": self.throughput.to_json(),
            "throughput_with_start": self.with_start.to_json(),
            "latency_ms": None if self.latency_ms is None else self.latency_ms.to_json(),
            "ratio": self.against.to_json(),
            "base": self.is_base,
            "exact": self.exact,
        }


def sides(outcomes: Sequence[Outcome], base: str | None = None) -> list[Side]:
    """Every setting of every application, against the base of its application."""
    groups: dict[tuple[str, str, int, int], list[Outcome]] = {}
    for outcome in outcomes:
        planned = outcome.planned
        key = (planned.application, planned.driven, planned.workers, planned.batch)
        groups.setdefault(key, []).append(outcome)
    sides = []
    for key, some in groups.items():
        of_base = _base_of(key[0], groups, base)
        speeds = [one.items_per_s for one in some]
        waits = [one.latency_ms for one in some if one.latency_ms is not None]
        looked = [one.exact for one in some if one.exact is not None]
        sides.append(
            Side(
                *key,
                estimate(speeds),
                estimate([one.items_per_s_with_start for one in some]),
                estimate(waits) if waits else None,
                ratio_of(speeds, [one.items_per_s for one in groups[of_base]]),
                all(looked) if looked else None,
                key == of_base,
            )
        )
    return sides


def names(sides: Sequence[Side]) -> list[str]:
    """The label of each: its interface, and workers and batch if they differ between them.

    A sequential program always has one worker, and each application has its own batch, so those
    differences are not shown.
    """
    farms = [side for side in sides if side.interface != "sequential"]
    many_workers = len({side.workers for side in farms}) > 1
    batches = {(side.application, side.batch) for side in sides}
    many_batches = len(batches) > len({application for application, _ in batches})
    return [
        ", ".join(
            [side.interface]
            + ([f"{side.workers} worker(s)"] if many_workers and side in farms else [])
            + ([f"batch {side.batch}"] if many_batches else [])
        )
        for side in sides
    ]


Key = tuple[str, str, int, int]


def _base_of(application: str, groups: dict[Key, list[Outcome]], base: str | None) -> Key:
    own = [key for key in groups if key[0] == application]
    if base is None:
        return own[0]
    for key in own:
        if base in (key[1], f"{key[1]}-{key[2]}"):
            return key
    raise UserError(
        f"--base {base}: none of those compared; say an interface, or interface-workers as in "
        f"everstream-2: {', '.join(sorted({f'{key[1]}-{key[2]}' for key in own}))}."
    )


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
    paths = {name: folder / f"{name}.parquet" for name in names}
    return {name: pl.read_parquet(path) for name, path in paths.items() if path.exists()}


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
        "stages": settings.stages,
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
        "clutter": settings.clutter,
        "overtaken": outcome.overtaken,
        "reorder_buffer": outcome.reorder_buffer,
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
        key = (planned.application, planned.driven, planned.workers, planned.batch)
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
    estimated: Estimate | None = estimate(known) if known else None
    return {
        name: estimated.mean if estimated else None,
        f"{name}_deviation": estimated.deviation if estimated else None,
    }
