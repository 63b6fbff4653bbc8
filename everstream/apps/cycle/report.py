"""The page of an execution: whether results were right, what was measured, and its curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from everstream.apps.cycle.curves import by_setting, over_time
from everstream.apps.cycle.execute import Failure
from everstream.apps.cycle.outcome import Outcome
from everstream.apps.cycle.page import Page

MOST_RUNS_OVER_TIME = 6
"""More curves in one chart tell nobody anything."""


def report(
    title: str,
    outcomes: Sequence[Outcome],
    tables: Mapping[str, pl.DataFrame],
    failures: Sequence[Failure] = (),
) -> Page:
    page = Page(title)
    page.verdict(*verdict(outcomes, failures))
    for one in failures:
        page.text(f"Failed: {one.text}")
    page.table(*runs_table(outcomes))
    page.text(
        "ms, p99 ms: latency of an item. CPU %: of one core. kills: failures survived.", dim=True
    )
    recoveries = [one for outcome in outcomes for one in outcome.recoveries]
    if recoveries:
        page.text(f"{len(recoveries)} failure(s) were survived; times are from the kill on.")
    points = tables["parallelism"]
    for across, other in (("workers", "batch"), ("batch", "workers")):
        if points[across].n_unique() > 1:
            page.heading(f"By {across}")
            page.charts(by_setting(points, across, ("application", "interface", other)))
    if "monitor" in tables:
        page.heading("From moment to moment")
        chosen = _first_of_each(outcomes)[:MOST_RUNS_OVER_TIME]
        left_out = len(_first_of_each(outcomes)) - len(chosen)
        names = {one.planned.number: label(one) for one in chosen}
        page.charts(over_time(tables["monitor"], names))
        if left_out:
            page.text(f"{left_out} more setting(s) are in monitor.csv and not drawn.", dim=True)
    operators = [one for one in outcomes if one.operators_ms]
    if operators:
        page.heading("Time of an item in each operator")
        rows = [
            [label(one), name, f"{ms:.4f}"]
            for one in operators
            for name, ms in one.operators_ms.items()
        ]
        page.table(("run", "operator", "mean, ms"), rows)
    notes = sorted({note for outcome in outcomes for note in outcome.notes})
    for note in notes:
        page.text(note, dim=True)
    page.text(
        "Latency runs from the source turning to an item to its result being with the sink. CPU and "
        "memory are those of the processes that worked, Spark's among them.",
        dim=True,
    )
    return page


def verdict(outcomes: Sequence[Outcome], failures: Sequence[Failure] = ()) -> tuple[str, bool]:
    """Whether all results are the sequential program's, in words."""
    if failures:
        return f"{len(failures)} of {len(outcomes) + len(failures)} runs failed", False
    looked = [outcome for outcome in outcomes if outcome.exact is not None]
    wrong = [outcome for outcome in looked if not outcome.exact]
    if wrong:
        return f"{len(wrong)} of {len(looked)} results differ from the sequential program's", False
    if not looked:
        return f"{len(outcomes)} run(s), results not compared", True
    return f"{len(looked)} result(s), all as the sequential program's", True


def runs_table(outcomes: Sequence[Outcome]) -> tuple[Sequence[str], list[list[str]]]:
    head = ("run", "items", "s", "items/s", "ms", "p99 ms", "CPU %", "MB", "kills", "result")
    return head, [
        [
            label(one),
            f"{one.items:,}",
            f"{one.wall_s:.2f}",
            f"{one.items_per_s:,.1f}",
            _or_dash(one.latency_ms, ".2f"),
            _or_dash(one.latency_p99_ms, ".2f"),
            _or_dash(one.cpu_percent, ".0f"),
            _or_dash(None if one.memory_kb is None else one.memory_kb / 1024, ".0f"),
            str(len(one.recoveries)),
            {True: "exact", False: "WRONG", None: "not compared"}[one.exact],
        ]
        for one in outcomes
    ]


def label(outcome: Outcome) -> str:
    """What tells this run from the others: application, interface, workers x batch."""
    planned = outcome.planned
    again = f", repeat {planned.repeat + 1}" if planned.repeat else ""
    application = Path(planned.application).stem
    return f"{application} {planned.interface}, {planned.workers} x {planned.batch}{again}"


def _first_of_each(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.planned.repeat == 0]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
