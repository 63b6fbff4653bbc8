"""Puts a finished grid beside the CCRR study: tables for the terminal, figures for a folder."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from everstream.planning.figures import COLOURS, new_axes, save
from everstream.planning.units import show_count, show_duration
from everstream_lab.queueing import equations, grid, paper
from everstream_lab.queueing.figures import behaviours
from everstream_lab.queueing.simulation import simulate

_MARKERS = {1: "o", 2: "s", 3: "^", 4: "D"}


def by_rate(
    grid: paper.Grid, field: str, title: str, up: str, scale: float, path: Path, log: bool = False
) -> Path:
    """One line per case over the arrival rate: figures 8 and 9."""
    figure, axis = new_axes(title, "arrival rate (tuples/s)", up)
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
            color=COLOURS[case.number],
            marker=_MARKERS[case.number],
            label=f"case {case.number}: {case.title}",
        )
    if log:
        axis.set_yscale("log")
    axis.legend(frameon=False, fontsize=8)
    return save(figure, path)


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
    figure, axis = new_axes(title, "window (million tuples)", up)
    for case_number, by_size in windows.items():
        case = paper.CASES[case_number - 1]
        sizes = sorted(by_size)
        label = "no failures" if case_number == 2 else "one node fails"
        axis.plot(
            [size / 1e6 for size in sizes],
            [getattr(by_size[size], field) * scale for size in sizes],
            color=COLOURS[case_number],
            marker=_MARKERS[case_number],
            label=f"simulated, {label}",
        )
        axis.plot(
            [size / 1e6 for size in sizes],
            [window_formula(case, size, rate_per_s, field) * scale for size in sizes],
            color=COLOURS[case_number],
            linestyle="--",
            label=f"equation, {label}",
        )
    axis.legend(frameon=False, fontsize=8)
    return save(figure, path)


def window_formula(case: paper.Case, tuples: int, rate_per_s: float, field: str) -> float:
    """Equations 1, 3, 5 and 6 for one case and window."""
    work_s = tuples / rate_per_s
    interval_s = case.interval_s or math.inf
    if field == "window_s":
        if not case.failing:
            return equations.run_time_without_failures_s(work_s, interval_s, case.commit_s)
        return equations.run_time_with_failures_s(
            work_s, interval_s, case.commit_s, case.recovery_s, case.mtbf_s
        )
    if not case.failing:
        return equations.loss_without_failures(rate_per_s, work_s, interval_s, case.commit_s)
    return equations.loss_with_failures(
        rate_per_s, work_s, interval_s, case.commit_s, case.recovery_s, case.mtbf_s
    )


def judged_grid(rows: Sequence[grid.Row], tuples: int) -> dict[tuple[int, int], paper.Point]:
    """Cases 1 and 2 from the study's replications, 3 and 4 from the long series.

    Ten replications leave some per cent of chance in the means of the failing cases; four
    hundred coarse ones (same times, fewer tuples) leave under half a per cent. Waits are always
    those of the study's replications.
    """
    plain = grid.summarise(rows, "paper", tuples)
    long = grid.summarise(rows, "long", tuples)
    return {
        **plain,
        **{
            at: replace(point, mean_wait_s=plain[at].mean_wait_s if at in plain else ())
            for at, point in long.items()
        },
    }


def whole_tuples(rows: Sequence[grid.Row], tuples: int) -> bool:
    """Whether each simulated tuple is one of the study's, so that waiting times mean something."""
    of_study = [row.task for row in rows if row.task.variant == "paper"]
    return all(task.coarse == 1 for task in of_study if task.tuples == tuples)


def window_points(rows: Sequence[grid.Row], tuples: int) -> dict[int, dict[int, paper.Point]]:
    """By case and window size, at 5000 tuples/s: figures 6 and 7."""
    sizes = sorted({row.task.tuples for row in rows if row.task.variant == "paper"})
    return {
        case: {size: grid.summarise(rows, "paper", size)[case, 5000] for size in sizes}
        for case in (2, 3)
    }


def show(rows: Sequence[grid.Row], tuples: int, waits: bool, console: Console) -> None:
    """Print everything the study states, next to ours."""
    if tuples != paper.WINDOW_TUPLES:
        console.print(
            "The study's window is 10 million tuples. A smaller one sees fewer failures, so the "
            "failing cases cannot be compared; use --coarse for a quick run.",
            style="yellow",
        )
    _show_claims(rows, tuples, console)
    _show_windows(rows, tuples, console)
    if waits:
        _show_waits(rows, tuples, console)
    _show_variants(rows, tuples, console)
    _show_readings(rows, tuples, console)
    console.print("\n[bold]Where the study is at odds with itself[/bold]")
    for text in paper.CONTRADICTIONS:
        console.print(f"  - {text}", highlight=False)


