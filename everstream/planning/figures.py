"""Draws the adviser's curve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstream.extras import extra
from everstream.planning.adviser import Advice
from everstream.planning.units import show_duration

with extra("report"):
    import matplotlib

    matplotlib.use("Agg")

    import matplotlib.pyplot as plt

COLOURS = {1: "#4c566a", 2: "#2e7d6b", 3: "#d08700", 4: "#b3261e"}


def new_axes(title: str, across: str, up: str, count: int = 1) -> tuple[Any, Any]:
    figure, axes = plt.subplots(1, count, figsize=(6.2 * count, 4.2), constrained_layout=True)
    first = axes if count == 1 else axes[0]
    first.set_title(title)
    first.set_xlabel(across)
    first.set_ylabel(up)
    for axis in [axes] if count == 1 else axes:
        axis.grid(True, alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def advice_curve(advice: Advice, path: Path) -> Path:
    """Cost against interval, with the advised interval and its good range."""
    figure, axis = new_axes(
        f"checkpoint every {show_duration(advice.interval_s)}, {advice.protocol}",
        "interval (s)",
        "share of time lost",
    )
    rows: Sequence[tuple[float, float, float, float]] = advice.curve
    intervals = [row[0] for row in rows]
    axis.plot(intervals, [row[1] for row in rows], color=COLOURS[2], label="checkpoints")
    axis.plot(intervals, [row[2] for row in rows], color=COLOURS[4], label="failures")
    axis.plot(
        intervals, [row[1] + row[2] for row in rows], color="black", linewidth=2, label="together"
    )
    axis.axvspan(*advice.near_optimal_s, color=COLOURS[2], alpha=0.12, label="at most 10 % more")
    axis.axvline(advice.interval_s, color="black", linestyle=":", label="advised")
    axis.set_xscale("log")
    axis.set_yscale("log")
    recovery = axis.twinx()
    recovery.plot(intervals, [row[3] for row in rows], color=COLOURS[3], linestyle="--")
    recovery.set_yscale("log")
    recovery.set_ylabel("mean recovery, caught up (s), dashed", color=COLOURS[3])
    recovery.spines["top"].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="upper center")
    return save(figure, path)
