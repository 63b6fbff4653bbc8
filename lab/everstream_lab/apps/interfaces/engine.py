"""Everstream itself: the application's pipeline, with checkpoints, and with kills if asked for.

The clock runs from the first shard running to the result file being written from the part files,
so that what is compared ends with the same file everywhere.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from everstream_lab.apps.interfaces.clutter import by_item, with_clutter
from everstream_lab.apps.interfaces.job import Array, Done, Job, Stamps
from everstream_lab.apps.interfaces.loading import gathers, loaded, uncut
from everstream_lab.apps.interfaces.probes import NO_ITEM, probed, read_notes
from everstream_lab.apps.interfaces.shape import shaped


def stamps_of(graph: Graph, folder: Path, items: int) -> Stamps | None:
    """One row per item whose way through all parts is known; None if there is none.

    Rows of replicas are put together by the identity of their items, not by the order in which
    they were done. A part that has fewer records than there are items, or more (one that adds them
    up, or takes them apart), has no rows: its items are not those of the source.
    """
    sources = graph.of_kind(Kind.SOURCE)
    if len(sources) != 1:
        return None
    given = _given_items(read_notes(folder, sources[0].name))
    if not given:
        return None
    began, read = np.zeros(items, np.int64), np.zeros(items, np.int64)
    for one in given.values():
        began[one.items], read[one.items] = one.began, one.share
    known = np.zeros(items, bool)
    known[[item for one in given.values() for item in one.items]] = True
    names, columns, ended = [sources[0].name], [read], None
    left: Array | None = None
    for node in graph.upstream_first():
        if node.kind is Kind.SOURCE:
            continue
        part = _by_item(read_notes(folder, node.name), given, items)
        if part is None:
            continue
        names.append(node.name)
        columns.append(part.took)
        ended = part.ended
        if node.kind is Kind.OPERATOR and not node.ordered:
            left = part.ended
        known &= part.ended > 0
    if ended is None or not known.any():
        return None
    rows = np.flatnonzero(known)
    took = np.stack([column[rows] for column in columns], axis=1)
    numbers = None if len(rows) == items else rows.astype(np.int64)
    done = None if left is None else left[rows]
    return Stamps(tuple(names), began[rows], took, ended[rows], numbers, done)


@dataclass(frozen=True)
class _Given:
    """A batch as the source gave it."""

    items: range
    began: int
    share: int
    """How long reading took, per item."""


def _given_items(rows: Any) -> dict[float, _Given]:
    """By the time that only this batch has. What was read again comes under another."""
    given = {}
    for row in rows:
        if row["first"] == NO_ITEM or not row["records"]:
            continue
        first, records = int(row["first"]), int(row["records"])
        born = int(row["born"]) or int(row["began"])
        began = min(int(row["began"]), born)
        share = (int(row["ended"]) - int(row["began"])) // records
        given[float(row["stamp"])] = _Given(range(first, first + records), began, share)
    return given


@dataclass(frozen=True)
class _Part:
    """An operator or a sink, item by item; 0 for items that it is not known to have had."""

    took: Array
    ended: Array


def _by_item(rows: Any, given: Mapping[float, _Given], items: int) -> _Part | None:
    """What a part noted, under the items it was done to; None if its records are no items.

    The pieces that a batch is cut into come in its order. After a failure the last time counts.
    """
    if int(rows["records"].sum()) < items:
        return None
    took, ended = np.zeros(items, np.int64), np.zeros(items, np.int64)
    had: dict[float, int] = {}
    for row in rows:
        stamp, records = float(row["stamp"]), int(row["records"])
        if stamp not in given or not records:
            continue  # a checkpoint in the middle of a batch has forgotten when it came in
        batch = given[stamp].items
        at = had.get(stamp, 0) % len(batch)
        if at + records > len(batch):
            return None
        own = slice(batch.start + at, batch.start + at + records)
        took[own] = (int(row["ended"]) - int(row["began"])) // records
        ended[own] = int(row["ended"])
        had[stamp] = at + records
    return _Part(took, ended)


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

    def spread(parts: Path) -> Pipeline:
        made = make(job.folder, parts, shards=job.workers, batch=_read_at_once(job))
        return shaped(made, job.application, job.stages, job.workers)

    return drive(job, spread)


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
        pipeline = with_clutter(make(parts), job.clutter, items)
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
        stamps = by_item(stamps_of(pipeline.graph, notes, items), job.clutter, items)
        return Done(
            items,
            result.wall_s + (0.0 if job.in_memory else finished_s),
            startup_s=result.startup_s,
            stamps=stamps if job.clocked else None,
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
