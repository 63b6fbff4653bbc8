"""Everstream itself: the application's pipeline, with checkpoints, and with kills if asked for.

The clock runs from the first shard running to the result file being written from the part files,
so that what is compared ends with the same file everywhere.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from everstream.apps.interfaces.job import Done, Job
from everstream.apps.interfaces.loading import loaded, uncut
from everstream.apps.interfaces.preloading import preloaded_sources
from everstream.apps.interfaces.probes import probed
from everstream.apps.interfaces.stamping import stamps_of
from everstream.pipeline.graph import Kind
from everstream.pipeline.stream import Pipeline
from everstream.spark.listener import Listener, Snapshot
from everstream.spark.run import run

IN_MEMORY = Path("/dev/shm")


def everstream(job: Job) -> Done:
    """The hand-written pipeline."""
    make = job.application.pipeline
    return drive(job, lambda parts: make(job.folder, parts, shards=job.workers, batch=job.batch))


def annotated(job: Job) -> Done:
    """The pipeline that is made of the annotated sequential program."""
    make = job.application.annotated
    return drive(job, lambda parts: make(job.folder, parts, shards=job.workers, batch=job.batch))


def drive(job: Job, make: Callable[[Path], Pipeline]) -> Done:
    """Run the pipeline that writes its part files into a folder, and make the result of them."""
    items = len(job.application.items(job.folder))
    place = IN_MEMORY if job.in_memory and IN_MEMORY.is_dir() else job.output.parent
    with tempfile.TemporaryDirectory(prefix="everstream-", dir=place) as folder:
        parts, store, notes = Path(folder, "parts"), Path(folder, "store"), Path(folder, "notes")
        pipeline = make(parts)
        if job.in_memory:
            pipeline = preloaded_sources(pipeline)
        pipeline = loaded(pipeline, job, items)
        if job.whole:
            pipeline = uncut(pipeline)
        if job.clocked:
            notes.mkdir()
            pipeline = probed(pipeline, notes)
        (source,) = [node.name for node in pipeline.graph.of_kind(Kind.SOURCE)][:1]
        result = run(
            pipeline,
            checkpoint=job.checkpoint,
            store=store,
            kill=job.kills,
            master=f"local[{job.workers + 1}]",
            listener=_Teller(job, source, items),
            max_restarts=max(3, len(job.kills)),
            monitor=job.monitor,
        )
        ended_s = time.monotonic()
        job.application.finish(job.folder, parts, job.output, result.returned)
        finished_s = time.monotonic() - ended_s
        job.progress(items, items)
        return Done(
            items,
            result.wall_s + (0.0 if job.in_memory else finished_s),
            startup_s=result.startup_s,
            stamps=stamps_of(pipeline.graph, notes, items) if job.clocked else None,
            checkpoints=result.checkpoint_count,
            recoveries=[
                {**report.to_json(), "at_s": round(report.start_s - result.started_s, 3)}
                for report in result.recoveries
            ],
            notes=list(result.notes),
            monitored=result.monitored,
            began_s=None if job.monitor is None else result.started_s - job.monitor.began_s,
        )


class _Teller(Listener):
    """Says how many items have been read."""

    def __init__(self, job: Job, source: str, items: int) -> None:
        self._job = job
        self._source = source
        self._items = items

    def progress(self, snapshot: Snapshot) -> None:
        self._job.progress(min(snapshot.records_read, self._items), self._items)
