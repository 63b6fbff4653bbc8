"""PySpark without Everstream: an RDD of positions, mapped by the stages, brought back in order.

Tuned as usual: more partitions than workers, so that none waits long for the slowest,
Python processes started before the clock, and all results in one job.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from everstream.engine.spark.context import make_context
from everstream.errors import UserError
from everstream_lab.apps.interfaces.arrivals import gather
from everstream_lab.apps.interfaces.clutter import cluttered
from everstream_lab.apps.interfaces.job import Done, Job, farmed
from everstream_lab.apps.interfaces.plugin import Opened
from everstream_lab.apps.interfaces.tasks import tasks
from everstream_lab.apps.interfaces.work import Chunk, Task

PARTITIONS_PER_WORKER = 8


def plain_spark(job: Job) -> Done:
    if job.load is not None:
        raise UserError(
            "the interface pyspark gives all items at once: it has no frequency or pattern. Drop "
            "them, or take another interface."
        )
    began_s = time.monotonic()
    job = replace(job, application=farmed(cluttered(job.application, job.clutter)))
    context = make_context(f"local[{job.workers}]", f"{job.application.name} with plain RDDs")
    context.parallelize(range(job.workers), job.workers).map(abs).count()
    items = len(job.application.items(job.folder))
    spread = [*tasks(job, items)]
    partitions = max(1, min(len(spread), job.workers * PARTITIONS_PER_WORKER))
    chunks = context.parallelize(spread, partitions).mapPartitions(_OnPartition(Opened.of(job)))
    startup_s = time.monotonic() - began_s
    return replace(gather(job, items, _collected(chunks)), startup_s=startup_s)


def _collected(chunks: Any) -> Iterator[Chunk]:
    # In one job: `toLocalIterator` would run one partition after the other.
    yield from chunks.collect()


class _OnPartition:
    """The stages over one partition; only its description is sent, and it loads the rest."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def __call__(self, spread: Iterable[Task]) -> Iterator[Chunk]:
        return map(self._opened.open(), spread)
