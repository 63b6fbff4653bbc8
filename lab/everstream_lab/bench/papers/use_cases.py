"""ResiPipe's failure-recovery use cases, scaled down: what checkpoints and a failure cost.

Use case 1 is a line with a stateful operator that fails half-way; 2 replicates a stage with
unequal replicas of which one fails; 3 replicates two stages and fails in both; 4 (see `state`)
holds a large state. All times of the thesis are divided by one factor, the intervals with them.
Our restart is not scaled: about half a second of ours corresponds to many seconds of the thesis.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everstream.connectors.generate.sources import Range
from everstream.engine.run import run
from everstream.errors import RunFailed
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.keys import stable_hash
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream_lab.bench.report import Figure, Progress, Report

RECORDS = 100
GROUP = 25
INTERVALS_S = (15.0, 30.0, 45.0, 60.0, None)
"""The thesis's snapshot intervals; None: disabled."""

_PARITY_KEYS = {
    parity: next(k for k in range(parity, 100, 2) if stable_hash(k) % 2 == parity)
    for parity in (0, 1)
}
"""Keys that send even numbers to one shard and odd ones to the other."""

THESIS: dict[int, dict[float | None, float]] = {
    2: {15.0: 1.33, 30.0: 1.09, 45.0: 1.31},
    3: {15.0: 0.59, 30.0: 0.42, 45.0: 0.48},
}
"""Records per second with the failure, where the thesis prints them."""
THESIS_FREE: dict[int, float] = {2: 1.54, 3: 0.76}
"""Without failures: 100 records in 65.03 s; 0.59 is 22.37 % less than this."""


class Heavy(Operator):
    """Represents a heavy computation; the last replica of a stage may be slower."""

    def __init__(self, seconds: float, slower_s: float = 0.0, slow_shard: int = 1) -> None:
        self.seconds = seconds
        self.slower_s = slower_s
        self.slow_shard = slow_shard

    def process(self, record: Any, ctx: Context) -> None:
        slow = ctx.shards > 1 and ctx.shard == self.slow_shard
        time.sleep(self.seconds + (self.slower_s if slow else 0.0))
        ctx.emit(record)


class Groups(Operator):
    """Gathers 25 records into one sum."""

    def process(self, record: Any, ctx: Context) -> None:
        seen = [*ctx.state.get("seen", ()), record]
        if len(seen) == GROUP:
            ctx.emit(sum(seen))
            seen = []
        ctx.state.put("seen", tuple(seen))


@dataclass(frozen=True)
class UseCase:
    """A pipeline and the kills of its failure-prone run."""

    number: int
    what: str
    build: Callable[[Stream, float], Stream]
    kills: tuple[str, ...]


def _by_parity(stream: Stream) -> Stream:
    return stream.key_by(lambda n: _PARITY_KEYS[n % 2])


def _line(numbers: Stream, second_s: float) -> Stream:
    heavy = numbers.on_demand().process(Heavy(second_s), name="p1")
    return heavy.on_demand().process(Groups(), name="p2")


def _replicated(numbers: Stream, second_s: float) -> Stream:
    heavy = _by_parity(numbers).process(Heavy(second_s, 0.3 * second_s), name="p1", shards=2)
    return heavy.on_demand().process(Groups(), name="p3", shards=1)


def _twice_replicated(numbers: Stream, second_s: float) -> Stream:
    first = _by_parity(numbers).process(Heavy(second_s, 0.3 * second_s), name="p1", shards=2)
    second = _by_parity(first).process(Heavy(second_s, 0.3 * second_s, 0), name="p3", shards=2)
    return second.on_demand().process(Groups(), name="p5", shards=1)


