"""Threads and processes: a hand-written and tuned program with `multiprocessing`, one farm or several.

Workers are started once and open the input themselves, so that no item is pickled: tasks are
positions, taken one chunk at a time by the next free worker, and results come back in order only if the
application wants them so. The process that started them gathers and writes.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.pool import Pool, ThreadPool
from multiprocessing.synchronize import Barrier
from typing import Any, cast

from everstream_lab.apps.interfaces.arrivals import gather
from everstream_lab.apps.interfaces.clutter import cluttered
from everstream_lab.apps.interfaces.job import Done, Job, farmed, preloaded
from everstream_lab.apps.interfaces.plugin import Given, Opened, stages_of_farm
from everstream_lab.apps.interfaces.shape import degrees_of
from everstream_lab.apps.interfaces.tasks import tasks
from everstream_lab.apps.interfaces.work import Chunk, StageWork, Work


def sequential(job: Job) -> Done:
    job = replace(job, application=cluttered(job.application, job.clutter))
    items = job.application.items(job.folder)
    if not (job.clocked or job.monitor or job.load or job.in_memory or job.clutter):
        began_s = time.monotonic()
        job.application.sequential(job.folder, job.output)
        return Done(len(items), time.monotonic() - began_s)
    work = Work(preloaded(items, job.in_memory), job.application.stages, job.clocked)
    return gather(job, len(items), map(work, tasks(job, len(items))))


READY_WITHIN_S = 120.0
_work: Callable[[Any], Chunk] | None = None
"""Of this worker process."""


def threads(job: Job) -> Done:
    degrees = degrees_of(job.application, job.stages, job.workers)
    plain, job = (
        job.application,
        replace(job, application=farmed(cluttered(job.application, job.clutter))),
    )
    stages = job.application.stages
    items = preloaded(job.application.items(job.folder), job.in_memory)
    works: list[Callable[[Any], Chunk]] = [
        StageWork(items, stages, stages_of_farm(len(plain.stages), len(stages), farm), job.clocked)
        for farm in range(len(degrees))
    ]
    with ExitStack() as running:
        pools = [running.enter_context(ThreadPool(count)) for count in degrees or (job.workers,)]
        return _spread(job, pools, works or [Work(items, stages, job.clocked)])


def processes(job: Job) -> Done:
    began_s = time.monotonic()
    degrees = degrees_of(job.application, job.stages, job.workers)
    farms = [Opened.of(job, farm) for farm in range(len(degrees))] or [Opened.of(job)]
    job = replace(job, application=farmed(cluttered(job.application, job.clutter)))
    # Not forked: libraries that decode videos have threads, which a fork would tear.
    context = multiprocessing.get_context("spawn")
    counts = degrees or (job.workers,)
    ready = context.Barrier(sum(counts) + 1)
    with ExitStack() as running:
        pools = [
            running.enter_context(context.Pool(count, _open, (opened, ready)))
            for count, opened in zip(counts, farms, strict=True)
        ]
        ready.wait(READY_WITHIN_S)
        startup_s = time.monotonic() - began_s
        done = _spread(job, pools, [_in_this_process] * len(pools))
        return replace(done, startup_s=startup_s)


def _open(opened: Opened, ready: Barrier) -> None:
    global _work
    _work = opened.open()
    ready.wait(READY_WITHIN_S)


def _in_this_process(given: Given) -> Chunk:
    assert _work is not None
    return _work(given)


def _spread(job: Job, pools: Sequence[Pool], works: Sequence[Callable[[Any], Chunk]]) -> Done:
    """All items through all pools: what one gives is what the next is given."""
    items = len(job.application.items(job.folder))
    given: Iterable[Given] = tasks(job, items)
    for pool, work in zip(pools, works, strict=True):
        give = pool.imap if job.application.ordered else pool.imap_unordered
        given = give(work, given)
    return gather(job, items, cast("Iterable[Chunk]", given))
