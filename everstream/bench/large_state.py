"""Use case 4 of ResiPipe: what checkpoints cost an operator that holds 100 MB of state.

The thesis lost 8.17 % of its throughput at its shortest interval, because it stopped processing
while it wrote. Here the snapshot leaves the hot path: the state is shared or copied in one
instant and written by another thread.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from everstream.connectors.generate import FromFunction
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream.spark.run import run

CHUNK_BYTES = 1 << 20
CHANGE_EVERY = 150
"""Batches after which one chunk changes: about a tenth of the state per interval."""


class Holder(Operator):
    """Does a little work per batch and holds a large state, all of it new in each run."""

    def __init__(self, size_bytes: int, work_s: float) -> None:
        self.size_bytes = size_bytes
        self.work_s = work_s

    def on_start(self, ctx: Context) -> None:
        if not ctx.state.contains(0):
            for number in range(self.size_bytes // CHUNK_BYTES):
                ctx.state.put(number, os.urandom(CHUNK_BYTES))
        self.batches = 0
        self.began_s = time.monotonic()

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        until_s = time.thread_time() + self.work_s
        while time.thread_time() < until_s:
            pass
        self.batches += 1
        if self.batches % CHANGE_EVERY == 0:
            number = self.batches // CHANGE_EVERY % (self.size_bytes // CHUNK_BYTES)
            ctx.state.put(number, os.urandom(CHUNK_BYTES))

    def on_end(self, ctx: Context) -> None:
        ctx.emit(time.monotonic() - self.began_s)


@dataclass
class LargeState:
    """Seconds per round with checkpoints on and off, and what that means."""

    checkpoint_cost: float
    """Share of the throughput lost at the shortest interval; best rounds compared."""
    median_cost: float
    """The same per round, with its neighbour without checkpoints; the middle one of them."""
    spread: float
    """Between the cheapest and the dearest round."""
    state_bytes: int
    interval_s: float
    checkpoints_per_run: float
    largest_capture_s: float
    with_s: list[float] = field(default_factory=list)
    without_s: list[float] = field(default_factory=list)


def measure(
    *,
    state_bytes: int = 100 << 20,
    factor: float = 10.0,
    batches: int = 4_000,
    work_s: float = 0.001,
    rounds: int = 3,
    master: str = "local[2]",
    progress: Callable[[str], None] = lambda text: None,
) -> LargeState:
    """The thesis's 15 s interval divided by `factor`, against no checkpoints, in turn."""
    interval_s = 15.0 / factor
    epochs: list[int] = []
    captures: list[float] = [0.0]

    def once(checkpoint: Coordinated | None) -> float:
        pipeline = Pipeline("large-state")
        numbers = FromFunction(lambda a, b: list(range(a, b)), total=batches * 10, batch=10)
        held = pipeline.source(numbers).on_demand().process(Holder(state_bytes, work_s))
        held.collect()
        result = run(pipeline, checkpoint=checkpoint, master=master, workers=2)
        regular = [manifest for manifest in result.checkpoints if not manifest.final]
        if checkpoint is not None:
            epochs.append(len(regular))
            captures.extend(r.capture_s for m in regular for r in m.records.values())
        [took_s] = result.collected()
        return float(took_s)

    found = LargeState(0.0, 0.0, 0.0, state_bytes, interval_s, 0.0, 0.0)
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}: without checkpoints")
        found.without_s.append(once(None))
        progress(f"round {number + 1} of {rounds}: every {interval_s:g} s")
        found.with_s.append(once(Coordinated(every=interval_s)))
    found.checkpoint_cost = round(1 - min(found.without_s) / min(found.with_s), 4)
    costs = [1 - off_s / on_s for off_s, on_s in zip(found.without_s, found.with_s, strict=True)]
    found.median_cost = round(statistics.median(costs), 4)
    found.spread = round(max(costs) - min(costs), 4)
    found.checkpoints_per_run = sum(epochs) / len(epochs)
    found.largest_capture_s = max(captures)
    return found
