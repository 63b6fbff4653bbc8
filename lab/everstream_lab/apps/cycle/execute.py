"""Executes benchmarks: a process for each, their runs in turn, then the tables of what they gave.

Before that, inputs and sequential results of several applications are made on all cores.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from everstream.errors import EverstreamError, RunFailed
from everstream_lab.apps.cycle.benchmarks import Benchmark, Planned, plan, results_of
from everstream_lab.apps.cycle.outcome import Outcome
from everstream_lab.apps.inputs import expected_checksum, input_folder
from everstream_lab.apps.lookup import application_at

Hear = Callable[[dict[str, Any]], None]
"""Told each event of a run: its `event`, its `run`, and what belongs to it."""


class Worker:
    """A process for the runs of one interface. It lives for as long as it is held."""

    def __init__(self, results: Path, hear: Hear = lambda event: None) -> None:
        self._results = results.absolute()
        self._hear = hear
        self._log = self._results / "log.txt"

    def __enter__(self) -> Self:
        self._results.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "everstream_lab.apps.cycle.perform", str(write_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[write_end],
                text=True,
            )
        os.close(write_end)
        self._events = os.fdopen(read_end)
        return self

    def perform(self, planned: Planned) -> Outcome:
        """One run, to its end."""
        assert self._child.stdin is not None
        wanted = {"results": str(self._results), "run": planned.to_json()}
        self._child.stdin.write(json.dumps(wanted) + "\n")
        self._child.stdin.flush()
        for line in self._events:
            event = json.loads(line)
            self._hear(event)
            if event["event"] == "outcome":
                return Outcome.from_json(event["body"])
            if event["event"] == "failed":
                raise RunFailed(f"{planned.benchmark}: {event['text']}")
        tail = self._log.read_text(errors="replace")[-2000:]
        text = f"its process ended with code {self._child.wait()}; {self._log} says:\n{tail}"
        self._hear({"event": "failed", "run": planned.number, "text": text})
        raise RunFailed(f"{planned.benchmark}: {text}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; harmless if it has ended."""
        assert self._child.stdin is not None
        if self._events.closed:
            return
        self._child.stdin.close()  # which ends it
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._events.close()


def planned_runs(benchmarks: Sequence[Benchmark]) -> list[Planned]:
    """All runs of all benchmarks. Those of one application are made in turn, repeat by repeat: a
    slow minute of the machine then falls on all that are compared, not on one."""
    runs: list[Planned] = []
    for benchmark in benchmarks:
        runs += plan(benchmark, len(runs))
    order = list(dict.fromkeys(run.application for run in runs))
    return sorted(runs, key=lambda run: (order.index(run.application), run.repeat))


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
                workers.pop(run.benchmark).close()  # it may be gone; the next starts another
                continue
            if run is last[run.benchmark]:
                workers[run.benchmark].close()
    return sorted(outcomes, key=lambda outcome: outcome.planned.number)


def fresh_results(name: str) -> Path:
    """A folder for the results of one execution, named by the moment it began."""
    moment = datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")
    return results_of(name) / moment[:-3]


def prepare(
    applications: Sequence[str], size: str, tell: Callable[[str], None] = lambda name: None
) -> dict[str, str]:
    """Make what is not there yet; the applications for which that failed, and why.

    `tell` hears of each that is ready.
    """
    failed: dict[str, str] = {}
    # Not by fork: libraries may have threads by now.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        waiting = {pool.submit(_prepare, name, size): name for name in applications}
        for done in as_completed(waiting):
            try:
                done.result()
            except EverstreamError as error:
                failed[waiting[done]] = error.message
            except BrokenProcessPool:
                failed[waiting[done]] = "a process that made its input was killed"
            else:
                tell(waiting[done])
    return failed


def _prepare(name: str, size: str) -> None:
    application = application_at(name)
    expected_checksum(application, input_folder(application, size))
