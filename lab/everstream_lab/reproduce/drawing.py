"""Draws the charts of an exhibit: ours on the left, the paper's printed values on the right."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstream.planning.figures import save
from everstream_lab.apps.cycle.estimates import Estimate
from everstream_lab.reproduce.exhibit import Exhibit, Found, Panel, Place, Point

MOST_MARKED = 40
"""A curve with more points is drawn without marks."""
MOST_TICKS = 6
"""With fewer places across, each has its mark."""
Curves = Mapping[str, Sequence[tuple[Place, Estimate]]]


def draw(exhibit: Exhibit, found: Found, folder: Path) -> list[Path]:
    """One picture per panel that has something to show."""
    paths = []
    for number, panel in enumerate(exhibit.panels):
        ours = {
            curve.removeprefix(exhibit.curves).lstrip(", ") or curve: found.curve(
                panel.quantity, curve
            )
            for curve in found.curves(panel.quantity)
            if curve.startswith(exhibit.curves)
        }
        if not ours:
            continue
        theirs = _printed(exhibit.printed.get(panel.quantity, ()), exhibit.curves)
        path = folder / f"{exhibit.label.replace(' ', '-').replace('.', '-')}-{number + 1}.png"
        paths.append(_picture(exhibit, panel, ours, theirs, path))
    return paths


def _printed(points: Sequence[Point], prefix: str) -> Curves:
    curves: dict[str, list[tuple[Place, Estimate]]] = {}
    for curve, at, value in points:
        name = curve.removeprefix(prefix).lstrip(", ") or curve
        curves.setdefault(name, []).append((at, Estimate(value, 0.0, 1, None, None)))
    return curves


def _picture(exhibit: Exhibit, panel: Panel, ours: Curves, theirs: Curves, path: Path) -> Path:
    from matplotlib import pyplot as plt

    sides = [("here", ours), *([("in the paper", theirs)] if theirs else [])]
    figure, axes = plt.subplots(
        1, len(sides), figsize=(6.4 * len(sides), 4.4), squeeze=False, constrained_layout=True
    )
    for axis, (title, curves) in zip(axes[0], sides, strict=True):
        axis.set_title(f"{exhibit.label}, {title}", fontsize=11)
        axis.set_xlabel(panel.across)
        axis.set_ylabel(panel.up)
        axis.grid(True, axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        (_lines if panel.kind == "lines" else _bars)(axis, curves)
        if panel.log and any(one.mean > 0 for curve in curves.values() for _, one in curve):
            axis.set_yscale("log")
        elif axis.get_ylim()[0] > 0:
            axis.set_ylim(bottom=0)
        if len(curves) > 1:
            axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save(figure, path)


def _half(one: Estimate) -> float:
    return 0.0 if one.low is None else one.mean - one.low


def _lines(axis: Any, curves: Curves) -> None:
    from matplotlib import colormaps

    places = sorted(
        {at for points in curves.values() for at, _ in points if not isinstance(at, str)}
    )
    if len(places) <= MOST_TICKS:
        axis.set_xticks(places, [f"{at:g}" for at in places])
    for number, (name, points) in enumerate(curves.items()):
        some = [(at, one) for at, one in points if not isinstance(at, str)]
        marker = "o" if len(some) <= MOST_MARKED else ""
        axis.errorbar(
            [at for at, _ in some],
            [one.mean for _, one in some],
            yerr=[_half(one) for _, one in some] if marker else None,
            marker=marker, markersize=4, capsize=2, linewidth=1.2, label=name,
            color=colormaps["tab20"](number % 20), linestyle=("-", "--", ":")[number // 7 % 3],
        )  # fmt: skip


def _bars(axis: Any, curves: Curves) -> None:
    from matplotlib import colormaps

    places = list(dict.fromkeys(at for points in curves.values() for at, _ in points))
    width = 0.8 / max(1, len(curves))
    for number, (name, points) in enumerate(curves.items()):
        at = [places.index(place) + (number - (len(curves) - 1) / 2) * width for place, _ in points]
        heights = [one.mean for _, one in points]
        errors = [_half(one) for _, one in points]
        axis.bar(
            at, heights, width=width * 0.92, yerr=errors if any(errors) else None, label=name,
            color=colormaps["tab20"](number % 20), capsize=2,
        )  # fmt: skip
    axis.set_xticks(range(len(places)), [str(place) for place in places])
    if len(places) > 4:
        axis.tick_params(axis="x", rotation=30)
