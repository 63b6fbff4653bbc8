"""The results of steps as files: whole or not there, so that a run can be killed at any moment."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from everstream_lab.reproduce.exhibit import Found, Quantities
from everstream_lab.reproduce.experiments import Effort, Experiment, Step, found_in


@dataclass(frozen=True)
class StepResult:
    """What a step measured, and how long it took."""

    took_s: float
    quantities: Quantities
    date: str = ""
    """When it was measured, as in 2026-01-31."""
    machine: str = ""
    """On what: see `machine.describe`."""


class Results:
    """The folder of one effort: a file per step, written under another name first."""

    def __init__(self, folder: Path, effort: Effort) -> None:
        self.folder = folder / effort.name
        self.effort = effort

    def path(self, experiment: Experiment, step: Step) -> Path:
        return self.folder / experiment.name / f"{step.name}-{step.repetition}.json"

    def read(self, experiment: Experiment, step: Step) -> StepResult | None:
        """None if it is not finished; a file that is no result does not count as one."""
        try:
            body = json.loads(self.path(experiment, step).read_text())
            told = (str(body.get("date", "")), str(body.get("machine", "")))
            return StepResult(float(body["took_s"]), body["quantities"], *told)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, experiment: Experiment, step: Step, result: StepResult) -> None:
        path = self.path(experiment, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("w") as file:
            json.dump(asdict(result), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def forget(self, experiments: Sequence[Experiment]) -> None:
        for experiment in experiments:
            shutil.rmtree(self.folder / experiment.name, ignore_errors=True)

    def found(self, experiment: Experiment) -> Found:
        """What its finished steps measured."""
        read = [(step, self.read(experiment, step)) for step in experiment.steps(self.effort)]
        return found_in([(step.repetition, one.quantities) for step, one in read if one])

    def of(self, experiments: Sequence[Experiment]) -> list[StepResult]:
        """The results of all finished steps."""
        read = [self.read(one, step) for one in experiments for step in one.steps(self.effort)]
        return [one for one in read if one is not None]

    def missing(self, experiment: Experiment) -> list[Step]:
        return [
            step for step in experiment.steps(self.effort) if self.read(experiment, step) is None
        ]
