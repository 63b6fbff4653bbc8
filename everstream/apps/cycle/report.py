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
PARTS = ("interface", "workers", "batch", "size")
"""What runs of one application may differ in."""
STEPS = {
    "detected": "detected_ms",
    "restarted": "restarted_ms",
    "restored": "restored_ms",
    "replayed": "replayed_ms",
    "caught up": "caught_up_ms",
}
"""Heading -> the entry of a recovery's report."""


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
        f"{common(outcomes)} ms, p99 ms: latency of an item. CPU %: of one core. kills: failures "
        "survived.",
        dim=True,
    )
    _survived(page, outcomes)
    points = tables["parallelism"]
    for across, other in (("workers", "batch"), ("batch", "workers")):
        if points.group_by("application").agg(pl.col(across).n_unique())[across].max() != 1:
            page.heading(f"By {across}")
            page.charts(by_setting(points, across, ("application", "interface", other)))
    if "monitor" in tables:
        _moments(page, outcomes, tables["monitor"])
    _operators(page, outcomes)
    names = labels(outcomes)
    notes = [(names[one.planned.number], note) for one in outcomes for note in one.notes]
    if notes:
        page.heading("What the runs said")
    for name, note in dict.fromkeys(notes):
        page.text(f"{name}: {note}", dim=True)
    page.text(
        "Latency runs from the source turning to an item to its result being with the sink. CPU and "
        "memory are those of the processes that worked, Spark's among them.",
        dim=True,
    )
    return page


def _survived(page: Page, outcomes: Sequence[Outcome]) -> None:
    """Each failure, and how long it took until all was as before."""
    names = labels(outcomes)
    rows = [
        [
            names[outcome.planned.number],
            *([f"{one['at_s']:.2f}"] if "at_s" in one else ["-"]),
            *(_or_dash(one.get(step), ",.0f") for step in STEPS.values()),
            f"{one['records_replayed']:,}",
        ]
        for outcome in outcomes
        for one in outcome.recoveries
    ]
    if rows:
        page.heading("Failures survived")
        page.table(("run", "killed after, s", *STEPS, "records again"), rows)
        page.text("Steps of a recovery in ms after the kill.", dim=True)


def _moments(page: Page, outcomes: Sequence[Outcome], monitor: pl.DataFrame) -> None:
    """The curves over time: those of one application together, each failure marked."""
    page.heading("From moment to moment")
    names = labels(outcomes)
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        if one.planned.repeat == 0:
            groups.setdefault(one.planned.application, []).append(one)
    for application, some in groups.items():
        chosen = some[:MOST_RUNS_OVER_TIME]
        if len(groups) > 1:
            page.heading(Path(application).stem, level=3)
        marks = [
            (recovery["at_s"], "kill")
            for one in chosen
            for recovery in one.recoveries
            if "at_s" in recovery
        ]
        curves = {one.planned.number: names[one.planned.number] for one in chosen}
        page.charts(over_time(monitor, curves, marks=marks))
        if left_out := len(some) - len(chosen):
            page.text(f"{left_out} more setting(s) are in monitor.csv and not drawn.", dim=True)


def _operators(page: Page, outcomes: Sequence[Outcome]) -> None:
    names = labels(outcomes)
    measured = [one for one in outcomes if one.operators_ms]
    if not measured:
        return
    page.heading("Time of an item in each operator")
    rows = []
    for one in measured:
        whole = sum(one.operators_ms.values()) or 1.0
        for number, (name, ms) in enumerate(one.operators_ms.items()):
            first = names[one.planned.number] if number == 0 else ""
            rows.append((first, name, f"{ms:,.3f}", ms / whole))
    page.bars(("run", "operator", "mean, ms"), rows)


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
    names = labels(outcomes)
    return head, [
        [
            names[one.planned.number],
            f"{one.items:,}",
            f"{one.wall_s:.2f}",
            f"{one.items_per_s:,.1f}",
            _three_digits(one.latency_ms),
            _three_digits(one.latency_p99_ms),
            _or_dash(one.cpu_percent, ".0f"),
            _or_dash(None if one.memory_kb is None else one.memory_kb / 1024, ",.0f"),
            str(len(one.recoveries)),
            {True: "exact", False: "WRONG", None: "not compared"}[one.exact],
        ]
        for one in outcomes
    ]


def labels(outcomes: Sequence[Outcome]) -> dict[int, str]:
    """Run -> its application, and whatever else tells it from the others."""
    several = {name for name in PARTS if len({_part(one, name) for one in outcomes}) > 1}
    # Each application has a batch of its own: that tells it from no other.
    seen = {(one.planned.application, one.planned.batch) for one in outcomes}
    if len(seen) == len({application for application, _ in seen}):
        several.discard("batch")
    return {
        one.planned.number: ", ".join(
            [Path(one.planned.application).stem]
            + [_part(one, name) for name in PARTS if name in several]
            + ([f"repeat {one.planned.repeat + 1}"] if one.planned.repeat else [])
        )
        for one in outcomes
    }


def common(outcomes: Sequence[Outcome]) -> str:
    """What all runs have in common, as a sentence; empty if that is nothing."""
    found = [{_part(one, name) for one in outcomes} for name in PARTS]
    words = [next(iter(values)) for values in found if len(values) == 1]
    return f"{', '.join(words).capitalize()}." if words else ""


def _part(outcome: Outcome, name: str) -> str:
    planned = outcome.planned
    match name:
        case "workers":
            return f"{planned.workers} worker{'s' if planned.workers > 1 else ''}"
        case "batch":
            return f"batch {planned.batch}"
        case "size":
            return f"input {planned.size}"
        case _:
            return planned.interface


def _three_digits(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
