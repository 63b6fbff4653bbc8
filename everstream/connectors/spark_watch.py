"""Gives up on a Spark job whose tasks fail again and again.

A Spark that was started for pipelines never gives up on a task by itself, because a host that is
lost must always be started again. A job of another kind would then fail for ever.
"""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

FAILURES_IN_A_ROW = 16
LOOK_EVERY_S = 0.1


class Watch:
    """Cancels the jobs of a group when their tasks fail so often in a row and none succeeds."""

    def __init__(self, context: "SparkContext", group: str) -> None:
        self._context = context
        self._group = group
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed_before: dict[int, tuple[int, int]] = {}
        self.gave_up = False

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            if any(self._is_hopeless(stage) for stage in self._stages()):
                self.gave_up = True
                self._context.cancelJobGroup(self._group)
                return

    def _stages(self) -> Iterator[int]:
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            yield from info.stageIds if info is not None else ()

    def _is_hopeless(self, stage: int) -> bool:
        info = self._context.statusTracker().getStageInfo(stage)
        if info is None:
            return False
        completed, failed = self._failed_before.get(stage, (0, 0))
        if info.numCompletedTasks > completed:
            completed, failed = info.numCompletedTasks, info.numFailedTasks
        self._failed_before[stage] = completed, failed
        return bool(info.numFailedTasks - failed >= FAILURES_IN_A_ROW)