def _show_claims(rows: Sequence[grid.Row], tuples: int, console: Console) -> None:
    table = Table(title="What the study prints, and ours")
    for name in ("case", "quantity", "study", "ours", "difference", "allowed", "10 replications"):
        table.add_column(name, justify="left" if name == "quantity" else "right")
    ten = grid.summarise(rows, "paper", tuples)
    judged = judged_grid(rows, tuples)
    for compared in paper.compare(judged, tuples, whole_tuples(rows, tuples)):
        claim = compared.claim
        mark = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "-"}[compared.within]
        allowed = "-" if claim.tolerance is None else f"{claim.tolerance:.0%} {mark}"
        note = f"\n[dim]{claim.note}[/dim]" if claim.note else ""
        table.add_row(
            str(claim.case),
            claim.what + note,
            _short(claim.paper),
            _short(compared.measured),
            f"{compared.difference:+.1%}",
            allowed,
            _short(claim.measure(ten)),
        )
    console.print(table)


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 100 else show_count(value)


def _show_windows(rows: Sequence[grid.Row], tuples: int, console: Console) -> None:
    table = Table(title="Figures 6 and 7: equations against the simulation at 5000 tuples/s")
    for name in ("window", "case", "latency", "equation", "error", "lost", "equation", "error"):
        table.add_column(name, justify="right")
    for case, by_size in window_points(rows, tuples).items():
        for size, point in by_size.items():
            study = paper.CASES[case - 1]
            time_s = window_formula(study, size, 5000, "window_s")
            lost = window_formula(study, size, 5000, "lost")
            table.add_row(
                show_count(size),
                str(case),
                show_duration(point.window_s),
                show_duration(time_s),
                f"{time_s / point.window_s - 1:+.1%}",
                show_count(point.lost),
                show_count(lost),
                f"{lost / point.lost - 1:+.1%}" if point.lost else "-",
            )
    console.print(table)
    console.print(
        "The study reports errors of at most 1.5 % and 10.5 % for latency, 1 % and 11.6 % for "
        "loss, for window sizes it does not name. Equation 3 adds work done again, which this "
        "system does not do; equation 6 counts one failure more than strikes, and a window "
        "shorter than M sees none.",
        highlight=False,
    )


def _show_waits(rows: Sequence[grid.Row], tuples: int, console: Console) -> None:
    simulated = grid.summarise(rows, "paper", tuples)
    bound = {
        rate: simulate(paper.busiest_model(rate, 200_000)).mean_wait_s for rate in paper.RATES_PER_S
    }
    for case in paper.CASES:
        table = Table(
            title=f"Table {case.number + 1}: mean wait in case {case.number}, us "
            "(study / ours / one CPU and sources in step)"
        )
        table.add_column("rate", justify="right")
        for name in paper.OPERATORS:
            table.add_column(name, justify="right")
        for rate in paper.RATES_PER_S:
            cells = []
            for i in range(len(paper.OPERATORS)):
                printed = paper.paper_wait_s(case.number, rate, i)
                wait_s = simulated[case.number, rate].mean_wait_s[i]
                text = "-" if printed is None else f"{printed * 1e6:.0f}"
                cells.append(f"{text} / {wait_s * 1e6:.1f} / {bound[rate][i] * 1e6:.0f}")
            table.add_row(str(rate), *cells)
        console.print(table)


def _show_variants(rows: Sequence[grid.Row], tuples: int, console: Console) -> None:
    table = Table(
        title="The intervals used, those equation 4 gives, and backlog instead of discard"
    )
    for name in ("case", "variant", "interval", "latency", "lost", "unprocessed", "replayed",
                 "catch-up", "later than 1 s"):  # fmt: skip
        table.add_column(name, justify="right")
    for case in paper.CASES[1:]:
        for variant in ("paper", "equation", "backlog"):
            chosen = [
                row
                for row in rows
                if row.task.variant == variant
                and row.task.case == case.number
                and row.task.tuples == tuples
            ]
            interval_s = case.equation_interval_s if variant == "equation" else case.interval_s
            catch_ups = [value for row in chosen for value in row.catch_up_s]
            ratio = statistics.fmean(
                row.window_s * row.task.rate_per_s / row.task.tuples for row in chosen
            )
            table.add_row(
                str(case.number),
                {"paper": "as used", "equation": "equation 4"}.get(variant, "backlog"),
                show_duration(interval_s or 0),
                f"{ratio - 1:+.1%}",
                f"{statistics.fmean(r.lost for r in chosen) / tuples:.2%}",
                f"{statistics.fmean(r.unprocessed for r in chosen) / tuples:.2%}",
                f"{statistics.fmean(r.replayed for r in chosen) / tuples:.2%}",
                show_duration(statistics.fmean(catch_ups)) if catch_ups else "-",
                f"{statistics.fmean(r.late_share for r in chosen):.1%}",
            )
    console.print(table)


