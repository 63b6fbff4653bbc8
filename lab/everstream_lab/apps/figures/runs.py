"""The runs that figures are drawn from; two figures of the same runs share them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from everstream_lab.apps.cycle.benchmarks import Benchmark, Planned
from everstream_lab.apps.cycle.execute import execute, planned_runs
from everstream_lab.apps.cycle.outcome import Outcome
from everstream_lab.apps.cycle.results import write_tables
from everstream_lab.apps.cycle.settings import Settings


@dataclass(frozen=True)
class Ran:
    """Some runs and their tables."""

    outcomes: list[Outcome]
    tables: dict[str, pl.DataFrame]

    def names(self) -> dict[int, str]:
        """Run -> what to call its curve."""
        return {
            one.planned.number: f"{one.planned.interface}, {one.planned.workers} worker(s)"
            for one in self.outcomes
            if one.planned.repeat == 0
        }


@dataclass
class Runs:
    """Makes runs as figures ask for them, and remembers."""

    out: Path
    size: str = "small"
    workers: str = "1:2"
    repeats: int = 1
    monitor: str = "100ms"
    hear: Callable[[dict[str, Any], list[Planned]], None] = lambda event, runs: None
    """Told each event of a run, and the runs that are made with it."""
    known: dict[tuple[object, ...], Ran] = field(default_factory=dict)

    @property
    def most(self) -> str:
        """The largest number of workers that was asked for."""
        return str(Settings(workers=self.workers).worker_counts()[-1])

    def of(self, application: str, interfaces: Sequence[str], **settings: str) -> Ran:
        """The application on these interfaces, with these settings besides the usual ones."""
        asked = {"workers": self.workers, "repeats": str(self.repeats), "monitor": self.monitor}
        asked |= settings
        key = (application, tuple(interfaces), tuple(sorted(asked.items())))
        if key not in self.known:
            folder = self.out / "runs" / f"{len(self.known):03d}-{application}"
            chosen = Settings().with_values(asked)
            benchmarks = [
                Benchmark(f"{application}-{one}", application, one, self.size, chosen)
                for one in interfaces
            ]
            runs = planned_runs(benchmarks)
            outcomes = execute(benchmarks, folder, lambda event: self.hear(event, runs))
            self.known[key] = Ran(outcomes, write_tables(outcomes, folder))
        return self.known[key]
