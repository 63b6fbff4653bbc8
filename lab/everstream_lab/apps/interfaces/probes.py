"""Probes in a pipeline: when each source, operator and sink worked, batch by batch.

`probed` gives a copy of a pipeline whose parts are timed as they stand: the same operators with the
same state in the same shards, each with a clock around its work. What they note goes to one file
per part and process, in blocks of rows, and `read_notes` puts the files together.
"""

import copy
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from everstream.connectors.wrapping import Wrapping
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Kind, Node
from everstream.pipeline.operator import Context, Moment, Operator
from everstream.pipeline.sink import Committable, Sink, SinkShard, Writer
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline

NOTE = np.dtype([("began", "<i8"), ("ended", "<i8"), ("records", "<i8"), ("born", "<i8")])
"""Nanoseconds of the machine's steady clock; `born`: when what it worked on came in, 0: unknown."""
FLUSH_EVERY_NS = 50_000_000
ENDING = ".notes"


class Notes:
    """A file of rows; a killed process leaves all but its last 50 ms."""

    def __init__(self, folder: str, part: str) -> None:
        name = f"{part}.{os.getpid()}-{uuid.uuid4().hex[:8]}{ENDING}"
        self._file = Path(folder, name).open("ab", buffering=0)  # noqa: SIM115
        self._rows: list[tuple[int, int, int, int]] = []
        self._flushed = 0

    def add(self, began: int, records: int, born: int = 0) -> None:
        now = time.monotonic_ns()
        self._rows.append((began, now, records, born))
        if now - self._flushed > FLUSH_EVERY_NS:
            self.flush()
            self._flushed = now

    def flush(self) -> None:
        if self._rows:
            self._file.write(np.array(self._rows, NOTE).tobytes())
            self._rows = []

    def close(self) -> None:
        self.flush()
        self._file.close()


def read_notes(folder: Path, part: str) -> np.ndarray[Any, Any]:
    """What all shards of a part have noted, in the order in which they were done."""
    pieces = [np.empty(0, NOTE)]
    for path in sorted(folder.glob(f"{part}.*{ENDING}")):
        data = path.read_bytes()
        whole = len(data) // NOTE.itemsize * NOTE.itemsize
        pieces.append(np.frombuffer(data[:whole], NOTE))
    rows = np.concatenate(pieces)
    return rows[np.argsort(rows["ended"], kind="stable")]


def born_ns(moment: Moment) -> int:
    """When the current item arrived, on the steady clock; 0 if unknown."""
    if not moment.born_s:
        return 0
    return time.monotonic_ns() - int((time.time() - moment.born_s) * 1e9)


def probed(pipeline: Pipeline, folder: Path) -> Pipeline:
    """A copy of the pipeline with a clock around every part; the original stays as it is."""
    nodes = {
        name: replace(node, what=_probe(node, str(folder)))
        for name, node in pipeline.graph.nodes.items()
    }
    return pipeline.with_nodes(nodes)


def _probe(node: Node, folder: str) -> Any:
    what: Any = node.what
    if node.kind is Kind.SOURCE:
        return _ProbedSource(what, folder, node.name)
    kind = type(what)
    first = _ProbedSink if node.kind is Kind.SINK else _Probed
    twin = copy.copy(what)
    twin.__class__ = type(kind.__name__, (first, kind), {"__module__": kind.__module__})
    twin.probe_folder = folder
    return twin


class _Probed(Operator):
    """In front of an operator's class: the same operator by the clock."""

    probe_folder: str

    def on_start(self, ctx: Context) -> None:
        self._notes = Notes(self.probe_folder, ctx.operator)
        super().on_start(ctx)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        began = time.monotonic_ns()
        super().process_batch(batch, ctx)
        self._notes.add(began, len(batch), born_ns(ctx.moment))

    def before_checkpoint(self, ctx: Context) -> None:
        self._notes.flush()
        super().before_checkpoint(ctx)

    def on_stop(self, ctx: Context) -> None:
        super().on_stop(ctx)
        self._notes.close()


class _ProbedSink(Sink):
    """In front of a sink's class: its writers note when they wrote."""

    probe_folder: str

    def open(self, shard: SinkShard) -> Writer:
        writer = super().open(shard)  # type: ignore[safe-super]
        notes = Notes(self.probe_folder, shard.operator)
        write, prepare, close = writer.write, writer.prepare, writer.close
        moments: list[Moment] = []

        def timed(batch: Batch) -> None:
            began = time.monotonic_ns()
            write(batch)
            notes.add(began, len(batch), born_ns(moments[0]))

        def preparing(checkpoint: int) -> Committable | None:
            notes.flush()
            return prepare(checkpoint)

        def closing() -> None:
            notes.close()
            close()

        writer.write, writer.close = timed, closing  # type: ignore[method-assign]
        writer.prepare = preparing  # type: ignore[method-assign]
        writer.keep_moment = moments.append  # type: ignore[method-assign, assignment]
        return writer


class _ProbedSource(Wrapping[Any]):
    """A source whose reader notes when it read."""

    def __init__(self, source: Source[Any], folder: str, name: str) -> None:
        super().__init__(source)
        self.exact_batches = source.exact_batches
        self._folder = folder
        self._name = name

    def open(self, shard: int, shards: int) -> Reader:
        reader = self._source.open(shard, shards)
        notes = Notes(self._folder, self._name)
        read, close = reader.read, reader.close

        def timed() -> Batch | EndOfStream | None:
            began = time.monotonic_ns()
            batch = read()
            if batch is not None and not isinstance(batch, EndOfStream):
                notes.add(began, len(batch))
            else:
                notes.flush()
            return batch

        def closing() -> None:
            notes.close()
            close()

        reader.read, reader.close = timed, closing  # type: ignore[method-assign]
        return reader

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        return self._source.redistribute(offsets, shards)
