"""Draws both behaviours of the model during a failure."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from everstream.planning.figures import COLOURS, new_axes, save
from everstream_lab.queueing.model import Result


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
    figure, axes = new_axes("latency of what is delivered", "time (s)", "worst latency (s)", 2)
    for result, name, colour in (
        (discard, "discard", COLOURS[4]),
        (backlog, "backlog", COLOURS[2]),
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
    for i, (result, colour) in enumerate(((discard, COLOURS[4]), (backlog, COLOURS[2]))):
        shares = (
            (result.delivered - result.unprocessed) / result.arrived,
            result.unprocessed / result.arrived,
            result.lost / result.arrived,
        )
        bars = axes[1].bar([x + 0.4 * i - 0.2 for x in range(3)], shares, width=0.38, color=colour)
        axes[1].bar_label(bars, [f"{share:.1%}" for share in shares], fontsize=8)
    axes[1].set_xticks(range(3), names)
    axes[1].set_title("share of what arrived")
    return save(figure, path)
