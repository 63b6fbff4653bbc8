"""Runs the steps that have no result yet, each in its own process, one after the other.

A process per step: Spark starts anew for each, and what one leaves behind cannot disturb the next.
The process is the first of a new session, so that Ctrl-C reaches this process alone, which
then ends the step and all it started; it dies with this process, however that ends.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path

from everstream.cli.runs.die_with import die_with
from everstream_lab.reproduce.exhibit import Quantities
from everstream_lab.reproduce.experiments import Experiment, Perform
from everstream_lab.reproduce.machine import describe
from everstream_lab.reproduce.results import Results, StepResult

GRACE_S = 10.0


@dataclass
class Progressing:
    """How far a run is, for a screen."""

    done: int
    steps: int
    text: str
    remaining_s: float
    begins: bool = False
    """Whether a step begins now."""


@dataclass(frozen=True)
class FailedStep:
    experiment: str
    step: str
    text: str


def run_missing(
    experiments: Sequence[Experiment],
    results: Results,
    tell: Callable[[Progressing], None] = lambda progress: None,
) -> list[FailedStep]:
    """Run what has no result; a step that fails does not keep the others from running."""
    every = [(one, step) for one in experiments for step in one.steps(results.effort)]
    todo = [(one, step) for one, step in every if results.read(one, step) is None]
    clock = Clock([step.about_s for _, step in todo])
    failed = []
    for number, (experiment, step) in enumerate(todo):
        name = f"{experiment.name}: {step.name}"
        done = len(every) - len(todo) + number
        began_s = time.monotonic()

        def hear(text: str, name: str = name, done: int = done, began_s: float = began_s) -> None:
            spent_s = time.monotonic() - began_s
            more = f", {text}" if text else ""
            tell(Progressing(done, len(every), f"{name}{more}", clock.remaining_s(spent_s)))

        tell(Progressing(done, len(every), name, clock.remaining_s(), begins=True))
        outcome = _in_a_process(step.perform, results.folder / "log.txt", hear)
        took_s = time.monotonic() - began_s
        clock.finished(took_s)
        if isinstance(outcome, str):
            failed.append(FailedStep(experiment.name, step.name, outcome))
        else:
            today = date.today().isoformat()
            result = StepResult(round(took_s, 3), outcome, today, describe())
            results.write(experiment, step, result)
    tell(Progressing(len(every), len(every), "", 0.0))
    return failed


class Clock:
    """How long the rest takes: what was foreseen, corrected by how wrong that was so far."""

    def __init__(self, foreseen_s: Sequence[float]) -> None:
        self._foreseen_s = list(foreseen_s)
        self._took_s: list[float] = []

    def finished(self, took_s: float) -> None:
        self._took_s.append(took_s)

    def remaining_s(self, spent_s: float = 0.0) -> float:
        """`spent_s`: on the step that runs.

        >>> clock = Clock([10, 10, 20])
        >>> clock.remaining_s()
        40.0
        >>> clock.finished(20)
        >>> clock.remaining_s(5)
        45.0
        """
        count = len(self._took_s)
        factor = sum(self._took_s) / sum(self._foreseen_s[:count]) if count else 1.0
        return max(0.0, factor * sum(self._foreseen_s[count:]) - spent_s)


def _in_a_process(perform: Perform, log: Path, hear: Callable[[str], None]) -> Quantities | str:
    """What it measured, or why it failed; what it prints goes to the log."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_perform, args=(perform, os.getpid(), log, theirs))
    process.start()
    theirs.close()
    outcome = None
    try:
        while outcome is None:
            try:
                if not ours.poll(1.0):
                    hear("")
                    continue
                kind, body = ours.recv()
            except EOFError:
                break
            if kind == "text":
                hear(body)
            else:
                outcome = body
        process.join()
    finally:
        _end(process)
        ours.close()
    if outcome is None:
        return f"its process ended with code {process.exitcode}; {log} has what it printed"
    return outcome  # type: ignore[no-any-return]


def _end(process: "multiprocessing.context.SpawnProcess") -> None:
    """The process and all of its session."""
    assert process.pid is not None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # none is left, or it had not begun
            os.killpg(process.pid, number)
        process.join(GRACE_S)
    process.kill()
    process.join()


def _perform(perform: Perform, parent: int, log: Path, pipe: Connection) -> None:
    die_with(parent)
    os.setsid()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    with tempfile.TemporaryDirectory(prefix="everstream-reproduce-") as folder:
        try:
            measured = perform(Path(folder), lambda text: pipe.send(("text", text)))
            pipe.send(("done", {name: list(points) for name, points in measured.items()}))
        except Exception as error:
            traceback.print_exc()
            pipe.send(("done", f"{type(error).__name__}: {error}"))
