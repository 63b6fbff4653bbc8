"""What measuring costs: the same work with and without it, in turn, each side judged by its best round.

Measures are taken per step and batch. So the work is done once in large batches, where that is next to
nothing, and once in small ones, where there are most of them for each record.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from everstream.bench.bids import BATCH
from everstream.bench.idle import Idle
from everstream.bench.idle import measure as measure_idle
from everstream.bench.overhead import EVEN, Timing, engine
from everstream.pipeline.checkpointing import Coordinated
from everstream.spark.measuring import unmeasured

SMALL_BATCH = 256


@dataclass(frozen=True)
class MetricsCost:
    """The figures of `everstream bench overhead --metrics`."""

    cost: float
    """Share of the throughput, in large batches; below 0 it is lost in the noise."""
    cost_small: float
    """The same in small batches."""
    processor_cost: float
    """Share of the processor time of a host, in large batches: the middle rounds compared. Others on
    the machine make a round longer, but hardly dearer."""
    processor_cost_small: float
    timings: dict[str, Timing]
    idle: Idle

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        for name, timing in self.timings.items():
            body["timings"][name]["records_per_s"] = round(timing.records_per_s)
        return body


def measure(
    *,
    records: int = 100_000_000,
    small_records: int = 2_000_000,
    rounds: int = 5,
    idle_s: float = 20.0,
    master: str = "local[2]",
    progress: Callable[[str], None] = lambda text: None,
) -> MetricsCost:
    """Run everything in turn, several rounds; then look at a pipeline that has nothing to do."""
    sides: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "measured": nullcontext,
        "unmeasured": unmeasured,
    }
    sizes = {"": (records, BATCH), "_small": (small_records, SMALL_BATCH)}
    timings = {side + name: Timing(sizes[name][0]) for name in sizes for side in sides}
    often = Coordinated(every=1.0)
    engine(EVEN, BATCH, None, master)  # starts Spark and its workers
    for number in range(rounds):
        for name, (count, batch) in sizes.items():
            # Who goes first changes, so that neither side has the quieter half of the time.
            order = list(sides) if number % 2 else list(reversed(sides))
            for side in order:
                progress(f"round {number + 1} of {rounds}: {side}, batches of {batch:,}")
                with sides[side]():
                    timings[side + name].add(engine(EVEN, count, often, master, batch))
    return MetricsCost(
        cost=_cost(timings, ""),
        cost_small=_cost(timings, "_small"),
        processor_cost=_processor_cost(timings, ""),
        processor_cost_small=_processor_cost(timings, "_small"),
        timings=timings,
        idle=measure_idle(idle_s, progress),
    )


def _cost(timings: dict[str, Timing], name: str) -> float:
    measured, bare = timings["measured" + name], timings["unmeasured" + name]
    return round(1 - measured.records_per_s / bare.records_per_s, 4)


def _processor_cost(timings: dict[str, Timing], name: str) -> float:
    measured, bare = timings["measured" + name], timings["unmeasured" + name]
    return round(1 - median(bare.cpu_s) / median(measured.cpu_s), 4)
