"""Experiments: what can be stopped between two steps, and continued.

A step is one process, and its result is one file. Repetitions are steps of the same kind, so that
an interval can be given. How large a step is depends on the effort: a quick run answers the same
questions with less of everything.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstream.errors import UserError
from everstream_lab.reproduce.exhibit import Exhibit, Found, Quantities

Tell = Callable[[str], None]
Perform = Callable[[Path, Tell], Quantities]
"""Measures, given a folder for its own files; it runs in another process, so it is a plain function."""


@dataclass(frozen=True)
class Effort:
    """How much of everything."""

    quick: bool = False
    repeats: int = 3

    @property
    def name(self) -> str:
        """Results of one effort are not results of another."""
        return "quick" if self.quick else "full"


@dataclass(frozen=True)
class Step:
    """One process and its result."""

    name: str
    repetition: int
    """Steps of one repetition are taken together; those of several give the intervals."""
    about_s: float
    """How long it takes on two cores, to tell how much time remains."""
    perform: Perform


@dataclass(frozen=True)
class Experiment:
    """Regenerates one or more exhibits."""

    name: str
    paper: str
    command: str
    """The command that measures the same alone."""
    steps: Callable[[Effort], Sequence[Step]]


ALL = "all"
"""In place of the name of a paper."""


@dataclass(frozen=True)
class Inventory:
    """What can be reproduced, paper by paper."""

    titles: dict[str, str]
    """Paper -> what it is."""
    experiments: tuple[Experiment, ...]
    exhibits: tuple[Exhibit, ...]
    drawings: dict[str, str]
    """Paper -> its tables and figures without numbers to measure."""

    def of(self, paper: str) -> "Inventory":
        """One paper of it, or all."""
        if paper == ALL:
            return self
        if paper not in self.titles:
            near = difflib.get_close_matches(paper, [*self.titles, ALL], n=1)
            meant = (
                f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(self.titles)}."
            )
            raise UserError(f"there is no paper '{paper}'; {meant}")
        return Inventory(
            {paper: self.titles[paper]},
            tuple(one for one in self.experiments if one.paper == paper),
            tuple(one for one in self.exhibits if one.paper == paper),
            {paper: self.drawings.get(paper, "")},
        )

    def experiments_of(self, exhibit: Exhibit) -> Sequence[Experiment]:
        return [one for one in self.experiments if one.name in exhibit.experiments]


def found_in(results: Sequence[tuple[int, Quantities]]) -> Found:
    """The results of steps with the repetition of each, put together repetition by repetition."""
    together: dict[int, dict[str, list[tuple[str, float | str, float]]]] = {}
    for repetition, quantities in results:
        own = together.setdefault(repetition, {})
        for quantity, points in quantities.items():
            own.setdefault(quantity, []).extend((curve, at, value) for curve, at, value in points)
    return Found([together[repetition] for repetition in sorted(together)])
