"""How long records take at a steady rate, from when each was due to an at-least-once sink.

A paced source in one process, a count per key and the sink in another, checkpoints every second. A
record that waits for anything at all, be it for others of its frame, counts from its due time. The
longest standstill is the longest time in which nothing came although something was due.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import FromFunction
from everstream.connectors.live import Callback
from everstream.engine.run import run
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.checkpointing import Coordinated, EngineName
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.latency import Arrivals, Timed, quantiles, read_arrivals
from everstream_lab.bench.load import Stalls
from everstream_lab.bench.report import Figure, Progress, Report, at_most

DUE = "due_us"
KEYS = 1000
WARM_UP_S = 2.0
"""What was due so early is left out: processes load their libraries, connections are made."""
SHARES = (0.5, 0.99, 0.999)


@dataclass(frozen=True)
class Delays:
    """At one rate; times in milliseconds."""

    rate: float
    seconds: float
    records: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float
    standstill_ms: float
    machine_stall_ms: float
    """How long the machine made an idle thread wait, at worst: no pipeline can be better."""

    def figures(self) -> list[Figure]:
        at = f"at {self.rate:,.0f}/s"
        return [
            Figure(f"p50 {at}", self.p50_ms, "ms", at_most(0.7)),
            Figure(f"p99 {at}", self.p99_ms, "ms"),
            Figure(f"p99.9 {at}", self.p999_ms, "ms", at_most(5)),
            Figure(f"longest {at}", self.longest_ms, "ms"),
            Figure(f"standstill {at}", self.standstill_ms, "ms"),
            Figure(f"machine stall {at}", self.machine_stall_ms, "ms"),
        ]


class CountByKey(Operator):
    """How often each key came; hands its rows on."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        keys = columns_of(batch, ctx.operator)["key"].to_list()
        counts = ctx.state.changing(keys)
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        ctx.emit_batch(batch)


def rows(start: int, stop: int) -> pl.DataFrame:
    """Row n has key n modulo the number of keys."""
    return pl.DataFrame({"key": np.arange(start, stop) % KEYS})


def measure(
    rates: Sequence[float],
    seconds: float,
    progress: Progress = lambda text: None,
    master: str = "local[2,1000]",
) -> list[Delays]:
    """One run for each rate."""
    measured = []
    for rate in rates:
        progress(f"{rate:,.0f} records/s")
        measured.append(measure_at(rate, seconds, master))
    return measured


def measure_report(
    rates: Sequence[float], seconds: float, progress: Progress = lambda text: None
) -> Report:
    runs = measure(rates, seconds, progress)
    figures = [figure for run in runs for figure in run.figures()]
    return Report("latency", figures, {"seconds": seconds})


def measure_at(rate: float, seconds: float, master: str, engine: EngineName = "tasks") -> Delays:
    """One run on this engine."""
    total = int(rate * (WARM_UP_S + seconds))
    pipeline = Pipeline("delays")
    with tempfile.TemporaryDirectory(prefix="everstream-delays-") as folder:
        source = Paced(FromFunction(rows, total=total), rate, due=DUE)
        counted = pipeline.source(source, name="rows").key_by("key").process(CountByKey(), shards=2)
        counted.sink(Timed(Callback(_drop, batches=True), folder), name="out")
        with Stalls() as stalls:
            run(
                pipeline,
                engine=engine,
                master=master,
                workers=None if engine == "microbatch" else 2,
                checkpoint=Coordinated(every="1s"),
                latency=0,
            )
        return summed_up(read_arrivals(folder), rate, seconds, stalls.longest_s)


def summed_up(arrivals: Arrivals, rate: float, seconds: float, stall_s: float) -> Delays:
    """Of the arrivals, those that were due after the warm-up."""
    start_s = float(arrivals.due_s.min()) + WARM_UP_S
    timed = arrivals.due_between(start_s, np.inf)
    latency_s = timed.latency_s
    p50_s, p99_s, p999_s = quantiles(latency_s, timed.records, SHARES)
    standstill_s = float(np.diff(np.unique(timed.at_s)).max(initial=0.0))
    return Delays(
        rate,
        seconds,
        records=float(timed.records.sum()),
        p50_ms=_ms(p50_s),
        p99_ms=_ms(p99_s),
        p999_ms=_ms(p999_s),
        longest_ms=_ms(float(latency_s.max())),
        standstill_ms=_ms(standstill_s),
        machine_stall_ms=_ms(stall_s),
    )


def _ms(time_s: float) -> float:
    return round(1e3 * time_s, 3)


def _drop(batch: Batch) -> None:
    """Discard the batch."""
