"""Threads and processes: a hand-written and tuned program with `multiprocessing`.

Workers are started once and open the input themselves, so that no item is pickled: tasks are
positions, taken one chunk at a time by the next free worker, and results come back in order only if the
application wants them so. The process that started them gathers and writes.
"""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.pool import Pool, ThreadPool
from multiprocessing.synchronize import Barrier
from pathlib import Path

from everstream_lab.apps.interfaces.arrivals import gather
from everstream_lab.apps.interfaces.job import Done, Job, farmed, preloaded
from everstream_lab.apps.interfaces.tasks import tasks
from everstream_lab.apps.interfaces.work import Chunk, Task, Work
from everstream_lab.apps.lookup import application_at


def sequential(job: Job) -> Done:
    items = job.application.items(job.folder)
    if not (job.clocked or job.monitor or job.load or job.in_memory):
        began_s = time.monotonic()
        job.application.sequential(job.folder, job.output)
        return Done(len(items), time.monotonic() - began_s)
    work = Work(preloaded(items, job.in_memory), job.application.stages, job.clocked)
    return gather(job, len(items), map(work, tasks(job, len(items))))


READY_WITHIN_S = 120.0
_work: Work | None = None
"""Of this worker process."""


def threads(job: Job) -> Done:
    job = replace(job, application=farmed(job.application))
    items = preloaded(job.application.items(job.folder), job.in_memory)
    work = Work(items, job.application.stages, job.clocked)
    with ThreadPool(job.workers) as pool:
        return _spread(job, pool, work)


def processes(job: Job) -> Done:
    began_s = time.monotonic()
    job = replace(job, application=farmed(job.application))
    # Not forked: libraries that decode videos have threads, which a fork would tear.
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(job.workers + 1)
    opening = (job.reference, job.folder, job.in_memory, job.clocked, ready)
    with context.Pool(job.workers, _open, opening) as pool:
        ready.wait(READY_WITHIN_S)
        startup_s = time.monotonic() - began_s
        return replace(_spread(job, pool, _in_this_process), startup_s=startup_s)


def _open(reference: str, folder: Path, in_memory: bool, clocked: bool, ready: Barrier) -> None:
    global _work
    application = farmed(application_at(reference))
    items = preloaded(application.items(folder), in_memory)
    _work = Work(items, application.stages, clocked)
    ready.wait(READY_WITHIN_S)


def _in_this_process(task: Task) -> Chunk:
    assert _work is not None
    return _work(task)


def _spread(job: Job, pool: Pool, work: Callable[[Task], Chunk]) -> Done:
    items = len(job.application.items(job.folder))
    give = pool.imap if job.application.ordered else pool.imap_unordered
    return gather(job, items, give(work, tasks(job, items)))
