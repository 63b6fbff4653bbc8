"""Use case 4 of ResiPipe: what checkpoints cost an operator that holds 100 MB of state.

The thesis lost 8.17 % of its throughput at its shortest interval, because it stopped processing
while it wrote. Here the snapshot leaves the hot path: the state is shared or copied in one
instant and written by another thread.

Machines are shared, and what is looked for is a hundredth: rounds alternate, each side is judged by its
best one, and the time in which the operator waited for a processor is reported separately.
"""

import os
import statistics
import time

from everstream.connectors.generate.sources import FromFunction
from everstream.engine.run import run
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.durations import Durations, busy
from everstream_lab.bench.report import Figure, Progress, Report, at_most

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
            self.began = Durations.by_now()
        until_s = time.thread_time() + self.work_s
        while time.thread_time() < until_s:
            pass
        self.batches += 1
        if self.batches % self.change_every == 0:
            number = self.batches // self.change_every % self.chunks
            ctx.state.put(number, os.urandom(CHUNK_BYTES))
        if self.batches == self.last:
            ctx.emit(Durations.by_now().since(self.began))


def measure(
    *,
    state_bytes: int = 100 << 20,
    changed: float = 0.1,
    factor: float = 10.0,
    batches: int = 8_000,
    work_s: float = 0.001,
    rounds: int = 5,
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> Report:
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

    def once(checkpoint: Coordinated | None) -> Durations:
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
        assert isinstance(took, Durations)
        return took

    off: list[Durations] = []
    on: list[Durations] = []
    for number in range(rounds):
        for checkpointed in (False, True) if number % 2 == 0 else (True, False):
            mode = f"every {interval_s:g} s" if checkpointed else "without checkpoints"
            progress(f"round {number + 1} of {rounds}: {mode}")
            took = once(Coordinated(every=interval_s) if checkpointed else None)
            (on if checkpointed else off).append(took)
    costs = [1 - without.wall_s / with_.wall_s for without, with_ in zip(off, on, strict=True)]
    best = 1 - min(t.wall_s for t in off) / min(t.wall_s for t in on)
    unqueued = 1 - min(t.unqueued_s for t in off) / min(t.unqueued_s for t in on)
    figures = [
        # Share of the throughput lost at the shortest interval; best rounds compared.
        Figure(
            "checkpoint_cost",
            round(best, 4),
            target=at_most(0.01),
            beside="ResiPipe's thesis: 0.0817",
        ),
        # The same without the time in which the operator waited for a processor.
        Figure("unqueued_cost", round(unqueued, 4)),
        # Per round, with its neighbour without checkpoints.
        Figure("median_cost", round(statistics.median(costs), 4), repetitions=tuple(costs)),
        # Of one processor, what checkpoints take in the operator's worker; medians compared.
        Figure("background_share", round(busy(on) - busy(off), 4)),
        Figure("checkpoints_per_run", sum(epochs) / len(epochs)),
        # Per checkpoint, on average; there are two copies of it in the store.
        Figure("saved", sum(sizes) / max(1, len(sizes)), "bytes"),
        Figure("largest_capture", max(captures), "s"),
        Figure.median("with", (took.wall_s for took in on), "s"),
        Figure.median("without", (took.wall_s for took in off), "s"),
    ]
    settings = {
        "state_bytes": chunks * CHUNK_BYTES,
        "changed": changed,
        "interval_s": interval_s,
    }
    return Report("state", figures, settings)
