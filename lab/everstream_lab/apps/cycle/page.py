"""An HTML page that needs nothing else, and the page of an execution: results, figures and curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import polars as pl

from everstream_lab.apps.cycle import charts
from everstream_lab.apps.cycle.charts import Chart, by_setting, over_time
from everstream_lab.apps.cycle.execute import Failure
from everstream_lab.apps.cycle.outcome import Outcome

STYLE = (
    charts.STYLE
    + """
a { color: var(--s0) }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2.5rem auto; padding: 0 1.5rem }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.2rem; margin-top: 2.4rem }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem }
.bar { display: inline-block; height: .6rem; min-width: 1px; background: var(--s0);
  border-radius: .15rem }
.verdict { display: inline-block; padding: .45rem 1rem; border-radius: .4rem; font-weight: 600 }
.good { background: var(--good) } .bad { background: var(--bad) } .dim { color: var(--dim) }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr));
  gap: 1.4rem }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: .92rem }
td, th { padding: .28rem 1.1rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap }
td:first-child, th:first-child, .words td, .words th { text-align: left } th { font-weight: 600; color: var(--dim) }
"""
)


@dataclass
class Page:
    """Put together from top to bottom, then written."""

    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, text: str, *, dim: bool = False) -> None:
        kind = ' class="dim"' if dim else ""
        self.parts.append(f"<p{kind}>{escape(text)}</p>")

    def verdict(self, text: str, good: bool) -> None:
        kind = "good" if good else "bad"
        self.parts.append(f'<p class="verdict {kind}">{escape(text)}</p>')

    def heading(self, text: str, level: int = 2) -> None:
        self.parts.append(f"<h{level}>{escape(text)}</h{level}>")

    def bars(self, head: Sequence[str], rows: Sequence[tuple[str, str, str, float]]) -> None:
        """A table of two words and a number each, with a bar of that share of the whole width."""
        cells = "".join(f"<th>{escape(name)}</th>" for name in head)
        body = "".join(
            f"<tr><td>{escape(one)}</td><td>{escape(other)}</td>"
            f'<td style="text-align: right">{escape(number)}</td>'
            f'<td><span class="bar" style="width: {share * 16:.2f}rem"></span></td></tr>'
            for one, other, number, share in rows
        )
        table = f'<table class="words"><tr>{cells}<th></th></tr>{body}</table>'
        self.parts.append(f'<div class="table">{table}</div>')

    def link(self, to: str, text: str) -> None:
        self.parts.append(f'<p><a href="{escape(to, quote=True)}">{escape(text)}</a></p>')

    def charts(self, some: Sequence[Chart]) -> None:
        drawn = "\n".join(f"<div>{chart.svg()}</div>" for chart in some)
        self.parts.append(f'<div class="charts">{drawn}</div>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        cells = "".join(f"<th>{escape(name)}</th>" for name in head)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        self.parts.append(f'<div class="table"><table><tr>{cells}</tr>{body}</table></div>')

    def html(self) -> str:
        title = escape(self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            + "\n".join(self.parts)
            + "\n</body></html>\n"
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html())


MOST_RUNS_OVER_TIME = 6
"""More curves in one chart are unreadable."""
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
    page.heading("Order of items")
    page.table(
        ("run", "displacement", "overtaken by, mean", "reorder buffer, most items"),
        [
            [
                names[one.planned.number],
                str(one.planned.settings.clutter),
                _or_dash(one.overtaken, ",.2f"),
                _or_dash(one.reorder_buffer, ",.0f"),
            ]
            for one in measured
        ],
    )
    page.text(
        "An item is overtaken by those behind it that the last stage was done with before it. The "
        "reorder buffer holds items that wait for one in front of them. latency.csv has a row per "
        "item, with its number, each operator's time and how many overtook it.",
        dim=True,
    )


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
    # Each application has its own batch size, so it does not distinguish two series.
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
    distinct = [{_part(one, name) for one in outcomes} for name in PARTS]
    shared = [next(iter(values)) for values in distinct if len(values) == 1]
    return f"{', '.join(shared).capitalize()}." if shared else ""


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
            return planned.driven


def _three_digits(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
