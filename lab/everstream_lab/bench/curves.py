"""Latency and throughput around a failure, one column per protocol, drawn to be compared.

All columns share their axes, so that heights and widths can be compared by eye. Each says how it
came back: the kill is a red line at zero, the time until latency was back is shaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from everstream_lab.bench.latency import Arrivals, Curve, Floats
from everstream_lab.bench.recovery.recovery_time import Recovery

plt.switch_backend("Agg")

INK, MEAN, TAIL, RATE, KILL, BACK = (
    *("#222222", "#1f6feb", "#a9c7f7", "#9aa0a6"),
    *("#c5221f", "#fbe3b5"),
)


@dataclass(frozen=True)
class Disturbed:
    """One run with at most one kill, as seen at its sink."""

    protocol: str
    arrivals: Arrivals | Curve
    """What came when; or the curve around the moment, if that was worked out before."""
    moment_s: float
    """The kill, on the wall clock; without one, the moment to put at zero."""
    recovery: Recovery | None = None
    """None for a run without a kill."""


def draw_curves(
    runs: Sequence[Disturbed],
    path: Path,
    title: str,
    *,
    step_s: float = 0.1,
    before_s: float = 3.0,
    after_s: float = 6.0,
    rate: float | None = None,
) -> None:
    """Draw runs side by side; `rate` is the output expected per second, if that is known."""
    figure, axes = plt.subplots(
        2,
        len(runs),
        figsize=(max(2.7 * len(runs), 5.2), 5.0),
        sharex=True,
        sharey="row",
        squeeze=False,
        height_ratios=(3, 2),
        layout="constrained",
    )
    for column, run in enumerate(runs):
        curve = run.arrivals
        if isinstance(curve, Arrivals):
            curve = curve.curve(step_s, run.moment_s - before_s, run.moment_s + after_s)
        at_s = curve.start_s - run.moment_s + step_s / 2
        latency, throughput = axes[0][column], axes[1][column]
        _draw_latency(latency, curve, at_s)
        throughput.fill_between(at_s, curve.records_per_s, step="mid", color=MEAN, alpha=0.25)
        throughput.step(at_s, curve.records_per_s, where="mid", color=MEAN, lw=1.3)
        if rate is not None:
            throughput.axhline(rate, color=RATE, ls="--", lw=1)
        latency.set_title(_heading(run), color=INK, fontsize=10)
        for panel in (latency, throughput):
            _mark(panel, run)
            panel.set_xlim(-before_s, after_s)
            panel.spines[["top", "right"]].set_visible(False)
    for panel in axes[1]:
        panel.set_ylim(bottom=0)
    axes[0][0].set_yscale("log")
    axes[0][0].yaxis.set_major_formatter(FuncFormatter(_milliseconds))
    axes[0][0].set_ylabel("latency from due time")
    axes[1][0].yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes[1][0].set_ylabel("records per second")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    killed = any(run.recovery is not None for run in runs)
    figure.supxlabel("seconds after the kill" if killed else "seconds", fontsize=10)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _draw_latency(axes: Axes, curve: Curve, at_s: Floats) -> None:
    seen = np.flatnonzero(~np.isnan(curve.mean_s))
    # Lines join what is as far apart as usual, be it beats of a window, and break at an outage.
    gaps = np.diff(seen)
    breaks: Any = np.flatnonzero(gaps > 3 * np.median(gaps)) + 1 if len(gaps) else []
    for number, piece in enumerate(np.split(seen, breaks)):
        for values, colour, name in (
            (curve.p99_s, TAIL, "99th percentile"),
            (curve.mean_s, MEAN, "mean"),
        ):
            label = name if number == 0 else None
            marker = "." if len(piece) == 1 else ""
            shown = values[piece] * 1e3
            axes.plot(at_s[piece], shown, marker=marker, color=colour, lw=1.5, label=label)


def _mark(axes: Axes, run: Disturbed) -> None:
    if run.recovery is None:
        return
    if run.recovery.recovery_s is not None:
        axes.axvspan(0, run.recovery.recovery_s, color=BACK, lw=0, zorder=0)
    axes.axvline(0, color=KILL, lw=1.3)


def _heading(run: Disturbed) -> str:
    if run.recovery is None:
        return run.protocol
    found_s = run.recovery.recovery_s
    return f"{run.protocol}\n" + ("not back" if found_s is None else f"back after {found_s:.2f} s")


def _milliseconds(value: float, _: int) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def _thousands(value: float, _: int) -> str:
    return f"{value / 1000:g} k" if abs(value) >= 1000 else f"{value:g}"
