"""Workers as the tasks of one Spark job, which blocks in a separate thread until the end."""

import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyspark import SparkContext, TaskContext

from everstream.core.ids import TaskNumber
from everstream.engine.continuous.driver.workers import StartupFailure
from everstream.engine.continuous.worker.worker import WorkerTask
from everstream.engine.spark.launcher import FailedTask, RunningTasks, failed_tasks, kill_task
from everstream.engine.spark.lost import NO_ANSWER, job_failed
from everstream.errors import EnvironmentFault, RunFailed

LEAVE_PATIENCE_S = 5.0
CANCEL_PATIENCE_S = 10.0
LOOK_EVERY_S = 1.0
AT_ONCE = 100
MISSING = re.compile(r"No module named '(everstream|pyspark)\b")
NO_PYTHON = re.compile(r'Cannot run program "([^"]*)"')


class StartupWatch:
    """Looks for workers that were started and never said hello.

    If a worker's Python lacks a module, or does not exist, the worker ends before any of our code
    runs, and Spark restarts the task forever without a message. Only Spark knows the cause: its
    list of the tasks of our job has the error of each.
    """

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


@dataclass
class SparkTask:
    task: WorkerTask

    def __call__(self, partition: int, _: Iterable[int]) -> Iterator[int]:
        context = TaskContext.get()
        assert context is not None
        self.task.work(TaskNumber(partition), context.attemptNumber(), context.taskAttemptId())
        yield partition


class SparkWorkers:
    """Spark runs one task for each process, and starts a task again when its process is gone."""

    def __init__(self, context: SparkContext, pipeline: str) -> None:
        self._context = context
        self._pipeline = pipeline
        self._group = f"everstream-{uuid.uuid4().hex}"  # unique among the runs of this process
        self._startup = StartupWatch(context, self._group)
        self._running = RunningTasks(context)
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, task: WorkerTask, processes: int) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(SparkTask(task), processes), name="everstream-job", daemon=True
        )
        self._thread.start()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def is_running(self, number: TaskNumber, task: int) -> bool:
        """Whether Spark has started this task under this number; known before the task itself runs.

        Spark's scheduler has no public interface. If it cannot be asked, no task is rejected: a
        ticket is then still good for only one request of each task.
        """
        try:
            return self._running.index_of(task, self._group) == number
        except NO_ANSWER:
            return True

    def failure(self) -> RunFailed:
        if self._error is None:
            return RunFailed("the Spark job ended before the pipeline did")
        return RunFailed(job_failed(self._error), EnvironmentFault(str(self._error)))

    def failed_starts(self, heard: Mapping[TaskNumber, int], now_s: float) -> list[StartupFailure]:
        return self._startup.failed(heard, now_s)

    def kill(self, task: int) -> None:
        """Spark does not know that it is silent; it restarts the task once it was asked to kill it."""
        with suppress(*NO_ANSWER):  # Spark is gone, which ends the job
            kill_task(self._context, task, "silent")

    def leave(self, told: bool) -> None:
        if self._thread is None:
            return
        if told:
            self._thread.join(timeout=LEAVE_PATIENCE_S)
        if self._thread.is_alive():
            with suppress(*NO_ANSWER):  # Spark is gone, and its job with it
                self._context.cancelJobGroup(self._group)
            self._thread.join(timeout=CANCEL_PATIENCE_S)

    def _run(self, task: SparkTask, processes: int) -> None:
        context = self._context
        try:
            context.setJobGroup(self._group, f"everstream {self._pipeline}", True)
            context.parallelize(range(processes), processes).mapPartitionsWithIndex(task).collect()
        except BaseException as error:  # py4j raises many kinds; the driver interprets them
            self._error = error
        finally:
            self._ended.set()
