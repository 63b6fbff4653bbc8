"""What measuring costs: the same work with and without it, in turn, each round compared separately.

A round takes longer or shorter by far more than measuring costs, so its two sides are compared with each
other, and the middle of all rounds counts; their spread says what that is worth.
Measures are taken per step and batch. So the work is done once in large batches, where that is next to
nothing, and once in small ones, where there are most of them for each record.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median

from everstream.engine.continuous.run import unmeasured
from everstream.pipeline.checkpointing import Coordinated
from everstream_lab.bench.bids import BATCH
from everstream_lab.bench.idle import measure as measure_idle
from everstream_lab.bench.overhead import EVEN, Timing, engine
from everstream_lab.bench.report import Figure, Progress, Report, at_most

SMALL_BATCH = 256


def measure(
    *,
    records: int = 100_000_000,
    small_records: int = 2_000_000,
    rounds: int = 5,
    idle_s: float = 20.0,
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> Report:
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
    idle = measure_idle(idle_s, progress)
    figures = [
        *(_cost(timings, "throughput", name, "rounds_s") for name in sizes),
        *(_cost(timings, "processor", name, "cpu_s") for name in sizes),
        Figure("idle, all Python", idle.python_share, "of a core", at_most(0.03)),
        Figure("idle, Java", idle.java_share, "of a core"),
        *(
            Figure(f"idle, {process.name} ({process.pid})", process.cpu_share, "of a core")
            for process in idle.processes
        ),
        *(timing.figure(name) for name, timing in timings.items()),
    ]
    return Report("overhead --metrics", figures, {"rounds": rounds, "idle_s": idle.seconds})


def _cost(timings: dict[str, Timing], resource: str, size: str, field: str) -> Figure:
    """The share that measuring takes, round by round; the middle one counts."""
    sides = (getattr(timings[f"{side}_{size}"], field) for side in ("measured", "unmeasured"))
    costs = [1 - bare / measured for measured, bare in zip(*sides, strict=True)]
    return Figure(
        f"cost of {resource}, {size} batches",
        round(median(costs), 4),
        target=at_most(0.01) if size == "large" else None,
        repetitions=tuple(round(cost, 4) for cost in costs),
    )
