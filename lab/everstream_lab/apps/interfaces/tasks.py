"""The tasks for workers: items that travel together, by count, by time, or whichever is first.

Without a load, a batch by time has what the source reads in that time. Under a load an item is given when it is due, and its time begins then. Without catching up, as
SPBench does it, an item that was held up moves all later ones back, and its time begins when it
was given.
"""

import time
from collections.abc import Iterator

import numpy as np

from everstream.connectors.generate.load import Load
from everstream.errors import UserError
from everstream_lab.apps.interfaces.job import Job, batch_at
from everstream_lab.apps.interfaces.work import Task

AIM_EVERY_NS = 50_000_000


def tasks(job: Job, items: int) -> Iterator[Task]:
    """All items, in order, each task when its last item may be given."""
    if job.load is None and not job.interval_s:
        start = 0
        while start < items:
            stop = min(start + batch_at(job.batch, job.batch_to, start, items), items)
            yield Task(range(start, stop))
            start = stop
        return
    start, began = 0, 0
    moments = _read(job, items) if job.load is None else _given(job, job.load, items)
    for position, given in enumerate(moments):
        if position == start:
            began = given
        full = position + 1 - start >= batch_at(job.batch, job.batch_to, start, items)
        late = job.interval_s > 0 and time.monotonic_ns() - began >= job.interval_s * 1e9
        if full or late or position + 1 == items:
            yield Task(range(start, position + 1), began)
            start = position + 1


def _read(job: Job, items: int) -> Iterator[int]:
    """When the source turned to each item, in ns of the steady clock, once it has read it.

    Without a load it is reading that takes the source its time. Workers read items again.
    """
    source = job.application.items(job.folder)
    for position in range(items):
        began = time.monotonic_ns()
        source[position]
        yield began


def _given(job: Job, load: Load, items: int) -> Iterator[int]:
    """When each item was given, in ns of the steady clock, at the moment it is."""
    due = load.due_s(np.arange(1, items + 1, dtype=float))
    if not np.isfinite(due[-1]):
        raise UserError("under this load the last items would never be due: raise its minimum.")
    origin = time.monotonic_ns()
    aimed = 0
    for after in (due * 1e9).astype(np.int64).tolist():
        now = time.monotonic_ns()
        if job.monitor is not None and now - aimed > AIM_EVERY_NS:
            job.monitor.aim(load.rate((now - origin) * 1e-9))
            aimed = now
        moment = origin + after
        if now < moment:
            time.sleep((moment - now) * 1e-9)
        elif not job.catch_up:
            origin += now - moment
            moment = now
        yield moment