# A replica gets 50 of the 100 numbers, so that its 51st is one that it processes again: the second
# failure of use case 3 comes only after the first, which rolls it back. So it is in the thesis.
USE_CASES = (
    UseCase(1, "a stateful operator in a line fails after 50 records", _line, ("p2@50",)),
    UseCase(2, "the slower of two replicas fails after 50 records", _replicated, ("p1:1@50",)),
    UseCase(
        3,
        "two replicated stages, a failure in each",
        _twice_replicated,
        ("p1:1@26", "p3:0@51"),
    ),
)


@dataclass
class Measured:
    """One run of one use case."""

    use_case: int
    interval_s: float | None
    """Of the thesis, before scaling."""
    failure: bool
    records_per_s: float
    wall_s: float
    restarted_from: list[int]
    """The epochs that were gone back to."""
    restart_s: float = 0.0
    """From each kill until all shards were restored, in all."""
    rollback_s: float = 0.0
    """The age of the checkpoints that were gone back to, in all: that much was done again."""
    captured_s: float = 0.0
    """How long shards stood still for checkpoints, in all."""


def measure_one(
    case: UseCase, interval_s: float | None, failure: bool, factor: float, master: str
) -> Measured:
    """Run one use case once; its output is checked."""
    pipeline = Pipeline(f"use-case-{case.number}")
    numbers = pipeline.source(Range(RECORDS, batch=1), name="p0")
    case.build(numbers, 1.0 / factor).on_demand().collect(name="sink")
    result = run(
        pipeline,
        checkpoint=None if interval_s is None else Coordinated(every=interval_s / factor),
        master=master,
        kill=case.kills if failure else (),
    )
    # Which records form a group depends on how replicas interleave; their total does not.
    shown = result.collected("sink")
    if len(shown) != RECORDS // GROUP or sum(shown) != sum(range(RECORDS)):
        raise RunFailed(f"use case {case.number} put out {Counter(shown)}: records are missing")
    return Measured(
        case.number,
        interval_s,
        failure,
        round(RECORDS / result.wall_s, 3),
        round(result.wall_s, 3),
        [int(report.from_epoch) for report in result.recoveries],
        restart_s=sum((one.restored_s or one.start_s) - one.start_s for one in result.recoveries),
        rollback_s=sum(one.rollback_s for one in result.recoveries),
        captured_s=result.checkpoint_stats.capture_s,
    )


def measure(
    *,
    factor: float = 20.0,
    cases: tuple[int, ...] = (1, 2, 3),
    master: str = "local[6]",
    progress: Progress = lambda text: None,
) -> list[Measured]:
    """All use cases, all intervals, without and with the failure."""
    measured = []
    for case in USE_CASES:
        if case.number not in cases:
            continue
        for interval_s in INTERVALS_S:
            for failure in (False, True):
                every = "disabled" if interval_s is None else f"{interval_s:g} s / {factor:g}"
                how = "with the failure" if failure else "undisturbed"
                progress(f"use case {case.number}, checkpoints {every}, {how}")
                measured.append(measure_one(case, interval_s, failure, factor, master))
    return measured


def report_of(runs: Sequence[Measured], factor: float) -> Report:
    """Records per second; the ratio is to the same without the failure."""
    undisturbed = {
        (one.use_case, one.interval_s): one.records_per_s for one in runs if not one.failure
    }
    figures = []
    for one in runs:
        every = "no checkpoints" if one.interval_s is None else f"every {one.interval_s:g} s"
        thesis = THESIS.get(one.use_case, {}).get(one.interval_s) if one.failure else None
        beside = ""
        if thesis is not None:
            share = thesis / THESIS_FREE[one.use_case]
            beside = f"thesis: {thesis} records/s, ratio {share:.2f}"
        ratio = one.records_per_s / undisturbed[one.use_case, one.interval_s]
        figures.append(
            Figure(
                f"use case {one.use_case}, {every}{', failure' if one.failure else ''}",
                one.records_per_s,
                "records/s",
                ratio=ratio if one.failure else None,
                beside=beside,
            )
        )
    return Report("recovery", figures, {"factor": factor}, [vars(one) for one in runs])
