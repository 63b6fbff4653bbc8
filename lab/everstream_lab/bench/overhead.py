"""What the engine costs: its throughput against a bare loop over the same operators and batches.

Machines are noisy and shared, so everything is measured several times in turn within one run and
each side is judged by its best round: noise only ever makes a round slower.
"""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from everstream.connectors.generate.sources import FromFunction
from everstream.engine.run import run
from everstream.errors import RunFailed
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.operators.builtin import Filter, Predicate
from everstream.pipeline.stream import Pipeline
from everstream.state.backends.memory import MemoryBackend
from everstream_lab.bench.bids import BATCH, bids, even_auctions
from everstream_lab.bench.report import Figure, Progress, Report, at_least, at_most

EVEN = pl.col("auction") % 2 == 0


def even_row(row: dict[str, int]) -> bool:
    """The same filter as a plain Python function, called for every record."""
    return row["auction"] % 2 == 0


class Count(Operator):
    """Counts records; at the end emits the count, how long it took, and the processor time of its worker."""

    def on_start(self, ctx: Context) -> None:
        self.began_s = time.monotonic()
        self.began_cpu_s = time.process_time()

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        ctx.state.put("records", ctx.state.get("records", 0) + len(batch))

    def on_end(self, ctx: Context) -> None:
        took_s, cpu_s = time.monotonic() - self.began_s, time.process_time() - self.began_cpu_s
        ctx.emit((ctx.state.get("records", 0), took_s, cpu_s))


@dataclass
class Timing:
    """Seconds per round for one way of doing the work."""

    records: int
    rounds_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of one worker, where it was looked at."""

    def add(self, run: "EngineRun") -> None:
        self.rounds_s.append(run.took_s)
        self.cpu_s.append(run.cpu_s)

    @property
    def records_per_s(self) -> float:
        return self.records / min(self.rounds_s)

    def figure(self, name: str) -> Figure:
        """Its best round, and all of them."""
        rounds = tuple(round(self.records / took_s) for took_s in self.rounds_s)
        return Figure(name, max(rounds), "records/s", repetitions=rounds)


def bare_loop(predicate: Predicate, records: int) -> float:
    """The same generator and operators on the same batches in one plain loop; seconds."""
    keep, count = Filter(predicate), Count()
    keep_ctx, count_ctx = (Context(n, 0, 1, MemoryBackend()) for n in ("keep", "count"))
    began_s = time.monotonic()
    for start in range(0, records, BATCH):
        keep.process_batch(bids(start, min(records, start + BATCH)), keep_ctx)
        for _, batch in keep_ctx.take_emitted():
            count.process_batch(batch, count_ctx)
    took_s = time.monotonic() - began_s
    _check(count_ctx.state.get("records"), records)
    return took_s


class EngineRun(NamedTuple):
    """One run on Spark."""

    took_s: float
    cpu_s: float
    """Of the worker that filters and counts."""
    epochs: int


def engine(
    predicate: Predicate,
    records: int,
    checkpoint: Coordinated | None,
    master: str,
    batch: int = BATCH,
) -> EngineRun:
    """The same on two workers with a channel between them."""
    pipeline = Pipeline("overhead")
    source = pipeline.source(FromFunction(bids, total=records, batch=batch), name="bids")
    source.on_demand().filter(predicate, name="even").process(Count(), name="count").collect()
    result = run(pipeline, checkpoint=checkpoint, master=master, workers=2)
    [(count, took_s, cpu_s)] = result.collected()
    _check(count, records)
    return EngineRun(took_s, cpu_s, len(result.checkpoints) - 1)


def _check(count: Any, records: int) -> None:
    expected = even_auctions(records)
    if count != expected:
        raise RunFailed(f"counted {count} records where {expected} were expected")


def measure(
    *,
    records: int = 20_000_000,
    python_records: int = 4_000_000,
    checkpoint_records: int = 100_000_000,
    every_s: float = 1.0,
    rounds: int = 5,
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> Report:
    """Run everything in turn, several rounds."""
    often = Coordinated(every=every_s)
    timings = {
        "bare": Timing(records),
        "engine": Timing(records),
        "engine_long": Timing(checkpoint_records),
        "engine_long_no_checkpoints": Timing(checkpoint_records),
        "bare_python": Timing(python_records),
        "engine_python": Timing(python_records),
    }
    epochs: list[int] = []
    engine(EVEN, BATCH, None, master)  # starts Spark and its workers
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}: columns")
        timings["bare"].rounds_s.append(bare_loop(EVEN, records))
        timings["engine"].add(engine(EVEN, records, often, master))
        progress(f"round {number + 1} of {rounds}: checkpoints on and off")
        done = engine(EVEN, checkpoint_records, often, master)
        epochs.append(done.epochs)
        timings["engine_long"].add(done)
        done = engine(EVEN, checkpoint_records, None, master)
        timings["engine_long_no_checkpoints"].add(done)
        progress(f"round {number + 1} of {rounds}: a Python function per record")
        timings["bare_python"].rounds_s.append(bare_loop(even_row, python_records))
        timings["engine_python"].add(engine(even_row, python_records, often, master))
    speed = {name: timing.records_per_s for name, timing in timings.items()}
    figures = [
        Figure("efficiency", round(speed["engine"] / speed["bare"], 4), target=at_least(0.9)),
        Figure(
            "checkpoint_cost",
            round(1 - speed["engine_long"] / speed["engine_long_no_checkpoints"], 4),
            target=at_most(0.03),
        ),
        Figure(
            "efficiency_python",
            round(speed["engine_python"] / speed["bare_python"], 4),
            target=at_least(0.9),
        ),
        Figure("checkpoints_per_run", sum(epochs) / len(epochs)),
        *(timing.figure(name) for name, timing in timings.items()),
    ]
    return Report("overhead", figures, {"every_s": every_s, "rounds": rounds})
