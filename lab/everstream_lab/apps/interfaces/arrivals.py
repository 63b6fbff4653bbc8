"""Chunks on their way into the result file: their results one by one, and the times they tell."""

import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from everstream_lab.apps.interfaces.clutter import by_item, reordered
from everstream_lab.apps.interfaces.job import Done, Job, Stamps, stage_names
from everstream_lab.apps.interfaces.work import Chunk


class Arrivals:
    """Hands results on to the writer, and tells who watches."""

    def __init__(self, job: Job, items: int) -> None:
        self._job = job
        self._items = items
        self._times: list[tuple[Chunk, int, int]] = []
        self._done = 0

    def results(self, chunks: Iterable[Chunk]) -> Iterator[Any]:
        """The results of chunks as they come; when the next one is asked for, one is written."""
        for chunk in chunks:
            left = time.monotonic_ns()
            yield from chunk.results
            self._arrived(chunk, left)

    def _arrived(self, chunk: Chunk, left: int) -> None:
        now = time.monotonic_ns()
        count = len(chunk.results)
        self._done += count
        latency_s = None
        if chunk.times is not None:
            # The results are with the writer; what remains are the times.
            self._times.append((Chunk(chunk.span, [], chunk.times), left, now))
            latency_s = (now - float(chunk.times[:, 0].mean())) * 1e-9
        if self._job.monitor is not None:
            self._job.monitor.done(count, latency_s)
        self._job.progress(self._done, self._items)

    def stamps(self) -> Stamps | None:
        """What was stamped, in the order of the items; None if nothing was."""
        if not self._times:
            return None
        names = ("source", *stage_names(self._job.application))
        began, done, ended = (np.zeros(self._items, np.int64) for _ in range(3))
        took = np.zeros((self._items, len(names)), np.int64)
        for chunk, left, now in self._times:
            assert chunk.times is not None
            where = slice(chunk.span.start, chunk.span.stop)
            began[where] = chunk.times[:, 0]
            took[where] = chunk.times[:, 1:]
            done[where] = left
            ended[where] = now
        stamps = Stamps(names, began, took, ended, left=done)
        return by_item(stamps, self._job.clutter, self._items)


def gather(job: Job, items: int, chunks: Iterable[Chunk]) -> Done:
    """Write the results of all chunks. The clock starts here: workers stand ready."""
    arrivals = Arrivals(job, items)
    with job.monitor or nullcontext():
        began_s = time.monotonic()
        results: Iterable[object] = arrivals.results(chunks)
        if job.clutter and job.application.ordered:
            results = reordered(results, job.clutter, items)
        if job.in_memory:
            results = list(results)
            wall_s = time.monotonic() - began_s
            job.application.write(job.folder, results, job.output)
        else:
            job.application.write(job.folder, results, job.output)
            wall_s = time.monotonic() - began_s
    done = Done(items, wall_s, stamps=arrivals.stamps())
    if job.monitor is not None:
        done.monitored = job.monitor.table()
    return done
