"""Everstream itself: the application's pipeline, with checkpoints, and with kills if asked for.

The clock runs from the first shard running to the result file being written from the part files,
so that what is compared ends with the same file everywhere.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from everstream.connectors.wrapping import Wrapping
from everstream.engine.reporting.listener import Listener
from everstream.engine.run import run
from everstream.errors import UserError
from everstream.events import Progressed, RunEvent
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Graph, Kind
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline
from everstream_lab.apps.interfaces.job import Array, Done, Job, Stamps
from everstream_lab.apps.interfaces.loading import gathers, loaded, uncut
from everstream_lab.apps.interfaces.probes import probed, read_notes


def stamps_of(graph: Graph, folder: Path, items: int) -> Stamps | None:
    """One row per item that came out, if it is known when it came in; None if that is none."""
    noted = {node.name: read_notes(folder, node.name) for node in graph.upstream_first()}
    # A killed source may have read what it did not come to note.
    whole = {
        name: rows
        for name, rows in noted.items()
        if rows["records"].sum() >= items
        or (graph.nodes[name].kind is Kind.SOURCE and len(rows) > 0)
    }
    behind = [node for node in graph.upstream_first() if node.name in whole]
    if not behind or behind[-1].kind is Kind.SOURCE:
        return None
    # What a checkpoint had in the middle of a batch has forgotten when it came in.
    last = whole[behind[-1].name]
    last = last[last["born"] > 0]
    if not len(last):
        return None
    came, born = _each(last, last["ended"]), _each(last, last["born"])
    names = [node.name for node in behind]
    took = np.stack([_sized(_shares(whole[name]), len(came)) for name in names], axis=1)
    return Stamps(tuple(names), born, took, came)


def _each(rows: Any, values: Any) -> Array:
    """A value per record from one per batch."""
    return np.repeat(values, rows["records"]).astype(np.int64)


def _shares(rows: Any) -> Array:
    """Each record's share of the time its batch took."""
    shares = (rows["ended"] - rows["began"]) // np.maximum(rows["records"], 1)
    return _each(rows, shares)


def _sized(values: Array, length: int) -> Array:
    """After a failure some parts have had more records than others: the last ones count."""
    return values[-length:] if len(values) >= length else _padded(values, length)


def _padded(values: Array, length: int) -> Array:
    return np.concatenate([np.repeat(values[:1], length - len(values)), values])


def preloaded_sources(pipeline: Pipeline) -> Pipeline:
    """A copy of the pipeline whose sources read everything first."""
    nodes = {
        name: replace(
            node, what=_InMemory(node.what) if isinstance(node.what, Source) else node.what
        )
        for name, node in pipeline.graph.nodes.items()
        if node.kind is Kind.SOURCE
    }
    return pipeline.with_nodes(nodes)


class _InMemory(Wrapping[Any]):
    def open(self, shard: int, shards: int) -> Reader:
        reader = self._source.open(shard, shards)
        batches: list[Batch] = []
        while not isinstance(batch := reader.read(), EndOfStream):
            if batch is None:
                raise UserError(
                    "in-memory mode reads all input first, and this source has nothing just now: "
                    "it has no end that could be waited for. Drop --in-memory."
                )
            batches.append(batch)
        reader.close()
        return _MemoryReader(batches)


class _MemoryReader(Reader):
    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches
        self._given = 0

    @property
    def offset(self) -> int:
        return self._given

    def seek(self, offset: int) -> None:
        self._given = offset

    def read(self) -> Batch | EndOfStream:
        if self._given == len(self._batches):
            return END
        self._given += 1
        return self._batches[self._given - 1]


IN_MEMORY = Path("/dev/shm")


def everstream(job: Job) -> Done:
    """The hand-written pipeline."""
    make = job.application.pipeline
    return drive(
        job, lambda parts: make(job.folder, parts, shards=job.workers, batch=_read_at_once(job))
    )


def _read_at_once(job: Job) -> int:
    """Items that the source reads as one batch, before any that are put together by time."""
    return 1 if gathers(job) else job.batch


def annotated(job: Job) -> Done:
    """The pipeline that is made of the annotated sequential program."""
    make = job.application.annotated
    return drive(
        job, lambda parts: make(job.folder, parts, shards=job.workers, batch=_read_at_once(job))
    )


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

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, Progressed):
            self._job.progress(min(event.status.records_read, self._items), self._items)
