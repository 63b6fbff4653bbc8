"""Workers that die before their first message, as Spark reports them.

If a worker's Python lacks a module, or does not exist, the worker ends before any of our code runs,
and Spark restarts the task forever without a message. Only Spark knows the cause: its list of the
tasks of our job has the error of each.
"""

import re
from collections.abc import Mapping

from pyspark import SparkContext

from everstream.core.ids import TaskNumber
from everstream.engine.continuous.driver.workers import StartupFailure
from everstream.engine.spark.launcher import FailedTask, failed_tasks
from everstream.engine.spark.lost import NO_ANSWER
from everstream.errors import EnvironmentFault

LOOK_EVERY_S = 1.0
AT_ONCE = 100
MISSING = re.compile(r"No module named '(everstream|pyspark)\b")
NO_PYTHON = re.compile(r'Cannot run program "([^"]*)"')


class StartupWatch:
    """Looks for workers that were started and never said hello."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context = context
        self._group = group
        self._due_s = 0.0

    def failed(self, heard: Mapping[TaskNumber, int], now_s: float) -> list[StartupFailure]:
        """The startup failures; `heard` is the newest known attempt of each worker."""
        if now_s < self._due_s:
            return []
        self._due_s = now_s + LOOK_EVERY_S
        try:
            return [lost for lost in self._failures() if lost.attempt > heard.get(lost.number, -1)]
        except NO_ANSWER:
            return []  # Spark is shutting down: the end of its job tells more

    def _failures(self) -> list[StartupFailure]:
        tracker = self._context.statusTracker()
        found = []
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                stage_info = tracker.getStageInfo(stage)
                if stage_info is None or not stage_info.numFailedTasks:
                    continue
                skipped = max(0, stage_info.numFailedTasks - AT_ONCE)
                tasks = failed_tasks(self._context, stage, skipped, AT_ONCE)
                found += [self._startup_failure(task) for task in tasks]
        return found

    def _startup_failure(self, task: FailedTask) -> StartupFailure:
        text = task.error or "no reason is known"
        error = EnvironmentFault(reason(text, task.machine, str(self._context.pythonExec)))
        error.will_recur = bool(MISSING.search(text) or NO_PYTHON.search(text))
        return StartupFailure(TaskNumber(task.index), task.attempt, error)


def reason(text: str, machine: str, python: str) -> str:
    """Why a task could not start, with the fix, from Spark's error text."""
    chosen = "set PYSPARK_PYTHON (or spark.pyspark.python) to one that has it"
    missing = MISSING.search(text)
    if missing:
        name = missing[1]
        return (
            f"the Python of the worker on {machine} ('{python}') has no {name}: install it there "
            f"(pip install {name}), or {chosen}"
        )
    no_python = NO_PYTHON.search(text)
    if no_python:
        return (
            f"there is no Python '{no_python[1]}' on {machine}: install one there with everstream, "
            f"or {chosen.replace('has it', 'is there')}"
        )
    return f"the worker on {machine} ended with: {_cause(text)}"


def _cause(text: str) -> str:
    """The lines of Spark's long error text that contain the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "Error from python worker:" in lines:
        begin = lines.index("Error from python worker:") + 1
        ends = [n for n, line in enumerate(lines) if line.startswith("PYTHONPATH was")]
        return lines[max(begin, ends[0] - 1 if ends else begin)]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    python = [line for line in raised if not line.startswith(("org.apache", "java."))]
    return (python or raised or lines or ["no reason is known"])[-1 if python else 0]
