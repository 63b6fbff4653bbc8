"""Dask: worker processes of a local cluster, as a plug-in; `pip install 'everstream-lab[dask]'`."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import distributed

from everstream_lab.apps.interfaces.job import Job
from everstream_lab.apps.interfaces.plugin import Farm, Given
from everstream_lab.apps.interfaces.work import Chunk, Task

_dask: Any = distributed  # has types in part only
AHEAD = 2
"""Tasks per worker that wait for it."""


class Dask(Farm):
    """A farm of Dask's workers, with a thread each."""

    def __init__(self) -> None:
        self._cluster: Any = None
        self._client: Any = None

    def start(self, job: Job, work: Callable[[Given], Chunk]) -> None:
        self._cluster = _dask.LocalCluster(
            n_workers=job.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        )
        self._client = _dask.Client(self._cluster)
        self._client.wait_for_workers(job.workers)
        self._client.run(work, Task(range(0)))

    def apply(
        self, job: Job, work: Callable[[Given], Chunk], given: Iterator[Given]
    ) -> Iterable[Chunk]:
        waiting: deque[Any] = deque()
        for task in given:
            # Not pure: Dask would give equal tasks one result.
            waiting.append(self._client.submit(work, task, pure=False))
            while len(waiting) >= AHEAD * job.workers:
                yield self._next(waiting, job.application.ordered)
        while waiting:
            yield self._next(waiting, job.application.ordered)

    @staticmethod
    def _next(waiting: "deque[Any]", ordered: bool) -> Chunk:
        done = waiting[0]
        if not ordered:
            done = next(iter(_dask.wait(list(waiting), return_when="FIRST_COMPLETED").done))
        waiting.remove(done)
        chunk: Chunk = done.result()
        return chunk

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()
