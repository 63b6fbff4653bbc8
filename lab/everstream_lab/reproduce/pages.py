"""Writes what was measured as Markdown: an index of every table and figure, and a page per paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everstream_lab.reproduce.drawing import draw
from everstream_lab.reproduce.exhibit import Exhibit, Found, Judged, Judgement, Place, Point, shown
from everstream_lab.reproduce.experiments import Experiment, Inventory
from everstream_lab.reproduce.results import Results

FRONT = "---\nkind: explanation\n---\n"
MOST_ROWS = 80
"""A table of values with more rows is left to the chart."""


@dataclass(frozen=True)
class Shown:
    """An exhibit with what was measured for it."""

    exhibit: Exhibit
    experiments: Sequence[Experiment]
    found: Found
    judged: Sequence[Judged]
    unfinished: int
    """Steps without a result."""

    @property
    def verdict(self) -> str:
        """In a few words, for a table."""
        counts = {one: sum(j.judgement is one for j in self.judged) for one in Judgement}
        missing = sum(one.judgement is None for one in self.judged)
        words = [f"{count} {one}" for one, count in counts.items() if count]
        if missing:
            words.append(f"{missing} not measured")
        return ", ".join(words)


MOST_NAMED = 3
"""A table made by more experiments has the command of its whole paper."""


def command_of(exhibit: Exhibit) -> str:
    """The command that regenerates it, and as little else as possible."""
    only = exhibit.experiments if len(exhibit.experiments) <= MOST_NAMED else ()
    return " ".join(["everstream reproduce", exhibit.paper, *(f"--only {one}" for one in only)])


def shown_of(inventory: Inventory, results: Results) -> list[Shown]:
    every = []
    for exhibit in inventory.exhibits:
        experiments = inventory.experiments_of(exhibit)
        measured = Found.together([results.found(one) for one in experiments])
        found = exhibit.found(measured)
        judged = [one.judge(found) for one in exhibit.statements]
        unfinished = sum(len(results.missing(one)) for one in experiments)
        every.append(Shown(exhibit, experiments, found, judged, unfinished))
    return every


def write_pages(inventory: Inventory, results: Results, out: Path) -> list[Path]:
    """The index and the pages, with pictures in a folder per paper."""
    every = shown_of(inventory, results)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "index.md"]
    about = _setting(inventory.experiments, results)
    paths[0].write_text(_index(inventory, every, about))
    for paper, title in inventory.titles.items():
        own = [one for one in every if one.exhibit.paper == paper]
        path = out / f"{paper}.md"
        experiments = [one for one in inventory.experiments if one.paper == paper]
        about = _setting(experiments, results)
        path.write_text(_page(title, own, inventory.drawings.get(paper, ""), out / paper, about))
        paths.append(path)
    return paths


def _index(inventory: Inventory, every: Sequence[Shown], about: Sequence[str]) -> str:
    lines = [
        FRONT + "# Evidence",
        "",
        "This page lists every table and figure with numbers in the five papers that Everstream is "
        "built from: the command that regenerates it, and what came of it. A statement is one thing "
        "that a paper says about a table or figure, with a number. What follows *because* is a fact "
        "about how something is built or counted, or is worked out from the same measurements. Where "
        "neither explains a difference, the page has *not explained*.",
        "",
        *about,
        "",
        *_total(every),
        "",
    ]
    for paper, title in inventory.titles.items():
        lines += [f"## {title}", "", "| | shows | command | verdict |", "| --- | --- | --- | --- |"]
        for one in every:
            if one.exhibit.paper == paper:
                link = f"[{one.exhibit.label}]({paper}.md#{_anchor(one.exhibit.label)})"
                command = f"`{command_of(one.exhibit)}`"
                lines.append(f"| {link} | {one.exhibit.title} | {command} | {one.verdict} |")
        if inventory.drawings.get(paper):
            lines += ["", f"Without numbers to measure: {inventory.drawings[paper]}."]
        lines.append("")
    lines += [
        "## How this is tested",
        "",
        "`tests/lab/reproduce` compares the list with the tables and figures of the papers, stops a "
        "run and continues it, and checks each verdict with made-up measurements.",
    ]
    return "\n".join(lines) + "\n"


def _total(every: Sequence[Shown]) -> list[str]:
    judged = [one for exhibit in every for one in exhibit.judged]
    counts = [
        f"{sum(one.judgement is kind for one in judged)} {kind}" for kind in Judgement
    ]  # fmt: skip
    missing = sum(one.judgement is None for one in judged)
    return [
        f"{len(every)} tables and figures, {len(judged)} statements: {', '.join(counts)}, "
        f"{missing} not measured."
    ]


def _anchor(label: str) -> str:
    """As the page of a site names the heading."""
    return label.replace(".", "").replace(" ", "-")


def _setting(experiments: Sequence[Experiment], results: Results) -> list[str]:
    """When and on what the shown numbers were measured, as the results tell it."""
    every = results.of(experiments)
    if not every:
        return ["Nothing is measured yet."]
    effort = "a quick run (`--quick`)" if results.effort.quick else "a full run"
    days = sorted({one.date for one in every if one.date})
    when = f" on {days[0]}" if len(days) == 1 else f" from {days[0]} to {days[-1]}" if days else ""
    machines = dict.fromkeys(one.machine for one in every if one.machine)
    minutes = sum(one.took_s for one in every) / 60
    return [
        f"Measured in {effort}{when}: {'; '.join(machines) or 'a machine that is not named'}. Its "
        f"{len(every)} steps took {minutes:.0f} minutes. Intervals are of 95 % over the repetitions; "
        "where there is none, there was one repetition."
    ]


def _page(
    title: str, own: Sequence[Shown], drawings: str, pictures: Path, about: Sequence[str]
) -> str:
    lines = [
        FRONT + f"# {title}",
        "",
        "This page has our numbers beside those of the paper, table by table and figure by figure.",
        "",
        *about,
        "",
    ]
    for one in own:
        lines += _section(one, pictures)
    if drawings:
        lines += ["## Without numbers", "", f"{drawings[0].upper()}{drawings[1:]}.", ""]
    return "\n".join(lines)


def _section(one: Shown, pictures: Path) -> list[str]:
    exhibit = one.exhibit
    head = f"{exhibit.label[0].upper()}{exhibit.label[1:]}"
    title = f"{exhibit.title[0].upper()}{exhibit.title[1:]}."
    lines = [f"## {head}", "", title, ""]
    commands = " or ".join(
        dict.fromkeys(f"`{experiment.command}`" for experiment in one.experiments)
    )
    lines += [f"Command: `{command_of(exhibit)}`; alone: {commands}.", ""]
    lines += [f"Scale: {exhibit.scale}.".replace("..", "."), ""]
    if one.unfinished:
        lines += [f"{one.unfinished} steps of its experiments have no result yet.", ""]
    lines += [f"- {judged.sentence}" for judged in one.judged] + [""]
    lines += [f"Note: {note}\n" for note in exhibit.notes]
    for picture in draw(exhibit, one.found, pictures):
        alt = f"{exhibit.label}: {exhibit.title}"
        lines += [f"![{alt}]({pictures.name}/{picture.name})", ""]
    lines += _values(one)
    return lines


def _values(one: Shown) -> list[str]:
    """Tables of our values beside the printed ones, where there are not too many to read."""
    exhibit = one.exhibit
    names = dict.fromkeys([*(panel.quantity for panel in exhibit.panels), *exhibit.printed])
    lines: list[str] = []
    for quantity in names:
        printed = _by_place(exhibit.printed.get(quantity, ()))
        deviations = _by_place(exhibit.deviations.get(quantity, ()))
        keys: dict[tuple[str, Place], None] = {
            (curve, at): None
            for curve in one.found.curves(quantity)
            if curve.startswith(exhibit.curves)
            for at, _ in one.found.curve(quantity, curve)
        }
        keys |= dict.fromkeys(printed)
        if not keys or (len(keys) > MOST_ROWS and not printed):
            continue
        head = [quantity, "", "here", "paper"]
        if deviations:
            head += ["deviation here", "deviation in the paper"]
        lines += ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
        for curve, at in sorted(keys, key=lambda key: not one.found.at(quantity, *key)):
            ours = one.found.at(quantity, curve, at)
            half = "" if ours is None or ours.low is None else f" ± {shown(ours.mean - ours.low)}"
            here = "" if ours is None else f"{shown(ours.mean)}{half}"
            place = at if isinstance(at, str) else f"{at:g}"
            row = [curve, place, here, _shown(printed.get((curve, at)))]
            if deviations:
                several = ours is not None and ours.runs > 1
                row.append(shown(ours.deviation) if ours is not None and several else "")
                row.append(_shown(deviations.get((curve, at))))
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    return lines


def _by_place(points: Sequence[Point]) -> dict[tuple[str, Place], float]:
    return {(curve, at): value for curve, at, value in points}


def _shown(value: float | None) -> str:
    return "" if value is None else shown(value)
