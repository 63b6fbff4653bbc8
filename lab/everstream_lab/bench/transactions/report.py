"""One page with everything that was measured: tables, charts, verdicts, and the model apart."""

import base64
import html
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib import pyplot as plt

from everstream_lab.bench.transactions.figures import PAPER_GAIN, PAPER_WORKERS, Figure
from everstream_lab.bench.transactions.makespan import Makespan
from everstream_lab.bench.transactions.measure import Facts

plt.switch_backend("Agg")

PARTS = ("reload", "construct", "execute", "abort", "explore", "wait")
_COLOURS = ("#8d99ae", "#e9c46a", "#2a9d8f", "#e76f51", "#9b5de5", "#d3d3d3")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .2rem .7rem; text-align: right; }
th { border-bottom: 1px solid #888; } td:first-child, th:first-child { text-align: left; }
.yes { color: #2a7d2e; } .no { color: #b3261e; font-weight: 600; } img { max-width: 100%; }
"""


def page(results: dict[str, Any], figures: Sequence[Figure]) -> str:
    """The whole report as one HTML document with its charts inside."""
    parts = ["<h1>Transactions: running and recovering</h1>", _setting(results["setting"])]
    if figures:
        parts.append("<h2>Promises</h2>" + _promises(figures))
    rows = results.get("compare", [])
    if rows:
        parts.append("<h2>Schemes</h2>" + _table(rows))
        parts.append(_chart(breakdown_chart(rows), "Where recovery time goes"))
        parts.append(_chart(throughput_chart(rows), "Runtime throughput"))
    if results.get("factors"):
        parts.append(
            "<h2>What each optimisation of <code>fast</code> brings</h2>"
            + _chart(factor_chart(results["factors"]), "Factor analysis")
        )
    if results.get("scalability"):
        parts.append(
            "<h2>Threads</h2>" + _chart(scalability_chart(results["scalability"]), "Scalability")
        )
    if results.get("sensitivity"):
        parts.append(
            "<h2>Workload knobs</h2>"
            + _chart(sensitivity_chart(results["sensitivity"]), "Sensitivity of Grep and Sum")
        )
    if results.get("model"):
        parts.append(
            "<h2>More workers: a model, not a measurement</h2><p>Each scheme's schedule with the "
            "operation cost measured here; memory and contention are free. See the documentation "
            "for its assumptions.</p>"
            + _chart(model_chart(results["model"]), "Modelled makespan")
            + _gains(results["model"])
        )
    body = "\n".join(parts)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>Everstream transactions</title><style>{_STYLE}</style>{body}</html>"
    )


def _setting(setting: dict[str, Any]) -> str:
    items = "".join(
        f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in setting.items()
    )
    return f"<table>{items}</table>"


def _promises(figures: Sequence[Figure]) -> str:
    lines = []
    for figure in figures:
        verdict = "<td class='yes'>yes</td>" if figure.reached else "<td class='no'>no</td>"
        lines.append(
            f"<tr><td>{html.escape(figure.name)}</td><td>{figure.wanted:g}</td>"
            f"<td>{figure.measured:.2f}</td>{verdict}</tr>"
        )
    head = "<tr><th>figure</th><th>wanted</th><th>measured</th><th>reached</th></tr>"
    return f"<table>{head}{''.join(lines)}</table>"


def _table(rows: Sequence[Facts]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "workload", "scheme", "thousand/s", "detect ms", "start s", "recover s", "rerun s",
            "total s", *PARTS, "log MB", "peak MB", "disturbed", "true",
        )
    )  # fmt: skip
    lines = []
    for row in rows:
        recovery = row.get("recovery", {})
        cells = [
            row["workload"],
            row["scheme"],
            f"{row['throughput_per_s'] / 1e3:.1f}",
            f"{row.get('detection_s', 0) * 1e3:.1f}",
            *(f"{recovery.get(name, 0):.3f}" for name in ("start_s", "recover_s", "rerun_s")),
            f"{row.get('recovery_s', 0):.3f}",
            *(f"{recovery.get('breakdown', {}).get(f'{part}_s', 0):.3f}" for part in PARTS),
            f"{row['run']['bytes_logged'] / 1e6:.2f}",
            f"{row['run']['peak_bytes'] / 1e6:.0f}",
            f"{max(row['disturbed'], recovery.get('disturbed', 0)):.0%}",
            "yes" if recovery.get("true") else "not checked",
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _gains(models: dict[str, list[Makespan]]) -> str:
    """The factors over the next best beside the paper's, and why they differ."""
    lines = []
    for workload, spans in models.items():
        for span in spans:
            if span.workers == PAPER_WORKERS:
                wanted = PAPER_GAIN[workload]
                verdict = "reached" if span.gain >= wanted else "not reached"
                lines.append(
                    f"<tr><td>{workload}</td><td>{span.gain:.2f}</td><td>{wanted:g}</td>"
                    f"<td>{verdict}</td></tr>"
                )
    head = "<tr><th>workload</th><th>model</th><th>paper</th><th></th></tr>"
    return (
        f"<p><code>fast</code> over the next best scheme on {PAPER_WORKERS} workers. The paper "
        "measured a machine on which memory and contention are not free, with other shares of hot "
        "keys and aborts, so equal numbers are not to be expected: above its factor the model says "
        "what dependencies alone would allow; below it, the longest chain or the share of aborts "
        f"of this workload limits <code>fast</code>.</p><table>{head}{''.join(lines)}</table>"
    )


def _chart(figure: Any, title: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt='{html.escape(title)}' src='data:image/png;base64,{encoded}'>"


def _panels(names: Sequence[str], height: float = 3.6) -> tuple[Any, list[Any]]:
    figure, axes = plt.subplots(1, len(names), figsize=(4.6 * len(names), height), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def _legend(axes: list[Any]) -> None:
    axes[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _names(rows: Sequence[Facts], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


Draw = Callable[[Any, Sequence[Facts]], None]


def _by(column: str, rows: Sequence[Facts], draw: Draw, legend: bool = False) -> Any:
    """A panel per value of a column, in which its rows are drawn."""
    names = _names(rows, column)
    figure, axes = _panels([str(name).replace("_", " ") for name in names])
    for axis, name in zip(axes, names, strict=True):
        draw(axis, [row for row in rows if row[column] == name])
    if legend:
        _legend(axes)
    figure.tight_layout()
    return figure


def _recovered_over(column: str, axis: Any, rows: Sequence[Facts]) -> None:
    """A line per scheme: how many events it recovers a second."""
    for scheme in _names(rows, "scheme"):
        own = [row for row in rows if row["scheme"] == scheme]
        rates = [row["run"]["events"] / row["recovery"]["work_s"] / 1e3 for row in own]
        axis.plot([row[column] for row in own], rates, marker="o", label=scheme)
    axis.set_xticks(sorted(_names(rows, column)))
    axis.set_xlabel(column.replace("_", " "))
    axis.set_ylabel("thousand events recovered/s")
    axis.set_yscale("log")


def breakdown_chart(rows: Sequence[Facts]) -> Any:
    def draw(axis: Any, own: Sequence[Facts]) -> None:
        bottom = [0.0] * len(own)
        labels = [row["scheme"] for row in own]
        for part, colour in zip(PARTS, _COLOURS, strict=True):
            heights = [row["recovery"]["breakdown"][f"{part}_s"] for row in own]
            axis.bar(labels, heights, bottom=bottom, color=colour, label=part)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axis.tick_params(axis="x", rotation=40)
        axis.set_ylabel("seconds of a thread")

    return _by("workload", [row for row in rows if "recovery" in row], draw, legend=True)


def throughput_chart(rows: Sequence[Facts]) -> Any:
    def draw(axis: Any, own: Sequence[Facts]) -> None:
        heights = [row["throughput_per_s"] / 1e3 for row in own]
        axis.bar([row["scheme"] for row in own], heights, color="#457b9d")
        axis.tick_params(axis="x", rotation=40)
        axis.set_ylabel("thousand events/s")

    return _by("workload", rows, draw)


def factor_chart(rows: Sequence[Facts]) -> Any:
    def draw(axis: Any, own: Sequence[Facts]) -> None:
        lengths = [row["recovery"]["work_s"] for row in own]
        axis.barh([row["step"] for row in own], lengths, color="#2a9d8f")
        axis.invert_yaxis()
        axis.set_xlabel("recovery, s")

    return _by("workload", rows, draw)


def scalability_chart(rows: Sequence[Facts]) -> Any:
    return _by("workload", rows, partial(_recovered_over, "threads"), legend=True)


def sensitivity_chart(rows: Sequence[Facts]) -> Any:
    return _by("knob", rows, partial(_recovered_over, "value"), legend=True)


def model_chart(models: dict[str, list[Makespan]]) -> Any:
    figure, axes = _panels([f"{name} (model)" for name in models])
    for axis, spans in zip(axes, models.values(), strict=True):
        for scheme in spans[0].seconds:
            axis.plot(
                [span.workers for span in spans],
                [span.seconds[scheme] for span in spans],
                marker="o",
                label=scheme,
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks([span.workers for span in spans], [str(s.workers) for s in spans])
        axis.minorticks_off()
        axis.set_yscale("log")
        axis.set_xlabel("workers")
        axis.set_ylabel("modelled makespan, s")
    _legend(axes)
    figure.tight_layout()
    return figure
