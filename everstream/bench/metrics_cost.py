"""What measuring costs: the same work with and without it, in turn, each round by itself.

A round takes longer or shorter by far more than measuring costs, so its two sides are compared with each
other, and the middle of all rounds counts; how far the middle half of them is spread says what that is worth.
Measures are taken per step and batch. So the work is done once in large batches, where that is next to
nothing, and once in small ones, where there are most of them for each record.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from everstream.bench.bids import BATCH
from everstream.bench.idle import Idle
from everstream.bench.idle import measure as measure_idle
from everstream.bench.overhead import EVEN, Timing, engine
from everstream.pipeline.checkpointing import Coordinated
from everstream.spark.measuring import unmeasured

SMALL_BATCH = 256


@dataclass(frozen=True)
class Share:
    """Of what is there without measuring, in the middle round, and between which the middle half lies."""

    cost: float
    low: float
    high: float


@dataclass(frozen=True)
class MetricsCost:
    """The figures of `everstream bench overhead --metrics`."""

    throughput: dict[str, "Share"]
    """In large batches, and in small ones."""
    processor: dict[str, "Share"]
    """The same of the processor time of a host: others on the machine change it less."""
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
    sizes = {"large": (records, BATCH), "small": (small_records, SMALL_BATCH)}
    timings = {f"{side}_{name}": Timing(sizes[name][0]) for name in sizes for side in sides}
    often = Coordinated(every=1.0)
    engine(EVEN, BATCH, None, master)  # starts Spark and its workers
    for number in range(rounds):
        for name, (count, batch) in sizes.items():
            # Who goes first changes, so that neither side has the quieter half of the time.
            order = list(sides) if number % 2 else list(reversed(sides))
            for side in order:
                progress(f"round {number + 1} of {rounds}: {side}, batches of {batch:,}")
                with sides[side]():
                    timings[f"{side}_{name}"].add(engine(EVEN, count, often, master, batch))
    return MetricsCost(
        throughput={name: _share(timings, name, "rounds_s") for name in sizes},
        processor={name: _share(timings, name, "cpu_s") for name in sizes},
        timings=timings,
        idle=measure_idle(idle_s, progress),
    )


def _share(timings: dict[str, Timing], name: str, of: str) -> Share:
    sides = (getattr(timings[f"{side}_{name}"], of) for side in ("measured", "unmeasured"))
    costs = [1 - bare / measured for measured, bare in zip(*sides, strict=True)]
    low, middle, high = quantiles(costs, n=4) if len(costs) > 1 else costs * 3
    return Share(round(middle, 4), round(low, 4), round(high, 4))
