"""Use case 4 of ResiPipe: what checkpoints cost an operator that holds 100 MB of state.

The thesis lost 8.17 % of its throughput at its shortest interval, because it stopped processing
while it wrote. Here the snapshot leaves the hot path: the state is shared or copied in one
instant and written by another thread.

Machines are shared, and what is looked for is a hundredth: rounds alternate, each side is judged by its
best one, and the time in which the operator waited for a processor is told apart.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from everstream.bench.took import Took, busy
from everstream.connectors.generate import FromFunction
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream.spark.run import run

CHUNK_BYTES = 1 << 20


class Holder(Operator):
    """Does a little work per batch and holds a large state, all of it new in each run."""

    def __init__(self, batches: int, chunks: int, work_s: float, change_every: int) -> None:
        """change_every: batches after which one chunk changes."""
        self.last = batches
        self.chunks = chunks
        self.work_s = work_s
        self.change_every = change_every

    def on_start(self, ctx: Context) -> None:
        if not ctx.state.contains(0):
            for number in range(self.chunks):
                ctx.state.put(number, os.urandom(CHUNK_BYTES))
        self.batches = 0

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        # From the first batch to the last: how a run begins and ends is not what is looked for.
        if not self.batches:
            self.began = Took.by_now()
        until_s = time.thread_time() + self.work_s
        while time.thread_time() < until_s:
            pass
        self.batches += 1
        if self.batches % self.change_every == 0:
            number = self.batches // self.change_every % self.chunks
            ctx.state.put(number, os.urandom(CHUNK_BYTES))
        if self.batches == self.last:
            ctx.emit(Took.by_now().since(self.began))


@dataclass
class LargeState:
    """What each round took with checkpoints on and off, and what that means."""

    checkpoint_cost: float
    """Share of the throughput lost at the shortest interval; best rounds compared."""
    unqueued_cost: float
    """The same without the time in which the operator waited for a processor."""
    median_cost: float
    """The same as the first per round, with its neighbour without checkpoints; the middle one of them."""
    spread: float
    """Between the cheapest and the dearest round."""
    background_share: float
    """Of one processor, what checkpoints take in the operator's host; medians compared."""
    state_bytes: int
    changed: float
    interval_s: float
    checkpoints_per_run: float
    saved_bytes: float
    """Per checkpoint, on average; there are two copies of it in the store."""
    largest_capture_s: float
    with_s: list[float] = field(default_factory=list)
    without_s: list[float] = field(default_factory=list)


def measure(
    *,
    state_bytes: int = 100 << 20,
    changed: float = 0.1,
    factor: float = 10.0,
    batches: int = 8_000,
    work_s: float = 0.001,
    rounds: int = 5,
    master: str = "local[2]",
    progress: Callable[[str], None] = lambda text: None,
) -> LargeState:
    """The thesis's 15 s interval divided by `factor`, against no checkpoints, in turn.

    Of the state, the part `changed` is new in each interval. Who goes first changes from round to
    round, so that a machine that gets slower or faster favours neither.
    """
    interval_s = 15.0 / factor
    chunks = max(1, state_bytes // CHUNK_BYTES)
    change_every = max(1, round(interval_s / work_s / (changed * chunks)))
    epochs: list[int] = []
    captures: list[float] = [0.0]
    sizes: list[int] = []

    def once(checkpoint: Coordinated | None) -> Took:
        pipeline = Pipeline("large-state")
        numbers = FromFunction(lambda a, b: list(range(a, b)), total=batches * 10, batch=10)
        holder = Holder(batches, chunks, work_s, change_every)
        pipeline.source(numbers).on_demand().process(holder).collect()
        result = run(pipeline, checkpoint=checkpoint, master=master, workers=2)
        regular = [manifest for manifest in result.checkpoints if not manifest.final]
        if checkpoint is not None:
            epochs.append(len(regular))
            captures.extend(r.capture_s for m in regular for r in m.records.values())
            sizes.extend(sum(r.size_bytes for r in m.records.values()) for m in regular)
        [took] = result.collected()
        assert isinstance(took, Took)
        return took

    off: list[Took] = []
    on: list[Took] = []
    for number in range(rounds):
        for checkpointed in (False, True) if number % 2 == 0 else (True, False):
            words = f"every {interval_s:g} s" if checkpointed else "without checkpoints"
            progress(f"round {number + 1} of {rounds}: {words}")
            took = once(Coordinated(every=interval_s) if checkpointed else None)
            (on if checkpointed else off).append(took)
    costs = [1 - without.wall_s / with_.wall_s for without, with_ in zip(off, on, strict=True)]
    return LargeState(
        checkpoint_cost=round(1 - min(t.wall_s for t in off) / min(t.wall_s for t in on), 4),
        unqueued_cost=round(1 - min(t.unqueued_s for t in off) / min(t.unqueued_s for t in on), 4),
        median_cost=round(statistics.median(costs), 4),
        spread=round(max(costs) - min(costs), 4),
        background_share=round(busy(on) - busy(off), 4),
        state_bytes=chunks * CHUNK_BYTES,
        changed=changed,
        interval_s=interval_s,
        checkpoints_per_run=sum(epochs) / len(epochs),
        saved_bytes=sum(sizes) / max(1, len(sizes)),
        largest_capture_s=max(captures),
        with_s=[took.wall_s for took in on],
        without_s=[took.wall_s for took in off],
    )
