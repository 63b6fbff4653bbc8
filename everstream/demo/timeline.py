"""The report of the demo: a page that needs nothing else, and the picture of a recovery in it.

The picture shows what an operator has done around the moment of a kill. Its upper part shows how far the operator has come. At the restore it falls back to the last
checkpoint; the steep part after it is the replay, and it meets the due line where it has caught
up. The lower part shows the same as a rate.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.extras import extra

with extra("report"):
    import matplotlib

    matplotlib.use("Agg")

    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter

BEFORE_S, AFTER_S = 2.0, 3.0
INK, DONE, DUE, KILL = "#222222", "#1f6feb", "#9aa0a6", "#c5221f"
STEPS = (
    ("detected", "#f4c7c3"),
    ("restarted", "#fbe3b5"),
    ("restored", "#d9ead3"),
    ("replayed", "#c9dff5"),
    ("caught up", "#e3e0f3"),
)


@dataclass(frozen=True)
class Sample:
    """How many records had been taken at one moment on the driver's clock."""

    at_s: float
    records: int


def draw_recovery(
    samples: Sequence[Sample], report: RecoveryReport, rate: float, path: Path, title: str
) -> None:
    """Draw the seconds around one kill; `rate` is the paced load in records per second."""
    zero_s = report.start_s
    ends_s = report.caught_up_s if report.caught_up_s is not None else zero_s
    stop_s = max(AFTER_S, ends_s - zero_s + 1.0)
    near = [(s.at_s - zero_s, s.records) for s in samples]
    near = [(at_s, records) for at_s, records in near if -BEFORE_S <= at_s <= stop_s]
    figure, (progress, speed) = plt.subplots(
        2, 1, figsize=(9, 5.6), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    _draw_progress(progress, near, rate)
    _draw_speed(speed, near, rate)
    for axes in (progress, speed):
        _shade_steps(axes, report)
        axes.set_xlim(-BEFORE_S, stop_s)
        axes.spines[["top", "right"]].set_visible(False)
    progress.legend(loc="upper left", frameon=False)
    progress.set_title(title, loc="left", color=INK, fontsize=11)
    speed.set_xlabel("seconds after the kill")
    _name_steps(figure, report)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_progress(axes: Axes, near: Sequence[tuple[float, int]], rate: float) -> None:
    times = [at_s for at_s, _ in near]
    before = [(at_s, records) for at_s, records in near if at_s <= 0]
    if before:
        # The load is paced: what is due now lies on a line through what was done before the kill.
        offset = max(records - rate * at_s for at_s, records in before)
        axes.plot(times, [offset + rate * t for t in times], color=DUE, ls="--", label="due")
    axes.plot(times, [records for _, records in near], color=DONE, lw=2, label="done")
    axes.set_ylabel("records")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))


def _draw_speed(axes: Axes, near: Sequence[tuple[float, int]], rate: float) -> None:
    times, speeds = [], []
    for (from_s, before), (to_s, after) in pairwise(near):
        if to_s > from_s:
            times.append(to_s)
            speeds.append(max(0.0, (after - before) / (to_s - from_s)))
    axes.axhline(rate, color=DUE, ls="--")
    axes.fill_between(times, speeds, step="pre", color=DONE, alpha=0.25)
    axes.step(times, speeds, where="pre", color=DONE, lw=1.5)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("records per second")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))


def _steps_s(report: RecoveryReport) -> list[tuple[str, str, float, float]]:
    """Name, colour, start and end of each step, in seconds after the kill."""
    steps, last_s = [], 0.0
    for (name, colour), ms in zip(STEPS, report.milliseconds().values(), strict=True):
        if ms is not None:
            steps.append((name, colour, last_s, max(last_s, ms / 1000)))
            last_s = max(last_s, ms / 1000)
    return steps


def _shade_steps(axes: Axes, report: RecoveryReport) -> None:
    for _, colour, start_s, stop_s in _steps_s(report):
        axes.axvspan(start_s, stop_s, color=colour, lw=0, alpha=0.8, zorder=0)
    axes.axvline(0, color=KILL, lw=1.5)


def _name_steps(figure: Figure, report: RecoveryReport) -> None:
    """What the colours stand for, below everything."""
    marks: list[Line2D | Patch] = [Line2D([], [], color=KILL, lw=1.5, label="SIGKILL: 0 ms")]
    for name, colour, _, stop_s in _steps_s(report):
        marks.append(Patch(facecolor=colour, label=f"{name}: {stop_s * 1000:,.0f} ms"))
    figure.legend(
        handles=marks,
        loc="outside lower center",
        ncols=len(marks),
        frameon=False,
        fontsize=9,
        handlelength=1.2,
        columnspacing=1.2,
    )


def _thousands(value: float, _: int) -> str:
    return f"{value / 1000:,.0f} k" if abs(value) >= 1000 else f"{value:,.0f}"


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 3rem auto;
       padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.verdict { display: inline-block; padding: .5rem 1rem; border-radius: .4rem; font-weight: 600 }
.good { background: #d9ead3 } .bad { background: #f4c7c3 }
table { border-collapse: collapse } td, th { padding: .3rem 1.4rem .3rem 0; text-align: right;
       border-bottom: 1px solid #e3e3e3; font-variant-numeric: tabular-nums }
td:first-child, th:first-child { text-align: left } th { font-weight: 600; color: #666 }
img { max-width: 100% } .dim { color: #666 }
"""


@dataclass
class HtmlReport:
    """Put together from top to bottom, then written."""

    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, text: str) -> None:
        self.parts.append(f"<p>{escape(text)}</p>")

    def verdict(self, text: str, good: bool) -> None:
        kind = "good" if good else "bad"
        self.parts.append(f'<p class="verdict {kind}">{escape(text)}</p>')

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def picture(self, png: Path, says: str) -> None:
        data = base64.b64encode(png.read_bytes()).decode()
        source = f"data:image/png;base64,{data}"
        self.parts.append(f'<p><img alt="{escape(says, quote=True)}" src="{source}"></p>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        cells = "".join(f"<th>{escape(name)}</th>" for name in head)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        self.parts.append(f"<table><tr>{cells}</tr>{body}</table>")

    def write(self, path: Path) -> None:
        title = escape(self.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            + "\n".join(self.parts)
            + "\n</body></html>\n"
        )
