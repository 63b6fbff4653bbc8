"""The middle of an epoch, as the driver sees it: some tasks of the job are done, others are not.

Reports arrive only when a job has ended. To kill the driver earlier, ask Spark.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext

_LOOK_EVERY_S = 0.01


@contextmanager
def seeing_the_midst(
    context: SparkContext, group: str, told: Callable[[], None] | None
) -> Iterator[None]:
    """Call back once in the middle of the group's job, which runs in this block; None: do nothing."""
    if told is None:
        yield
        return
    over = threading.Event()
    looking = threading.Thread(
        target=_look, args=(context, group, told, over), name="everstream-midst", daemon=True
    )
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _look(
    context: SparkContext, group: str, told: Callable[[], None], over: threading.Event
) -> None:
    while not over.wait(_LOOK_EVERY_S):
        done, tasks = _progress(context, group)
        if 0 < done < tasks:
            told()
            return


def _progress(context: SparkContext, group: str) -> tuple[int, int]:
    """Of the group's active jobs: the number of completed tasks, and of all tasks."""
    tracker = context.statusTracker()
    done = tasks = 0
    for number in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(number)
        if job is None or job.status != "RUNNING":
            continue
        for stage_id in job.stageIds:
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                tasks += stage.numTasks
    return done, tasks
