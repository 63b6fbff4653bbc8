"""Threads and processes: what somebody writes by hand with `multiprocessing`, and tunes.

Workers are started once and open the input themselves, so that no item is pickled: tasks are
positions, taken one chunk at a time by whoever is free, and results come back in order only if the
application wants them so. The process that started them gathers and writes.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.pool import Pool, ThreadPool
from multiprocessing.synchronize import Barrier

from everstream.apps.interfaces.gathering import gather
from everstream.apps.interfaces.job import Done, Job, preloaded
from everstream.apps.interfaces.tasks import tasks
from everstream.apps.interfaces.work import Chunk, Task, Work

READY_WITHIN_S = 120.0
_work: Work | None = None
"""Of this worker process."""


def threads(job: Job) -> Done:
    items = preloaded(job.application.items(job.folder), job.in_memory)
    work = Work(items, job.application.stages, job.clocked)
    with ThreadPool(job.workers) as pool:
        return _spread(job, pool, work)


def processes(job: Job) -> Done:
    # Forked, so that nothing is imported or sent twice.
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(job.workers + 1)
    with context.Pool(job.workers, _open, (job, ready)) as pool:
        ready.wait(READY_WITHIN_S)
        return _spread(job, pool, _in_this_process)


def _open(job: Job, ready: Barrier) -> None:
    global _work
    items = preloaded(job.application.items(job.folder), job.in_memory)
    _work = Work(items, job.application.stages, job.clocked)
    ready.wait(READY_WITHIN_S)


def _in_this_process(task: Task) -> Chunk:
    assert _work is not None
    return _work(task)


def _spread(job: Job, pool: Pool, work: Callable[[Task], Chunk]) -> Done:
    items = len(job.application.items(job.folder))
    give = pool.imap if job.application.ordered else pool.imap_unordered
    return gather(job, items, give(work, tasks(job, items)))