def _show_readings(rows: Sequence[grid.Row], tuples: int, console: Console) -> None:
    table = Table(title="What each reading of the text gives (study: 10.1, 5.3, 95, 12 %)")
    for name in ("gap", "counts from", "recovery", "two nodes", "lost 3", "unprocessed 3", "lost 4",
                 "unprocessed 4"):  # fmt: skip
        table.add_column(name, justify="right")
    for index, reading in enumerate(paper.READINGS):
        points = grid.summarise(rows, "reading", tuples, index)

        def share(case: int, field: str, points: Any = points) -> str:
            if (case, paper.RATES_PER_S[0]) not in points:
                return "same"
            mean = statistics.fmean(getattr(points[case, r], field) for r in paper.RATES_PER_S)
            return f"{mean / tuples:.1%}"

        table.add_row(
            reading.gap + (" (ours)" if index == 0 else ""),
            "failure" if reading.clock == "between_failures" else "repair",
            reading.recovery.replace("_", " "),
            "apart" if reading.clocks == "own" else "at once",
            share(3, "lost"),
            share(3, "unprocessed"),
            share(4, "lost"),
            share(4, "unprocessed"),
        )
    console.print(table)


def draw(rows: Sequence[grid.Row], tuples: int, folder: Path) -> list[Path]:
    """Figures 6 to 9, and both behaviours side by side."""
    points = grid.summarise(rows, "paper", tuples)
    windows = window_points(rows, tuples)
    case, rate, coarse = paper.CASES[2], 5000, max(1, tuples // 100_000)
    discard, backlog = (
        simulate(paper.case_model(case, rate, tuples, behaviour=behaviour, coarse=coarse), 3)
        for behaviour in ("discard", "backlog")
    )
    return [
        by_window(windows, 5000, "lost", "Figure 6: loss", "tuples lost (million)", 1e-6,
                          folder / "figure-6.png"),
        by_window(windows, 5000, "window_s", "Figure 7: latency", "latency (s)", 1.0,
                          folder / "figure-7.png"),
        by_rate(points, "window_s", "Figure 8a: latency", "latency of the window (s)", 1.0,
                        folder / "figure-8a.png"),
        by_rate(points, "throughput", "Figure 8b: throughput", "tuples/s", float(tuples),
                        folder / "figure-8b.png"),
        by_rate(points, "unprocessed", "Figure 9a: unprocessed", "tuples (million)", 1e-6,
                        folder / "figure-9a.png"),
        by_rate(points, "lost", "Figure 9b: lost", "tuples (million)", 1e-6,
                        folder / "figure-9b.png"),
        behaviours(discard, backlog, folder / "behaviours.png"),
    ]  # fmt: skip


def as_json(rows: Sequence[grid.Row], tuples: int) -> dict[str, Any]:
    """The comparison for programs."""
    return {
        "tuples": tuples,
        "claims": [
            {
                "case": compared.claim.case,
                "quantity": compared.claim.what,
                "paper": compared.claim.paper,
                "ours": compared.measured,
                "difference": compared.difference,
                "tolerance": compared.claim.tolerance,
                "within": compared.within,
                "note": compared.claim.note,
            }
            for compared in paper.compare(
                judged_grid(rows, tuples), tuples, whole_tuples(rows, tuples)
            )
        ],
        "points": [
            {
                "case": case,
                "rate_per_s": rate,
                "window_s": point.window_s,
                "window_half_width_s": point.window_half_width_s,
                "lost": point.lost,
                "lost_half_width": point.lost_half_width,
                "unprocessed": point.unprocessed,
                "mean_wait_s": point.mean_wait_s,
            }
            for (case, rate), point in sorted(grid.summarise(rows, "paper", tuples).items())
        ],
        "cpu_s": sum(row.cpu_s for row in rows),
    }
