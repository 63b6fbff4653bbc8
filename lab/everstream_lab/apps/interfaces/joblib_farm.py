"""joblib: its `Parallel` with processes, as a plug-in brings it; `pip install 'everstream-lab[joblib]'`."""

from collections.abc import Callable, Iterable, Iterator

from joblib import Parallel, delayed

from everstream_lab.apps.interfaces.job import Job
from everstream_lab.apps.interfaces.plugin import Farm, Given
from everstream_lab.apps.interfaces.work import Chunk, Task

AHEAD = 2
"""Tasks per worker that wait for it."""


class Joblib(Farm):
    """A farm of joblib's processes; results are a generator, so that none waits for the last."""

    def start(self, job: Job, work: Callable[[Given], Chunk]) -> None:
        order = "generator" if job.application.ordered else "generator_unordered"
        self._parallel = Parallel(
            n_jobs=job.workers,
            backend="loky",
            return_as=order,
            batch_size=1,
            pre_dispatch=AHEAD * job.workers,
        )
        ready = Parallel(n_jobs=job.workers, backend="loky")
        ready(delayed(work)(Task(range(0))) for _ in range(job.workers))

    def apply(
        self, job: Job, work: Callable[[Given], Chunk], given: Iterator[Given]
    ) -> Iterable[Chunk]:
        results: Iterable[Chunk] = self._parallel(delayed(work)(one) for one in given)
        return results
