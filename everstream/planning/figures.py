"""Draws what planning found: the CCRR study's figures, both behaviours, and the adviser's curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from everstream.extras import extra
from everstream.planning import analytic, paper
from everstream.planning.adviser import Advice
from everstream.planning.model import Result
from everstream.planning.units import show_duration

with extra("report"):
    import matplotlib

    matplotlib.use("Agg")

    import matplotlib.pyplot as plt

_COLOURS = {1: "#4c566a", 2: "#2e7d6b", 3: "#d08700", 4: "#b3261e"}
_MARKERS = {1: "o", 2: "s", 3: "^", 4: "D"}


def _axes(title: str, across: str, up: str, count: int = 1) -> tuple[Any, Any]:
    figure, axes = plt.subplots(1, count, figsize=(6.2 * count, 4.2), constrained_layout=True)
    first = axes if count == 1 else axes[0]
    first.set_title(title)
    first.set_xlabel(across)
    first.set_ylabel(up)
    for axis in [axes] if count == 1 else axes:
        axis.grid(True, alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def by_rate(
    grid: paper.Grid, field: str, title: str, up: str, scale: float, path: Path, log: bool = False
) -> Path:
    """One line per case over the arrival rate: figures 8 and 9."""
    figure, axis = _axes(title, "arrival rate (tuples/s)", up)
    for case in paper.CASES:
        rates = sorted(rate for number, rate in grid if number == case.number)
        points = [grid[case.number, rate] for rate in rates]
        if field == "throughput":
            values = [scale / point.window_s for point in points]
        else:
            values = [getattr(point, field) * scale for point in points]
        axis.plot(
            rates,
            values,
            color=_COLOURS[case.number],
            marker=_MARKERS[case.number],
            label=f"case {case.number}: {case.title}",
        )
    if log:
        axis.set_yscale("log")
    axis.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def by_window(
    windows: Mapping[int, Mapping[int, paper.Point]],
    rate_per_s: float,
    field: str,
    title: str,
    up: str,
    scale: float,
    path: Path,
) -> Path:
    """Simulation against the formulas over the window size: figures 6 and 7.

    `windows` holds, by case number and window size, the mean of the replications.
    """
    figure, axis = _axes(title, "window (million tuples)", up)
    for case_number, by_size in windows.items():
        case = paper.CASES[case_number - 1]
        sizes = sorted(by_size)
        label = "no failures" if case_number == 2 else "one node fails"
        axis.plot(
            [size / 1e6 for size in sizes],
            [getattr(by_size[size], field) * scale for size in sizes],
            color=_COLOURS[case_number],
            marker=_MARKERS[case_number],
            label=f"simulated, {label}",
        )
        axis.plot(
            [size / 1e6 for size in sizes],
            [window_formula(case, size, rate_per_s, field) * scale for size in sizes],
            color=_COLOURS[case_number],
            linestyle="--",
            label=f"equation, {label}",
        )
    axis.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def window_formula(case: paper.Case, tuples: int, rate_per_s: float, field: str) -> float:
    """Equations 1, 3, 5 and 6 for one case and window."""
    work_s = tuples / rate_per_s
    interval_s = case.interval_s or math.inf
    if field == "window_s":
        if not case.failing:
            return analytic.run_time_without_failures_s(work_s, interval_s, case.commit_s)
        return analytic.run_time_with_failures_s(
            work_s, interval_s, case.commit_s, case.recovery_s, case.mtbf_s
        )
    if not case.failing:
        return analytic.loss_without_failures(rate_per_s, work_s, interval_s, case.commit_s)
    return analytic.loss_with_failures(
        rate_per_s, work_s, interval_s, case.commit_s, case.recovery_s, case.mtbf_s
    )


def _with_gaps(
    curve_s: Sequence[tuple[float, float, float]],
) -> tuple[list[float], list[float]]:
    """Break the line where nothing was delivered, so that an outage shows as a gap."""
    step_s = min((b[0] - a[0] for a, b in pairwise(curve_s)), default=1.0)
    times_s: list[float] = []
    worst_s: list[float] = []
    for at_s, _, latency_s in curve_s:
        if times_s and at_s - times_s[-1] > 1.5 * step_s:
            times_s.append(at_s)
            worst_s.append(math.nan)
        times_s.append(at_s)
        worst_s.append(max(latency_s, 1e-5))
    return times_s, worst_s


def behaviours(discard: Result, backlog: Result, path: Path) -> Path:
    """The same failures with `discard` and with `backlog`: what is delivered late, what is lost."""
    figure, axes = _axes("latency of what is delivered", "time (s)", "worst latency (s)", 2)
    for result, name, colour in (
        (discard, "discard", _COLOURS[4]),
        (backlog, "backlog", _COLOURS[2]),
    ):
        times_s, worst_s = _with_gaps(result.curve_s)
        axes[0].plot(
            times_s,
            worst_s,
            color=colour,
            linewidth=1,
            label=name,
        )
    axes[0].set_yscale("log")
    axes[0].legend(frameon=False)
    names = ("delivered whole", "unprocessed", "lost")
    for i, (result, colour) in enumerate(((discard, _COLOURS[4]), (backlog, _COLOURS[2]))):
        shares = (
            (result.delivered - result.unprocessed) / result.arrived,
            result.unprocessed / result.arrived,
            result.lost / result.arrived,
        )
        bars = axes[1].bar([x + 0.4 * i - 0.2 for x in range(3)], shares, width=0.38, color=colour)
        axes[1].bar_label(bars, [f"{share:.1%}" for share in shares], fontsize=8)
    axes[1].set_xticks(range(3), names)
    axes[1].set_title("share of what arrived")
    return _save(figure, path)


def advice_curve(advice: Advice, path: Path) -> Path:
    """Cost against interval, with the advised interval and its good range."""
    figure, axis = _axes(
        f"checkpoint every {show_duration(advice.interval_s)}, {advice.protocol}",
        "interval (s)",
        "share of time lost",
    )
    rows: Sequence[tuple[float, float, float, float]] = advice.curve
    intervals = [row[0] for row in rows]
    axis.plot(intervals, [row[1] for row in rows], color=_COLOURS[2], label="checkpoints")
    axis.plot(intervals, [row[2] for row in rows], color=_COLOURS[4], label="failures")
    axis.plot(
        intervals, [row[1] + row[2] for row in rows], color="black", linewidth=2, label="together"
    )
    axis.axvspan(*advice.near_optimal_s, color=_COLOURS[2], alpha=0.12, label="at most 10 % more")
    axis.axvline(advice.interval_s, color="black", linestyle=":", label="advised")
    axis.set_xscale("log")
    axis.set_yscale("log")
    recovery = axis.twinx()
    recovery.plot(intervals, [row[3] for row in rows], color=_COLOURS[3], linestyle="--")
    recovery.set_yscale("log")
    recovery.set_ylabel("mean recovery, caught up (s), dashed", color=_COLOURS[3])
    recovery.spines["top"].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="upper center")
    return _save(figure, path)
