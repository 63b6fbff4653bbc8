"""The middle of an epoch, as the driver can know it: some tasks of the job are done, others are not.

Reports come only when a job has ended. Whoever wants to kill the driver before that has to ask Spark.
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
    """Tell once, while the job of the group is run in here; None: nobody wants to know."""
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
    """Of the jobs of the group that run: how many tasks are done, and how many there are."""
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
