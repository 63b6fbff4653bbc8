"""All figures by name, and the page that they are drawn on."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstream.errors import RunFailed, UserError
from everstream_lab.apps.cycle.page import Page
from everstream_lab.apps.figures import resipipe, spbench
from everstream_lab.apps.figures.runs import Runs


@dataclass(frozen=True)
class Figure:
    """A published figure and how it is drawn here."""

    name: str
    title: str
    draw: Callable[[Page, Runs], None]


_THROUGHPUT = ("prime", "mandelbrot", "compress", "decompress", "eye")

FIGURES: tuple[Figure, ...] = (
    Figure("spbench-6", "characterisation of the applications", spbench.characterisation),
    Figure("spbench-7", "latency and throughput by parallelism", spbench.parallelism),
    Figure("spbench-8", "bzip2, batch growing from 1 to 10", spbench.live_batch("compress")),
    Figure("spbench-9", "ferret, batch growing from 1 to 10", spbench.live_batch("ferret")),
    Figure("spbench-10", "lane detection, batches by workers", spbench.static_batch),
    Figure("spbench-11", "lane detection, batches by workers", spbench.static_batch),
    Figure("spbench-12", "wave", spbench.pattern("wave", ("compress", "lane", "ferret"))),
    Figure("spbench-13", "binary", spbench.pattern("binary", ("compress", "lane", "ferret"))),
    Figure(
        "spbench-14", "increasing", spbench.pattern("increasing", ("compress", "face", "ferret"))
    ),
    Figure("spbench-15", "decreasing", spbench.pattern("decreasing", ("face", "lane", "ferret"))),
    Figure("spbench-16", "spike", spbench.pattern("spike", ("compress", "face", "ferret"))),
    *(
        figure
        for number, name in enumerate(_THROUGHPUT)
        for figure in (
            Figure(
                f"resipipe-5.{2 + 2 * number}", f"{name}, throughput", resipipe.throughput(name)
            ),
            Figure(
                f"resipipe-5.{3 + 2 * number}", f"{name}, CPU and memory", resipipe.resources(name)
            ),
        )
    ),
    Figure("resipipe-5.12", "sentiment, its graph", resipipe.sentiment_graph),
    Figure("resipipe-5.13", "sentiment, CPU and memory", resipipe.resources("sentiment")),
    Figure("resipipe-6.5", "prime, annotated against native", resipipe.annotated(("prime",))),
    Figure(
        "resipipe-6.6",
        "mandelbrot, eye detector and bzip2, annotated against native",
        resipipe.annotated(("mandelbrot", "eye", "compress", "decompress")),
    ),
)


def chosen(names: Sequence[str]) -> list[Figure]:
    """The figures of these names; `spbench` and `resipipe` stand for all of theirs, none for all."""
    figures: list[Figure] = []
    for name in names or ("spbench", "resipipe"):
        some = [one for one in FIGURES if name in (one.name, one.name.partition("-")[0])]
        if not some:
            near = difflib.get_close_matches(name, [one.name for one in FIGURES], n=1)
            meant = f"did you mean '{near[0]}'?" if near else "--list shows all."
            raise UserError(f"there is no figure '{name}'; {meant}")
        figures += [one for one in some if one not in figures]
    return figures


def draw_figures(
    figures: Sequence[Figure],
    runs: Runs,
    drawn: Callable[[Path], None] = lambda path: None,
    failures: list[tuple[Figure, RunFailed]] | None = None,
) -> list[Path]:
    """One page for each figure, and an index of them; `drawn` is called with each as soon as it is drawn.

    A figure whose runs fail is added to `failures`, and the others are drawn all the same; without
    such a list it ends the drawing.
    """
    paths = []
    index = Page("Figures of SPBench and ResiPipe, on this machine")
    for figure in figures:
        page = Page(f"{figure.name}: {figure.title}")
        page.text(f"Input class {runs.size}, {runs.repeats} run(s) of each setting.", dim=True)
        try:
            figure.draw(page, runs)
        except RunFailed as error:
            if failures is None:
                raise
            failures.append((figure, error))
            index.text(f"{figure.name}: {figure.title}: failed, {error.message}")
            continue
        path = runs.out / f"{figure.name}.html"
        page.write(path)
        paths.append(path)
        drawn(path)
        index.link(path.name, f"{figure.name}: {figure.title}")
    index.write(runs.out / "index.html")
    return paths
