"""Executes benchmarks: a process for each, their runs in turn, then the tables of what they gave."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from everstream.apps.cycle.benchmarks import Benchmark, results_of
from everstream.apps.cycle.outcome import Outcome
from everstream.apps.cycle.plan import Planned, plan
from everstream.apps.cycle.worker import Hear, Worker
from everstream.errors import RunFailed


def planned_runs(benchmarks: Sequence[Benchmark]) -> list[Planned]:
    """All runs of all benchmarks. Those of one application are made in turn, repeat by repeat: a
    slow minute of the machine then falls on all that are compared, not on one."""
    found: list[Planned] = []
    for benchmark in benchmarks:
        found += plan(benchmark, len(found))
    order = list(dict.fromkeys(run.application for run in found))
    return sorted(found, key=lambda run: (order.index(run.application), run.repeat))


@dataclass(frozen=True)
class Failure:
    """A run that came to nothing."""

    benchmark: str
    text: str


def execute(
    benchmarks: Sequence[Benchmark],
    results: Path,
    hear: Hear = lambda event: None,
    failures: list[Failure] | None = None,
) -> list[Outcome]:
    """Perform all runs; their tables are in `results` then, and this is what they came to.

    A run that fails is added to `failures`, and the others are made all the same; without such a
    list it ends the execution.
    """
    outcomes = []
    runs = planned_runs(benchmarks)
    last = {run.benchmark: run for run in runs}
    with ExitStack() as held:
        workers: dict[str, Worker] = {}
        for run in runs:
            if run.benchmark not in workers:
                workers[run.benchmark] = held.enter_context(Worker(results, hear))
            try:
                outcomes.append(workers[run.benchmark].perform(run))
            except RunFailed as error:
                if failures is None:
                    raise
                failures.append(Failure(run.benchmark, error.message))
                workers.pop(run.benchmark).close()  # it may be gone; the next has one of its own
                continue
            if run is last[run.benchmark]:
                workers[run.benchmark].close()
    return sorted(outcomes, key=lambda outcome: outcome.planned.number)


def fresh_results(name: str) -> Path:
    """A folder for the results of one execution, named by the moment it began."""
    moment = datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")
    return results_of(name) / moment[:-3]
