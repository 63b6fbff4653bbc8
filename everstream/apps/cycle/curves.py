"""The curves that SPBench draws, from the tables of an execution."""

from collections.abc import Sequence

import polars as pl

from everstream.apps.cycle.charts import Chart, Series

OVER_TIME = (
    ("throughput_instant", "throughput", "items per second"),
    ("latency_instant_ms", "latency", "ms"),
    ("cpu_percent", "CPU", "% of one core"),
    ("memory_kb", "memory", "MB"),
)
BY_SETTING = (
    ("throughput", "throughput", "items per second"),
    ("latency_ms", "latency", "ms"),
)


def over_time(
    monitor: pl.DataFrame,
    names: dict[int, str],
    title: str = "",
    marks: Sequence[tuple[float, str]] = (),
) -> list[Chart]:
    """What the monitor saw from moment to moment, one curve per run."""
    found = []
    span = _span(monitor, names)
    for column, what, unit in OVER_TIME:
        chart = Chart(f"{title}{what} over time", "seconds", unit, span=span, marks=marks)
        scale = 1 / 1024 if column == "memory_kb" else 1.0
        for run, name in names.items():
            chart.series.append(Series(name, _points(monitor, run, column, scale)))
        if what == "throughput":
            for run, name in names.items():
                target = _points(monitor, run, "target_frequency", 1.0)
                if target:
                    chart.series.append(Series(f"{name}: target", target, faint=True))
        found.append(chart)
    return found


def batch_over_time(monitor: pl.DataFrame, names: dict[int, str], title: str = "") -> Chart:
    """How many items travelled together, as the sink saw them."""
    chart = Chart(f"{title}batch size over time", "seconds", "items", span=_span(monitor, names))
    for run, name in names.items():
        chart.series.append(Series(name, _points(monitor, run, "batch_size", 1.0)))
    return chart


def _span(monitor: pl.DataFrame, names: dict[int, str]) -> tuple[float, float]:
    """The same for all charts of these runs, so that they can be read one above the other."""
    ends = monitor.filter(pl.col("run").is_in(list(names)))["elapsed_s"].to_list()
    return 0.0, max(ends, default=0.0)


def _points(
    monitor: pl.DataFrame, run: int, column: str, scale: float
) -> list[tuple[float, float]]:
    rows = monitor.filter(pl.col("run") == run).select("elapsed_s", column).drop_nulls()
    return [(at, value * scale) for at, value in rows.iter_rows()]


def by_setting(
    table: pl.DataFrame, across: str, apart: Sequence[str], title: str = ""
) -> list[Chart]:
    """Throughput and latency by workers or by batch, one curve per value of the other columns."""
    found = []
    for column, what, unit in BY_SETTING:
        chart = Chart(f"{title}{what} by {across}", across, unit, whole_steps=True)
        for key, rows in table.sort(across).group_by(apart, maintain_order=True):
            known = rows.drop_nulls(column)
            points = list(zip(known[across].to_list(), known[column].to_list(), strict=True))
            spread = known[f"{column}_deviation"].to_list()
            chart.series.append(Series(named(apart, key), points, spread))
        found.append(chart)
    return found


def named(columns: Sequence[str], key: Sequence[object]) -> str:
    """What tells one curve from the other."""
    counted = ("workers", "batch")
    return ", ".join(
        f"{column} {value}" if column in counted else str(value)
        for column, value in zip(columns, key, strict=True)
    )
