"""Workers as the tasks of one Spark job, which blocks in a separate thread until the end."""

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyspark import SparkContext, TaskContext

from everstream.core.ids import TaskNumber
from everstream.engine.continuous.driver.workers import StartupFailure
from everstream.engine.continuous.worker.worker import WorkerTask
from everstream.engine.spark.launcher import RunningTasks, kill_task
from everstream.engine.spark.lost import NO_ANSWER
from everstream.engine.tasks.startup_failures import StartupWatch
from everstream.errors import EnvironmentFault, RunFailed

LEAVE_PATIENCE_S = 5.0
CANCEL_PATIENCE_S = 10.0


@dataclass
class SparkTask:
    """The body of a Spark task."""

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
        text = str(self._error).strip().splitlines() or [repr(self._error)]
        cause = next((line for line in text if "Exception" in line or "Error" in line), text[0])
        return RunFailed(f"the Spark job failed: {cause}", EnvironmentFault(str(self._error)))

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
