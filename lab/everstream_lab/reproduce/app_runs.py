"""Runs of the applications as quantities: by workers, by batch, and from moment to moment."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from everstream_lab.apps.cycle.benchmarks import Planned
from everstream_lab.apps.cycle.outcome import last_line_of
from everstream_lab.apps.figures.runs import Ran, Runs
from everstream_lab.reproduce.exhibit import Place, Point, Quantities
from everstream_lab.reproduce.experiments import Tell

OVER_TIME = {
    "throughput over time": ("throughput_instant", 1.0),
    "latency over time": ("latency_instant_ms", 1.0),
    "CPU over time": ("cpu_percent", 1.0),
    "memory over time": ("memory_kb", 1 / 1024),
    "batch over time": ("batch_size", 1.0),
    "target over time": ("target_frequency", 1.0),
}
"""Quantity -> the monitor's column, and what it is multiplied by."""
BY_SETTING = {
    "throughput": ("throughput", 1.0),
    "latency": ("latency_ms", 1.0),
    "CPU": ("cpu_percent", 1.0),
    "memory": ("memory_kb", 1 / 1024),
}
"""Quantity -> the column of the table of means."""


def runs_in(folder: Path, tell: Tell, size: str, workers: str) -> Runs:
    """One repetition each: the repetitions are steps."""

    def hear(event: dict[str, object], planned: list[Planned]) -> None:
        if (last := last_line_of(event, planned)) is not None:
            tell(last[0])

    return Runs(folder, size, workers, 1, "100ms", hear)


def by_setting(
    ran: Ran, across: str, curve: Sequence[str], quantities: Sequence[str] = tuple(BY_SETTING)
) -> Quantities:
    """The means over workers, or over batches; a curve per value of the other columns."""
    rows = ran.tables["parallelism"].sort(across).to_dicts()
    return {
        quantity: [
            (", ".join(_word(row, one) for one in curve), row[across], row[column] * scale)
            for row in rows
            if row[column] is not None
        ]
        for quantity in quantities
        for column, scale in [BY_SETTING[quantity]]
    }


def of_the_node(ran: Ran) -> Quantities:
    """As Spot has it, of the machine and not of the program: with the most workers, by interface."""
    most = max(outcome.planned.workers for outcome in ran.outcomes)
    measured: dict[str, list[Point]] = {"node CPU": [], "node memory": []}
    for outcome in ran.outcomes:
        planned = outcome.planned
        if planned.workers != most:
            continue
        rows = ran.tables["monitor"].filter(pl.col("run") == planned.number)
        curve = f"{planned.application}, {planned.interface}"
        for quantity, place, value, scale in (
            ("node CPU", "mean", rows["machine_cpu_percent"].mean(), 1.0),
            ("node memory", "before", rows["machine_memory_before_kb"].min(), 1 / 1024**2),
            ("node memory", "least", rows["machine_memory_kb"].min(), 1 / 1024**2),
            ("node memory", "most", rows["machine_memory_kb"].max(), 1 / 1024**2),
        ):
            if isinstance(value, int | float):
                measured[quantity].append((curve, place, value * scale))
    return measured


def renamed(quantities: Quantities, more: str) -> Quantities:
    """The same under other names of curves."""
    return {
        quantity: [(f"{curve}{more}", at, value) for curve, at, value in points]
        for quantity, points in quantities.items()
    }


def _word(row: dict[str, object], column: str) -> str:
    return f"{column} {row[column]}" if column in ("workers", "batch") else str(row[column])


def over_time(ran: Ran, prefix: str = "") -> Quantities:
    """What the monitor saw, a curve per interface."""
    monitor = ran.tables["monitor"]
    measured: dict[str, list[Point]] = {}
    for outcome in ran.outcomes:
        planned = outcome.planned
        own = monitor.filter(pl.col("run") == planned.number)
        for quantity, (column, scale) in OVER_TIME.items():
            rows = own.select("elapsed_s", column).drop_nulls()
            measured.setdefault(quantity, []).extend(
                (f"{prefix}{planned.interface}", float(at), float(value) * scale)
                for at, value in rows.iter_rows()
            )
    return measured


def joined(*some: Quantities) -> Quantities:
    """All points of all of them."""
    together: dict[str, list[tuple[str, Place, float]]] = {}
    for quantities in some:
        for quantity, points in quantities.items():
            together.setdefault(quantity, []).extend(points)
    return together
