"""Probes in a pipeline: when each source, operator and sink worked, batch by batch.

`probed` gives a copy of a pipeline whose parts are timed in place: the same operators with the
same state in the same shards, each with a clock around its work. What they note goes to one file
per part and process, in blocks of rows, and `read_notes` puts the files together.

Rows carry the identity of their items. A batch travels with the time at which it came in, and the
probe of a source sees to it that no two batches have the same: what a replica notes under that time
was done to the items that the source noted under it.
"""

import copy
import math
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from everstream.connectors.wrapping import Wrapping, WrappingReader
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Kind, Node
from everstream.pipeline.operator import Context, Moment, Operator
from everstream.pipeline.sink import Committable, Sink, SinkShard, Writer
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline

NOTE = np.dtype(
    [(name, "<i8") for name in ("began", "ended", "records", "born")]
    + [("stamp", "<f8"), ("first", "<i8")]
)
"""Nanoseconds of the machine's steady clock; `born`: when what it worked on came in, 0: unknown.

`stamp`: the same in seconds of the wall clock, which no two batches share. `first`: of a source, the
number of the first item; -1 if it is not known, and for all other parts.
"""
NO_ITEM = -1
FLUSH_EVERY_NS = 50_000_000
ENDING = ".notes"


class Notes:
    """A file of rows; a killed process leaves all but its last 50 ms."""

    def __init__(self, folder: str, part: str) -> None:
        name = f"{part}.{os.getpid()}-{uuid.uuid4().hex[:8]}{ENDING}"
        self._file = Path(folder, name).open("ab", buffering=0)  # noqa: SIM115
        self._rows: list[tuple[int, int, int, int, float, int]] = []
        self._flushed = 0

    def add(self, began: int, records: int, moment: Moment, first: int = NO_ITEM) -> None:
        now = time.monotonic_ns()
        self._rows.append((began, now, records, born_ns(moment), moment.born_s, first))
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
        self._notes.add(began, len(batch), ctx.moment)

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
            notes.add(began, len(batch), moments[0])

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
    """A source whose reader notes when it read, and which items."""

    def __init__(self, source: Source[Any], folder: str, name: str) -> None:
        super().__init__(source)
        self.exact_batches = source.exact_batches
        self._folder = folder
        self._name = name

    def open(self, shard: int, shards: int) -> Reader:
        reader = self._source.open(shard, shards)
        return _ProbedReader(reader, Notes(self._folder, self._name), 0 if shards == 1 else NO_ITEM)

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        """Which items come where then is not known: what is noted has no identity."""
        inner = self._source.redistribute([offset for offset, _ in offsets], shards)
        return [(offset, NO_ITEM) for offset in inner]


class _ProbedReader(WrappingReader):
    """Counts the items it gives, and gives each batch a time that no other has."""

    def __init__(self, inner: Reader, notes: Notes, given: int) -> None:
        super().__init__(inner)
        self._notes = notes
        self._given = given
        """How many items were given before; NO_ITEM if that is not known."""
        self._moment = Moment()

    @property
    def offset(self) -> tuple[Any, int]:
        return self._inner.offset, self._given

    def inner_offset(self, offset: tuple[Any, int]) -> Any:
        return offset[0]

    @property
    def holds(self) -> bool:
        return False

    def seek(self, offset: tuple[Any, int]) -> None:
        super().seek(offset)
        self._given = offset[1]

    def read(self) -> Batch | EndOfStream | None:
        began = time.monotonic_ns()
        batch = self._inner.read()
        if batch is None or isinstance(batch, EndOfStream):
            self._notes.flush()
            return batch
        came_s = self._inner.born_s() or time.time()
        self._moment.born_s = max(came_s, math.nextafter(self._moment.born_s, math.inf))
        self._notes.add(began, len(batch), self._moment, self._given)
        if self._given != NO_ITEM:
            self._given += len(batch)
        return batch

    def born_s(self) -> float:
        return self._moment.born_s

    def ready_in_s(self) -> float:
        return self._inner.ready_in_s()

    def close(self) -> None:
        self._notes.close()
        super().close()
