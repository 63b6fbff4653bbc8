"""From chunks to the result file, by the clock: the end of every driver over plain stages."""

import time
from collections.abc import Iterable
from contextlib import nullcontext

from everstream.apps.interfaces.arrivals import Arrivals
from everstream.apps.interfaces.job import Done, Job
from everstream.apps.interfaces.work import Chunk


def gather(job: Job, items: int, chunks: Iterable[Chunk]) -> Done:
    """Write the results of all chunks. The clock starts here: workers stand ready."""
    arrivals = Arrivals(job, items)
    with job.monitor or nullcontext():
        began_s = time.monotonic()
        results: Iterable[object] = arrivals.results(chunks)
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
