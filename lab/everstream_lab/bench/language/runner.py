"""`everstream bench language`: one part for each thing that a pipeline is written with."""

from collections.abc import Callable, Collection
from typing import TypeAlias

from everstream_lab.bench.language import calls, timers
from everstream_lab.bench.report import Figure, Progress, Report

Part: TypeAlias = Callable[[int, Progress], list[Figure]]
PARTS: dict[str, Part] = {"map_async": calls.figures, "timers": timers.figures}
"""Name -> the figures of that part, from a number of rounds."""


def measure(parts: Collection[str], rounds: int, progress: Progress) -> Report:
    found = [figure for name in parts for figure in PARTS[name](rounds, progress)]
    return Report("language", found)
