"""The tasks for workers: items that travel together, by count, by time, or whichever is first."""

import time
from collections.abc import Iterator

from everstream.apps.interfaces.job import Job
from everstream.apps.interfaces.work import Task


def tasks(job: Job, items: int) -> Iterator[Task]:
    """All items, in order, each task when its last item may be given.

    With a pace an item's time begins when it was given, so waiting for company counts.
    """
    if job.pace is None:
        for start in range(0, items, job.batch):
            yield Task(range(start, min(start + job.batch, items)))
        return
    start, began = 0, 0
    for position in range(items):
        given = job.pace.wait()
        if position == start:
            began = given
        full = position + 1 - start >= job.batch
        late = job.interval_s > 0 and time.monotonic_ns() - began >= job.interval_s * 1e9
        if full or late or position + 1 == items:
            yield Task(range(start, position + 1), began)
            start = position + 1
