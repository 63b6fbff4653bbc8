"""Draws the use cases: one panel each, bars without and with the failure per interval."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from everstream_lab.bench.papers.use_cases import INTERVALS_S, USE_CASES, Measured

plt.switch_backend("Agg")


def draw(runs: Sequence[Measured], factor: float, path: Path) -> None:
    cases = [case for case in USE_CASES if any(one.use_case == case.number for one in runs)]
    figure, axes = plt.subplots(
        1, len(cases), figsize=(4.4 * len(cases), 3.8), squeeze=False, layout="constrained"
    )
    for axis, case in zip(axes[0], cases, strict=True):
        for failure, shift, colour in ((False, -0.2, "#9aa5b1"), (True, 0.2, "#1f6feb")):
            heights = [
                next(
                    one.records_per_s
                    for one in runs
                    if (one.use_case, one.interval_s, one.failure)
                    == (case.number, interval_s, failure)
                )
                for interval_s in INTERVALS_S
            ]
            places = [number + shift for number in range(len(INTERVALS_S))]
            label = "with failure" if failure else "undisturbed"
            axis.bar(places, heights, width=0.38, color=colour, label=label)
        names = ["off" if s is None else f"{s / factor:g} s" for s in INTERVALS_S]
        axis.set_xticks(range(len(INTERVALS_S)), names)
        axis.set_xlabel("time between checkpoints")
        axis.set_title(f"use case {case.number}", fontsize=11)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("records per second")
    marks, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(marks, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
