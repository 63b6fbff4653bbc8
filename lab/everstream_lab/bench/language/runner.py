"""`everstream bench language`: one part for each thing that a pipeline is written with."""

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

from everstream_lab.bench.language import calls, operators, timers
from everstream_lab.bench.report import Figure, Progress, Report

Part: TypeAlias = Callable[[int, Progress], list[Figure]]


def _processors(rounds: int, progress: Progress) -> list[Figure]:
    """Needs Spark, which the others do without."""
    from everstream.engine.spark.launcher import require

    require("transformWithState for rows", (4, 1))
    from everstream_lab.bench.language import processors

    return processors.figures(rounds, progress)


PARTS: dict[str, Part] = {
    "map_async": calls.figures,
    "timers": timers.figures,
    **{name: partial(operators.figures_of, name) for name in operators.PARTS},
    "processors": _processors,
}
"""Name -> the figures of that part, from a number of rounds."""


def measure(parts: Collection[str], rounds: int, progress: Progress) -> Report:
    found = [figure for name in parts for figure in PARTS[name](rounds, progress)]
    return Report("language", found)
