"""What the way from source to sink costs an item, when nothing is done to it.

Three pipelines that do nothing: all in one process; with a channel between two; and a farm, whose
two shards stand between a source and an ordered sink. The clock runs from the first item's arrival
at the sink to the last one's, with checkpoints on; so the figure is the cost of each further item.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from everstream.connectors.generate.sources import Range
from everstream.engine.run import run
from everstream.errors import RunFailed
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.report import Figure, Progress, Report, at_most

SHAPES = ("one process", "two processes", "farm of two, in order")
TARGETS_US = {1: 50.0, 100: 2.0}
"""Batch -> the most an item may take."""
EVERY_S = 1.0


def figure_of(shape: str, batch: int, rounds_us: Sequence[float]) -> Figure:
    """What an item took in one shape and batch size; of several rounds the best one counts."""
    target_us = TARGETS_US.get(batch)
    return Figure(
        f"{shape}, batch {batch:,}",
        min(rounds_us),
        "µs per item",
        None if target_us is None else at_most(target_us),
        repetitions=tuple(rounds_us),
    )


class Watched(Sink):
    """Keeps nothing but when the first and the last batch came, and how many items there were."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)

    def open(self, shard: SinkShard) -> Writer:
        return _WatchedWriter(self.path)


class _WatchedWriter(Writer):
    def __init__(self, path: str) -> None:
        self._path = path
        self._first_s = self._last_s = 0.0
        self._first = self._items = 0

    def write(self, batch: Batch) -> None:
        self._last_s = time.monotonic()
        if not self._items:
            self._first_s, self._first = self._last_s, len(batch)
        self._items += len(batch)

    def close(self) -> None:
        if self._items:
            seen = np.array([self._items, self._first, self._first_s, self._last_s])
            Path(self._path).write_bytes(seen.tobytes())


def per_item_us(seen: bytes, items: int) -> float:
    """From what the sink has noted: what each item after the first batch took."""
    came, first, first_s, last_s = np.frombuffer(seen).tolist()
    if came != items:
        raise RunFailed(f"{came:.0f} items came where {items} were sent")
    took_s = float(last_s - first_s)
    return 1e6 * took_s / (items - int(first))


def measure(
    batches: Sequence[int],
    seconds: float,
    rounds: int,
    progress: Progress = lambda text: None,
) -> Report:
    """All shapes with all batch sizes, in turn; each with items for about this many seconds."""
    rounds_us: dict[tuple[str, int], list[float]] = {}
    items = {batch: _items(batch, seconds) for batch in batches}
    _once(SHAPES[0], 1, 100)  # starts Spark
    for number in range(rounds):
        for shape in SHAPES:
            for batch in batches:
                progress(f"round {number + 1} of {rounds}: {shape}, batch {batch}")
                rounds_us.setdefault((shape, batch), []).append(_once(shape, batch, items[batch]))
    figures = [figure_of(*key, took_us) for key, took_us in rounds_us.items()]
    return Report("items", figures, {"every_s": EVERY_S, "items_by_batch": items})


def _items(batch: int, seconds: float) -> int:
    """As many as fit into the time if a batch takes 50 µs and an item in it 0.2."""
    return max(2, int(seconds / (50e-6 + 0.2e-6 * batch))) * batch


def _once(shape: str, batch: int, items: int) -> float:
    with tempfile.TemporaryDirectory(prefix="everstream-items-") as folder:
        pipeline, slots = _pipeline(shape, batch, items, Path(folder, "seen"))
        run(pipeline, checkpoint=Coordinated(every=EVERY_S), master=f"local[{slots}]")
        return per_item_us(Path(folder, "seen").read_bytes(), items)


def _pipeline(shape: str, batch: int, items: int, seen: Path) -> tuple[Pipeline, int]:
    pipeline, sink = Pipeline("items"), Watched(seen)
    numbers = pipeline.source(Range(items, batch=batch), name="numbers")
    match shape:
        case "one process":
            numbers.map(_as_it_is, name="same").sink(sink, name="out")
            return pipeline, 1
        case "two processes":
            numbers.on_demand().map(_as_it_is, name="same").sink(sink, name="out")
            return pipeline, 2
        case _:
            farm = numbers.map(_as_it_is, name="same", shards=2)
            farm.sink(sink, name="out", ordered=True)
            return pipeline, 3


def _as_it_is(item: int) -> int:
    return item
