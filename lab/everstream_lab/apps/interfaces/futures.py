"""`concurrent.futures`: processes of the standard library's executor, as a plug-in would bring them."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from everstream_lab.apps.interfaces.job import Job
from everstream_lab.apps.interfaces.plugin import Farm, Given
from everstream_lab.apps.interfaces.work import Chunk, Task

AHEAD = 2
"""Tasks per worker that wait for it, so that none has to wait for a task."""


class Futures(Farm):
    """A farm of processes that take futures."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def start(self, job: Job, work: Callable[[Given], Chunk]) -> None:
        # Not forked: libraries that decode videos have threads, which a fork would tear.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(job.workers, context)
        for ready in [self._pool.submit(work, Task(range(0))) for _ in range(job.workers)]:
            ready.result()

    def apply(
        self, job: Job, work: Callable[[Given], Chunk], given: Iterator[Given]
    ) -> Iterable[Chunk]:
        assert self._pool is not None
        waiting: deque[Future[Chunk]] = deque()
        for task in given:
            waiting.append(self._pool.submit(work, task))
            while len(waiting) >= AHEAD * job.workers:
                yield self._next(waiting, job.application.ordered)
        while waiting:
            yield self._next(waiting, job.application.ordered)

    @staticmethod
    def _next(waiting: "deque[Future[Chunk]]", ordered: bool) -> Chunk:
        done = waiting[0]
        if not ordered:
            done = next(iter(wait(waiting, return_when=FIRST_COMPLETED).done))
        waiting.remove(done)
        return done.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
