"""The Spark job whose tasks are the workers, in a separate thread: it blocks until the end."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from pyspark import SparkContext

from everstream.core.ids import TaskNumber
from everstream.engine.spark.lost import NO_ANSWER
from everstream.errors import EnvironmentFault, RunFailed

LEAVE_PATIENCE_S = 5.0
CANCEL_PATIENCE_S = 10.0
GROUP = "spark.jobGroup.id"


class WorkersJob:
    """Runs one task for each worker and for each spare."""

    def __init__(
        self,
        context: SparkContext,
        group: str,
        description: str,
        processes: int,
        task: Callable[[int, Iterable[int]], Iterator[int]],
    ) -> None:
        self._context = context
        self._group = group
        self._description = description
        self._processes = processes
        self._task = task
        self._scheduled: Any = None
        """Spark's map of running tasks, kept because finding it takes longer than a lookup in it."""
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everstream-job", daemon=True)

    def start(self) -> None:
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
            return self._is_ours(number, task)
        except NO_ANSWER:
            return True

    def _is_ours(self, number: TaskNumber, task: int) -> bool:
        if self._scheduled is None:
            scheduler = self._context._jsc.sc().taskScheduler()
            self._scheduled = scheduler.taskIdToTaskSetManager()
        for entry in self._scheduled.entrySet():
            if entry.getKey() == task:
                tasks = entry.getValue()
                group = tasks.taskSet().properties().get(GROUP)
                return bool(
                    group == self._group and tasks.taskInfos().apply(task).index() == number
                )
        return False

    def failure(self) -> RunFailed:
        """The error for a job that has ended before the pipeline."""
        if self._error is None:
            return RunFailed("the Spark job ended before the pipeline did")
        text = str(self._error).strip().splitlines() or [repr(self._error)]
        cause = next((line for line in text if "Exception" in line or "Error" in line), text[0])
        return RunFailed(f"the Spark job failed: {cause}", EnvironmentFault(str(self._error)))

    def leave(self, told: bool) -> None:
        """Workers that know that the run is over leave on their own; the others are cancelled."""
        if told:
            self._thread.join(timeout=LEAVE_PATIENCE_S)
        if self._thread.is_alive():
            with suppress(*NO_ANSWER):  # Spark is gone, and its job with it
                self._context.cancelJobGroup(self._group)
            self._thread.join(timeout=CANCEL_PATIENCE_S)

    def _run(self) -> None:
        context, processes = self._context, self._processes
        try:
            context.setJobGroup(self._group, self._description, True)
            tasks = context.parallelize(range(processes), processes)
            tasks.mapPartitionsWithIndex(self._task).collect()
        except BaseException as error:  # py4j raises many kinds; the driver interprets them
            self._error = error
        finally:
            self._ended.set()
